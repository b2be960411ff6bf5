"""The SQLite backend held to every contract by four processes that share one file."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar

import pytest

from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.api_keys import KeysContract, KeysSharedContract
from longshore.testing.contracts.blobs import BlobStoreContract, BlobStoreSharedContract
from longshore.testing.contracts.budgets import BudgetsContract, BudgetsSharedContract
from longshore.testing.contracts.definitions import (
    DefinitionsContract,
    DefinitionsSharedContract,
)
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


class TestSqliteEventLogInFour(
    _FourProcesses, EventLogContract, RecordedOrderContract, EventLogSharedContract
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


class TestSqliteQueueControlsInFour(
    _FourProcesses, QueueControlsContract, QueueControlsSharedContract
):
    pass


class TestSqliteQueueHoldsInFour(_FourProcesses, QueueHoldsContract, QueueHoldsSharedContract):
    pass


class TestSqliteBudgetsInFour(_FourProcesses, BudgetsContract, BudgetsSharedContract):
    pass


class TestSqliteRetentionInFour(_FourProcesses, RetentionContract):
    pass
