"""The memory backend: the reference the others are compared with, and what users test with.

It lives on one event loop, without threads and without chance: the same calls in the same order
give the same answers, so a simulation on it can be run again.
"""

from __future__ import annotations

from longshore.adapters.memory.api_keys import MemoryKeys
from longshore.adapters.memory.blobs import MemoryBlobStore
from longshore.adapters.memory.budgets import MemoryBudgets
from longshore.adapters.memory.definitions import MemoryDefinitions
from longshore.adapters.memory.events import MemoryEventBus, MemoryEventLog
from longshore.adapters.memory.ledger import MemoryLedger
from longshore.adapters.memory.output import MemoryOutputLog
from longshore.adapters.memory.queue_controls import MemoryQueueControls
from longshore.adapters.memory.store import MemoryStore
from longshore.adapters.memory.task_queue import MemoryTaskQueue
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock


def memory_backend(clock: Clock, *, atomic: bool = False) -> Backend:
    """An empty backend that forgets everything with its process.

    Args:
        atomic: Whether its ledger takes several changes in one commit.
    """
    store = MemoryStore(clock)
    return Backend(
        name="memory",
        clock=clock,
        ledger=MemoryLedger(store, atomic=atomic),
        queue=MemoryTaskQueue(clock),
        queue_controls=MemoryQueueControls(clock),
        events=MemoryEventLog(store),
        bus=MemoryEventBus(store),
        output=MemoryOutputLog(clock),
        blobs=MemoryBlobStore(),
        definitions=MemoryDefinitions(),
        keys=MemoryKeys(),
        budgets=MemoryBudgets(),
        close=_nothing_to_close,
    )


async def _nothing_to_close() -> None:
    pass
