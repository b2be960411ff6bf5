"""The SQLite backend held to every contract, alone and with several instances on one file."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from longshore.adapters.sqlite import event_pages
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.testing.contracts.accounts import AccountsContract, AccountsSharedContract
from longshore.testing.contracts.blobs import BlobStoreContract, BlobStoreSharedContract
from longshore.testing.contracts.definitions import DefinitionsContract, DefinitionsSharedContract
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


class _Sqlite:
    def make_backend(self, tmp_path: Path, clock: Clock) -> AbstractAsyncContextManager[Backend]:
        return sqlite_backend(tmp_path / "data", clock)


class TestSqliteLedger(_Sqlite, LedgerContract, AtomicLedgerContract, LedgerSharedContract):
    pass


class TestSqliteTaskQueue(_Sqlite, TaskQueueContract, TaskQueueSharedContract):
    pass


class TestSqliteEventLog(_Sqlite, EventLogContract, RecordedOrderContract, EventLogSharedContract):
    pass


class TestSqliteEventLogFarFromItsEnd(_Sqlite, EventLogContract, RecordedOrderContract):
    """Where a page is found by an index, which a log of a few events never asks for."""

    @pytest.fixture(autouse=True)
    def far_from_its_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(event_pages, "NEAR", -1)


class TestSqliteEventBus(_Sqlite, EventBusContract, LogBusContract, EventBusSharedContract):
    pass


class TestSqliteOutputLog(_Sqlite, OutputLogContract, OutputLogSharedContract):
    pass


class TestSqliteBlobStore(_Sqlite, BlobStoreContract, BlobStoreSharedContract):
    pass


class TestSqliteDefinitions(_Sqlite, DefinitionsContract, DefinitionsSharedContract):
    pass


class TestSqliteKeys(_Sqlite, KeysContract, KeysSharedContract):
    pass


class TestSqliteQueues(_Sqlite, QueuesContract, QueuesSharedContract):
    pass


class TestSqliteHolds(_Sqlite, HoldsContract, HoldsSharedContract):
    pass


class TestSqliteAccounts(_Sqlite, AccountsContract, AccountsSharedContract):
    pass
