"""The event log in DynamoDB held to its contract, and what comes of its being told late."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from longshore.adapters.aws.events import DynamoEventLog
from longshore.adapters.aws.ledger import DynamoLedger
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.event_log import EventLogContract, EventLogSharedContract
from tests.aws.backends import on_aws


class _Aws:
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, ledger=DynamoLedger, events=DynamoEventLog)


class TestDynamoEventLog(_Aws, EventLogContract):
    pass


class TestDynamoEventLogShared(_Aws, EventLogSharedContract):
    pass
