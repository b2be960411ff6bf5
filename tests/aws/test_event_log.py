"""The contract of the event log in DynamoDB, and events that arrive late."""

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from longshore.adapters.aws.events.event_log import (
    ALL_INDEXES,
    DEFAULT_INDEXES,
    DynamoEventLog,
    query_for,
)
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.event_log import (
    EventLogContract,
    EventLogSharedContract,
    QueryClauses,
)
from tests.aws.backends import AwsContract, on_aws


class _AwsBackend(AwsContract):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, ledger=DynamoLedger, events=DynamoEventLog)


class TestDynamoEventLog(_AwsBackend, EventLogContract):
    pass


class TestDynamoEventLogShared(_AwsBackend, EventLogSharedContract):
    pass


class TestWithAllIndexes(AwsContract, QueryClauses):
    """What each index answers, where all of seed 001's are filled."""

    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        log = partial(DynamoEventLog, indexes=ALL_INDEXES)
        return on_aws(tmp_path, clock, ledger=DynamoLedger, events=log)


def test_a_query_uses_the_most_specific_index_that_is_enabled() -> None:
    by_type = partial(query_for, "acme", event_type="Task Failed")

    assert by_type(indexes=ALL_INDEXES).index == "GSI4-index"
    assert by_type(app="shop", entity="TASK#a", indexes=ALL_INDEXES).index == "GSI7-index"
    assert by_type(indexes=DEFAULT_INDEXES).index is None
    assert by_type(app="shop", entity="TASK#a", indexes=DEFAULT_INDEXES).index == "GSI1-index"
    assert query_for("acme", app="shop", indexes=DEFAULT_INDEXES).index is None
