"""The SQLite backend held to every contract by four processes that share one file."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar

import pytest

from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.accounts import AccountsContract, AccountsSharedContract
from longshore.testing.contracts.blobs import BlobStoreContract, BlobStoreSharedContract
from longshore.testing.contracts.definitions import (
    DefinitionsContract,
    DefinitionsSharedContract,
)
from longshore.testing.contracts.event_bus import (
    EventBusContract,
    EventBusSharedContract,
    LogBusContract,
)
from longshore.testing.contracts.event_log import EventLogContract, EventLogSharedContract
from longshore.testing.contracts.event_queries import RecordedOrderContract
from longshore.testing.contracts.holds import HoldsContract, HoldsSharedContract
from longshore.testing.contracts.keys import KeysContract, KeysSharedContract
from longshore.testing.contracts.ledger import (
    AtomicLedgerContract,
    LedgerContract,
    LedgerSharedContract,
)
from longshore.testing.contracts.output import OutputLogContract, OutputLogSharedContract
from longshore.testing.contracts.queue import TaskQueueContract, TaskQueueSharedContract
from longshore.testing.contracts.queues import QueuesContract, QueuesSharedContract
from tests.contract.four_processes import FourProcesses, four_processes


class _FourProcesses:
    processes: ClassVar[FourProcesses]

    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return self.processes.backend(tmp_path / "data", clock)


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    with four_processes() as processes:
        _FourProcesses.processes = processes
        yield


class TestSqliteLedgerInFour(
    _FourProcesses, LedgerContract, AtomicLedgerContract, LedgerSharedContract
):
    pass


class TestSqliteTaskQueueInFour(_FourProcesses, TaskQueueContract, TaskQueueSharedContract):
    pass


class TestSqliteEventLogInFour(
    _FourProcesses, EventLogContract, RecordedOrderContract, EventLogSharedContract
):
    pass


class TestSqliteEventBusInFour(
    _FourProcesses, EventBusContract, LogBusContract, EventBusSharedContract
):
    pass


class TestSqliteOutputLogInFour(_FourProcesses, OutputLogContract, OutputLogSharedContract):
    pass


class TestSqliteBlobStoreInFour(_FourProcesses, BlobStoreContract, BlobStoreSharedContract):
    pass


class TestSqliteDefinitionsInFour(_FourProcesses, DefinitionsContract, DefinitionsSharedContract):
    pass


class TestSqliteKeysInFour(_FourProcesses, KeysContract, KeysSharedContract):
    pass


class TestSqliteQueuesInFour(_FourProcesses, QueuesContract, QueuesSharedContract):
    pass


class TestSqliteHoldsInFour(_FourProcesses, HoldsContract, HoldsSharedContract):
    pass


class TestSqliteAccountsInFour(_FourProcesses, AccountsContract, AccountsSharedContract):
    pass
