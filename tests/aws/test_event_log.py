"""The contract of the event log in DynamoDB, and events that arrive late."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from longshore.adapters.aws.events.event_log import (
    ALL_INDEXES,
    DEFAULT_INDEXES,
    DynamoEventLog,
    query_for,
)
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.core.events.event import Event
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.event_log import (
    EventLogContract,
    EventLogSharedContract,
    QueryClauses,
)
from longshore.testing.contracts.samples import TENANT, an_event, events_to_wire
from longshore.testing.contracts.suite import PortContract, clause
from longshore.testing.full_samples import full_events
from tests.aws.backends import AwsContract, on_aws


class _AwsBackend(AwsContract):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, ledger=DynamoLedger, events=DynamoEventLog)


class TestDynamoEventLog(_AwsBackend, EventLogContract):
    pass


class TestSave(_AwsBackend, PortContract):
    """``save``: what the bus delivers, in any order and more than once."""

    @clause
    async def test_an_event_of_every_type_is_kept_with_every_field(self, backend: Backend) -> None:
        events = full_events(TENANT)

        await _save(backend, events)

        for event in events:
            stored = await backend.events.history(TENANT, event.entity)
            assert events_to_wire(stored) == events_to_wire([event]), event.type

    @clause
    async def test_an_event_whose_large_fields_are_elsewhere_keeps_the_reference(
        self, backend: Backend
    ) -> None:
        events = [
            replace(event, overflow=f"events/{event.entity_id}/{event.id}-payload.json")
            for event in full_events(TENANT)
        ]

        await _save(backend, events)

        for event in events:
            stored = await backend.events.history(TENANT, event.entity)
            assert events_to_wire(stored) == events_to_wire([event]), event.type
            assert stored[0].overflow == event.overflow

    @clause
    async def test_the_same_event_twice_is_one(self, backend: Backend) -> None:
        await _save(backend, [an_event(1)])

        await _save(backend, [an_event(1)])
        await _save(backend, [an_event(2), an_event(2), an_event(1)])

        assert await _sequences(backend) == [1, 2]

    @clause
    async def test_events_are_saved_in_any_order(self, backend: Backend) -> None:
        await _save(backend, [an_event(3), an_event(1)])
        await _save(backend, [an_event(2), an_event(11)])
        await _save(backend, [])

        assert await _sequences(backend) == [1, 2, 3, 11]
        latest = await backend.events.latest(TENANT, "TASK#job-one_a")
        assert latest is not None
        assert latest.sequence == 11


async def _save(backend: Backend, events: Sequence[Event]) -> None:
    log: Any = backend.events
    await log.save(events)


async def _sequences(backend: Backend) -> list[int]:
    history = await backend.events.history(TENANT, "TASK#job-one_a")
    return [event.sequence for event in history]


class TestDynamoEventLogShared(_AwsBackend, EventLogSharedContract):
    pass


class TestWithAllIndexes(AwsContract, QueryClauses):
    """What each index answers, where all of the earlier interface's are filled."""

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
