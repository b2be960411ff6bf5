"""The SQLite backend held to every contract, alone and with several instances on one file."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from longshore.adapters.sqlite import events as sqlite_events
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.testing.contracts.api_keys import KeysContract, KeysSharedContract
from longshore.testing.contracts.blobs import BlobStoreContract, BlobStoreSharedContract
from longshore.testing.contracts.budgets import BudgetsContract, BudgetsSharedContract
from longshore.testing.contracts.definitions import DefinitionsContract, DefinitionsSharedContract
from longshore.testing.contracts.event_log import (
    EventLogContract,
    EventLogSharedContract,
    RecordedOrderContract,
)
from longshore.testing.contracts.ledger import (
    AtomicLedgerContract,
    LedgerContract,
    LedgerSharedContract,
)
from longshore.testing.contracts.output import OutputLogContract, OutputLogSharedContract
from longshore.testing.contracts.queue_controls import (
    QueueControlsContract,
    QueueControlsSharedContract,
    QueueHoldsContract,
    QueueHoldsSharedContract,
)
from longshore.testing.contracts.retention import RetentionContract
from longshore.testing.contracts.task_source import DirectSourceContract


class _Sqlite:
    def make_backend(self, tmp_path: Path, clock: Clock) -> AbstractAsyncContextManager[Backend]:
        return sqlite_backend(tmp_path / "data", clock)


class TestSqliteLedger(_Sqlite, LedgerContract, AtomicLedgerContract, LedgerSharedContract):
    pass


class TestSqliteEventLog(_Sqlite, EventLogContract, RecordedOrderContract, EventLogSharedContract):
    pass


class TestSqliteEventLogFarFromItsEnd(_Sqlite, EventLogContract, RecordedOrderContract):
    """Where a page is found by an index, which a log of a few events never asks for."""

    @pytest.fixture(autouse=True)
    def far_from_its_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_events, "NEAR_END_POSITIONS", -1)


class TestSqliteOutputLog(_Sqlite, OutputLogContract, OutputLogSharedContract):
    pass


class TestSqliteBlobStore(_Sqlite, BlobStoreContract, BlobStoreSharedContract):
    pass


class TestSqliteDefinitions(_Sqlite, DefinitionsContract, DefinitionsSharedContract):
    pass


class TestSqliteKeys(_Sqlite, KeysContract, KeysSharedContract):
    pass


class TestSqliteQueueControls(_Sqlite, QueueControlsContract, QueueControlsSharedContract):
    pass


class TestSqliteQueueHolds(_Sqlite, QueueHoldsContract, QueueHoldsSharedContract):
    pass


class TestSqliteBudgets(_Sqlite, BudgetsContract, BudgetsSharedContract):
    pass


class TestSqliteTaskSource(_Sqlite, DirectSourceContract):
    pass


class TestSqliteRetention(_Sqlite, RetentionContract):
    pass
