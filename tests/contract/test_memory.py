"""The memory backend held to every contract."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.testing.contracts.api_keys import KeysContract
from longshore.testing.contracts.blobs import BlobStoreContract
from longshore.testing.contracts.budgets import BudgetsContract
from longshore.testing.contracts.definitions import DefinitionsContract
from longshore.testing.contracts.event_bus import EventBusContract, LogBusContract
from longshore.testing.contracts.event_log import EventLogContract, RecordedOrderContract
from longshore.testing.contracts.ledger import (
    AtomicLedgerContract,
    LedgerContract,
    QueuedLedgerContract,
    SingleChangeLedgerContract,
)
from longshore.testing.contracts.output import OutputLogContract
from longshore.testing.contracts.queue_controls import (
    QueueControlsContract,
    QueuedControlsContract,
    QueueHoldsContract,
)
from longshore.testing.contracts.retention import RetentionContract
from longshore.testing.contracts.task_queue import TaskQueueContract
from longshore.testing.contracts.task_source import DirectSourceContract, TaskSourceContract
from longshore.testing.memory.backend import memory_backend


class _Memory:
    atomic = False

    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: Clock) -> AsyncIterator[Backend]:
        yield memory_backend(clock, atomic=self.atomic)


class _AtomicMemory(_Memory):
    atomic = True


class TestMemoryLedger(_Memory, LedgerContract, QueuedLedgerContract, SingleChangeLedgerContract):
    pass


class TestAtomicMemoryLedger(_AtomicMemory, LedgerContract, AtomicLedgerContract):
    pass


class TestMemoryTaskQueue(_Memory, TaskQueueContract):
    pass


class TestMemoryEventLog(_Memory, EventLogContract, RecordedOrderContract):
    pass


class TestMemoryEventBus(_Memory, EventBusContract, LogBusContract):
    pass


class TestMemoryOutputLog(_Memory, OutputLogContract):
    pass


class TestMemoryBlobStore(_Memory, BlobStoreContract):
    pass


class TestMemoryDefinitions(_Memory, DefinitionsContract):
    pass


class TestMemoryKeys(_Memory, KeysContract):
    pass


class TestMemoryQueueControls(_Memory, QueueControlsContract, QueuedControlsContract):
    pass


class TestMemoryQueueHolds(_Memory, QueueHoldsContract):
    pass


class TestMemoryBudgets(_Memory, BudgetsContract):
    pass


class TestMemoryTaskSource(_AtomicMemory, DirectSourceContract):
    pass


class TestMemoryMessageSource(_Memory, TaskSourceContract):
    joint = False


class TestMemoryRetention(_Memory, RetentionContract):
    pass


class TestAtomicMemoryRetention(_AtomicMemory, RetentionContract):
    pass
