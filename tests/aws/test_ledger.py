"""The ledger in DynamoDB held to its contract, and what DynamoDB does besides."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from longshore.adapters.aws.events import DynamoEventLog
from longshore.adapters.aws.ledger import DynamoLedger
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.ledger import (
    LedgerContract,
    LedgerSharedContract,
    SingleChangeLedgerContract,
)
from tests.aws.backends import OnAws, on_aws


class _Aws(OnAws):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, ledger=DynamoLedger, events=DynamoEventLog)


class TestDynamoLedger(_Aws, LedgerContract, SingleChangeLedgerContract):
    pass


class TestDynamoLedgerShared(_Aws, LedgerSharedContract):
    pass
