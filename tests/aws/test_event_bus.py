"""The contract of the event bus on EventBridge, and its handling of batches."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.events.event_bus import EventBridgeBus
from longshore.adapters.aws.events.event_log import DynamoEventLog
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.adapters.aws.names import Names
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.event_bus import EventBusContract, EventBusSharedContract
from tests.aws.backends import AwsContract, on_aws

CONSUMERS = ("alerts", "dispatcher", "first", "second")


def make_bus(aws: AwsClient, names: Names, clock: FakeClock) -> DynamoEventLog:
    return DynamoEventLog(aws, names, clock, EventBridgeBus(aws, names, clock))


class _AwsBackend(AwsContract):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(
            tmp_path,
            clock,
            consumers=CONSUMERS,
            ledger=DynamoLedger,
            events=make_bus,
            bus=EventBridgeBus,
        )


class TestEventBridgeBus(_AwsBackend, EventBusContract):
    pass


class TestEventBridgeBusShared(_AwsBackend, EventBusSharedContract):
    pass
