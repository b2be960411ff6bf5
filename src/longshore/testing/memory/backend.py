"""The memory backend: the reference for the other backends, and the one for tests.

It runs on one event loop, without threads and randomness: the same calls in the same order give the
same results, so that a simulation can be repeated.
"""

from __future__ import annotations

from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.testing.memory.keyed_stores import (
    MemoryBlobStore,
    MemoryBudgets,
    MemoryDefinitions,
    MemoryKeys,
)
from longshore.testing.memory.ledger import MemoryLedger, MemoryStore
from longshore.testing.memory.logs import MemoryEventBus, MemoryEventLog, MemoryOutputLog
from longshore.testing.memory.queues import MemoryQueueControls, MemoryTaskQueue
from longshore.testing.memory.retention import MemoryRetention
from longshore.testing.memory.task_source import MemoryTaskSource


def memory_backend(clock: Clock, *, atomic: bool = False, direct: bool | None = None) -> Backend:
    """An empty backend that keeps its state in this process only.

    Args:
        atomic: Whether the ledger accepts several changes in one commit.
        direct: Whether the backend leases tasks by itself; otherwise it has a queue and a bus.
            None: if it is atomic.
    """
    direct = atomic if direct is None else direct
    store = MemoryStore(clock)
    output, blobs = MemoryOutputLog(store), MemoryBlobStore()
    controls = MemoryQueueControls(clock, store.row_waiters)
    return Backend(
        name="memory",
        clock=clock,
        ledger=MemoryLedger(store, atomic=atomic, direct=direct),
        queue_controls=controls,
        events=MemoryEventLog(store),
        output=output,
        blobs=blobs,
        definitions=MemoryDefinitions(),
        keys=MemoryKeys(),
        budgets=MemoryBudgets(),
        source=MemoryTaskSource(store, controls) if direct else None,
        queue=None if direct else MemoryTaskQueue(clock),
        bus=None if direct else MemoryEventBus(store),
        retention=MemoryRetention(store, output, blobs),
    )
