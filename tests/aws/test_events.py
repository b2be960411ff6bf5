"""The event log in DynamoDB held to its contract, and what comes of its being told late."""

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from longshore.adapters.aws.event_walks import ALL, FEW, walk_for
from longshore.adapters.aws.events import DynamoEventLog
from longshore.adapters.aws.ledger import DynamoLedger
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.event_log import EventLogContract, EventLogSharedContract
from longshore.testing.contracts.event_queries import QueryClauses
from tests.aws.backends import OnAws, on_aws


class _Aws(OnAws):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, ledger=DynamoLedger, events=DynamoEventLog)


class TestDynamoEventLog(_Aws, EventLogContract):
    pass


class TestDynamoEventLogShared(_Aws, EventLogSharedContract):
    pass


class TestWithAllIndexes(OnAws, QueryClauses):
    """What each index answers, where all of seed 001's are filled."""

    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        log = partial(DynamoEventLog, indexes=ALL)
        return on_aws(tmp_path, clock, ledger=DynamoLedger, events=log)


def test_a_question_goes_to_the_index_that_is_made_for_it_if_that_is_filled() -> None:
    by_type = partial(walk_for, "acme", event_type="Task Failed")

    assert by_type(filled=ALL).index == "GSI4-index"
    assert by_type(app="shop", entity="TASK#a", filled=ALL).index == "GSI7-index"
    assert by_type(filled=FEW).index is None
    assert by_type(app="shop", entity="TASK#a", filled=FEW).index == "GSI1-index"
    assert walk_for("acme", app="shop", filled=FEW).index is None
