"""The contract of the ledger in DynamoDB, and its handling of DynamoDB's own behaviour."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from longshore.adapters.aws.events.event_log import DynamoEventLog
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.ledger import (
    LedgerContract,
    LedgerSharedContract,
    QueuedLedgerContract,
    SingleChangeLedgerContract,
)
from tests.aws.backends import AwsContract, on_aws


class _AwsBackend(AwsContract):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, ledger=DynamoLedger, events=DynamoEventLog)


class TestDynamoLedger(
    _AwsBackend, LedgerContract, QueuedLedgerContract, SingleChangeLedgerContract
):
    pass


class TestDynamoLedgerShared(_AwsBackend, LedgerSharedContract):
    pass
