"""The event bus on EventBridge held to its contract, and to what AWS does with batches."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from longshore.adapters.aws.bus import EventBridgeBus
from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.events import DynamoEventLog
from longshore.adapters.aws.ledger import DynamoLedger
from longshore.adapters.aws.names import Names
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.event_bus import EventBusContract, EventBusSharedContract
from tests.aws.backends import OnAws, on_aws

CONSUMERS = ("alerts", "dispatcher", "first", "second")


def told(aws: Aws, names: Names, clock: FakeClock) -> DynamoEventLog:
    return DynamoEventLog(aws, names, clock, EventBridgeBus(aws, names, clock))


class _Aws(OnAws):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(
            tmp_path,
            clock,
            consumers=CONSUMERS,
            ledger=DynamoLedger,
            events=told,
            bus=EventBridgeBus,
        )


class TestEventBridgeBus(_Aws, EventBusContract):
    pass


class TestEventBridgeBusShared(_Aws, EventBusSharedContract):
    pass
