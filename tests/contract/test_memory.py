"""The memory backend held to every contract."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from longshore.adapters.memory.backend import memory_backend
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.testing.contracts.accounts import AccountsContract
from longshore.testing.contracts.blobs import BlobStoreContract
from longshore.testing.contracts.definitions import DefinitionsContract
from longshore.testing.contracts.event_bus import EventBusContract, LogBusContract
from longshore.testing.contracts.event_log import EventLogContract
from longshore.testing.contracts.event_queries import RecordedOrderContract
from longshore.testing.contracts.holds import HoldsContract
from longshore.testing.contracts.keys import KeysContract
from longshore.testing.contracts.ledger import (
    AtomicLedgerContract,
    LedgerContract,
    SingleChangeLedgerContract,
)
from longshore.testing.contracts.output import OutputLogContract
from longshore.testing.contracts.queue import TaskQueueContract
from longshore.testing.contracts.queues import QueuesContract


class _Memory:
    atomic = False

    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: Clock) -> AsyncIterator[Backend]:
        backend = memory_backend(clock, atomic=self.atomic)
        yield backend
        await backend.close()


class _AtomicMemory(_Memory):
    atomic = True


class TestMemoryLedger(_Memory, LedgerContract, SingleChangeLedgerContract):
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


class TestMemoryQueues(_Memory, QueuesContract):
    pass


class TestMemoryHolds(_Memory, HoldsContract):
    pass


class TestMemoryAccounts(_Memory, AccountsContract):
    pass
