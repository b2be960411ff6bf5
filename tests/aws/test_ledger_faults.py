"""Failed calls to DynamoDB: how a ledger and its history handle them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsClient, AwsResponse
from longshore.adapters.aws.events.event_bus import EventBridgeBus
from longshore.adapters.aws.events.event_log import DynamoEventLog
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.adapters.aws.names import Names
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Enqueue
from longshore.errors import BackendUnavailable, OutcomeUnknown, VersionConflict
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import (
    TENANT,
    an_event,
    append_event,
    apply_command,
    claim,
    new_task,
)
from longshore.testing.contracts.suite import START, PortContract, clause
from tests.aws.backends import AwsContract, installation_names
from tests.aws.call_faults import Call, FaultyAws, request_lost, response_lost, throttled
from tests.aws.stand_in import stand_in

SHORT_TIMEOUT = timedelta(milliseconds=200)
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInstallation:
    """An installation, and a client whose calls can fail."""

    aws: FaultyAws
    names: Names
    clock: FakeClock

    @property
    def ledger(self) -> DynamoLedger:
        return DynamoLedger(self.aws, self.names, self.clock)

    @property
    def log(self) -> DynamoEventLog:
        return DynamoEventLog(self.aws, self.names, self.clock, history_timeout=SHORT_TIMEOUT)

    @property
    def bus(self) -> EventBridgeBus:
        return EventBridgeBus(self.aws, self.names, self.clock)


class TestLedgerFaults(AwsContract, PortContract):
    """Each clause has an installation of its own."""

    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Any]:
        server = stand_in()
        with server.follow_clock(clock):
            aws = AwsClient(server.client_options)
            try:
                names = await installation_names(aws, tmp_path, (), ("dispatcher",))
                yield LedgerInstallation(aws=FaultyAws(aws), names=names, clock=clock)
            finally:
                await aws.close()

    @clause
    async def test_a_commit_whose_response_was_lost_is_applied_once_and_its_repetition_enqueues(
        self, backend: LedgerInstallation
    ) -> None:
        created = new_task()
        backend.aws.inject("update_item", response_lost)

        with pytest.raises(OutcomeUnknown):
            await backend.ledger.commit(created)
        effects = await backend.ledger.commit(created)

        assert [type(effect) for effect in effects] == [Enqueue]
        assert await backend.ledger.get_task(created.row.id) == created.row

    @clause
    async def test_a_commit_that_never_arrived_is_applied_when_it_is_repeated(
        self, backend: LedgerInstallation
    ) -> None:
        created = new_task()
        backend.aws.inject("update_item", request_lost)

        with pytest.raises(OutcomeUnknown):
            await backend.ledger.commit(created)
        before = await backend.ledger.get_task(created.row.id)
        await backend.ledger.commit(created)

        assert before is None
        assert await backend.ledger.get_task(created.row.id) == created.row

    @clause
    async def test_repeating_a_commit_that_a_later_commit_followed_is_a_conflict(
        self, backend: LedgerInstallation
    ) -> None:
        created = new_task()
        backend.aws.inject("update_item", response_lost)
        with pytest.raises(OutcomeUnknown):
            await backend.ledger.commit(created)
        taken = claim(created.row)
        await backend.ledger.commit(taken)

        with pytest.raises(VersionConflict):
            await backend.ledger.commit(created)

        assert await backend.ledger.get_task(created.row.id) == taken.row

    @clause
    async def test_a_commit_succeeds_although_waking_the_worker_fails(
        self, backend: LedgerInstallation
    ) -> None:
        created = new_task()
        await backend.ledger.commit(created)
        taken = claim(created.row)
        await backend.ledger.commit(taken)
        cancelled = apply_command(taken.row, c.RequestCancel(by="ann"))
        backend.aws.inject("update_item", _succeeds, throttled)

        await backend.ledger.commit(cancelled)

        assert backend.aws.count("update_item") == 4
        assert await backend.ledger.get_task(created.row.id) == cancelled.row

    @clause
    async def test_rows_that_were_not_processed_are_requested_again(
        self, backend: LedgerInstallation, clock: FakeClock
    ) -> None:
        ids = await _three_tasks(backend)
        backend.aws.inject("batch_get_item", _only_the_first)

        rows = await _while_clock_advances(clock, backend.ledger.get_tasks(ids))

        assert [row.id for row in rows] == ids
        assert backend.aws.count("batch_get_item") == 2

    @clause
    async def test_rows_that_are_never_returned_raise_backend_unavailable(
        self, backend: LedgerInstallation, clock: FakeClock
    ) -> None:
        ids = await _three_tasks(backend)
        backend.aws.inject("batch_get_item", *[_nothing] * 20)

        with pytest.raises(BackendUnavailable):
            await _while_clock_advances(clock, backend.ledger.get_tasks(ids))

    @clause
    async def test_a_row_that_an_index_returns_twice_is_listed_once(
        self, backend: LedgerInstallation
    ) -> None:
        ids = await _three_tasks(backend)
        backend.aws.inject("query", *[_twice] * 100)

        page = await backend.ledger.list_tasks(TENANT)
        unqueued = await backend.ledger.unqueued_tasks(
            due_by=START + HOUR, enqueued_before=START + HOUR, limit=10
        )

        assert sorted(row.id for row in page.items) == ids
        assert sorted(unqueued) == ids

    @clause
    async def test_a_history_waits_for_the_events_of_its_row_and_ends_before_a_gap(
        self, backend: LedgerInstallation
    ) -> None:
        created = new_task()
        taken = claim(created.row)
        for change in (created, taken):
            await backend.ledger.commit(change)
        entity = f"TASK#{created.row.id}"

        none = await backend.log.history(TENANT, entity)
        await backend.log.save(taken.events)
        with_a_gap = await backend.log.history(TENANT, entity)
        await backend.log.save(created.events)
        whole = await backend.log.history(TENANT, entity)

        assert (none, with_a_gap) == ([], [])
        assert [event.sequence for event in whole] == [1, 2]

    @clause
    async def test_an_event_whose_response_was_lost_is_appended_once(
        self, backend: LedgerInstallation
    ) -> None:
        backend.aws.inject("transact_write_items", response_lost)

        first = await append_event(_as_backend(backend))
        second = await append_event(_as_backend(backend))

        assert (first.sequence, second.sequence) == (1, 2)
        history = await backend.log.history(TENANT, "QUEUE#default")
        assert [event.sequence for event in history] == [1, 2]

    @clause
    async def test_only_the_events_that_the_bus_rejected_are_published_again(
        self, backend: LedgerInstallation, clock: FakeClock
    ) -> None:
        events = [an_event(number) for number in range(1, 4)]
        backend.aws.inject("put_events", _all_but_the_second)

        refused = await _while_clock_advances(clock, backend.bus.publish(events))

        sent = [
            len(parameters["Entries"])
            for name, parameters in backend.aws.calls
            if name == "put_events"
        ]
        assert refused == []
        assert sent == [3, 1]

    @clause
    async def test_events_that_the_bus_always_rejects_are_returned(
        self, backend: LedgerInstallation, clock: FakeClock
    ) -> None:
        events = [an_event(number) for number in range(1, 4)]
        backend.aws.inject("put_events", *[_all_but_the_second, *[_none_at_all] * 20])

        refused = await _while_clock_advances(clock, backend.bus.publish(events))

        assert refused == [events[1]]

    @clause
    async def test_a_consumer_that_is_cancelled_during_a_poll_loses_and_delays_nothing(
        self, backend: LedgerInstallation
    ) -> None:
        bus = backend.bus
        await bus.publish([an_event(1)])
        listening = _receive(bus)
        listening.send(None)
        listening.close()

        await bus.close()
        delivery = await backend.bus.receive(
            "dispatcher", types=[an_event(1).type], limit=10, wait=timedelta(0)
        )

        assert delivery is not None
        assert delivery.events == (an_event(1),)


def _receive(bus: EventBridgeBus) -> Any:
    return bus.receive(
        "dispatcher", types=[an_event(1).type], limit=10, wait=timedelta(0)
    ).__await__()


async def _three_tasks(installation: LedgerInstallation) -> list[str]:
    changes = [new_task(key) for key in "abc"]
    for change in changes:
        await installation.ledger.commit(change)
    return [change.row.id for change in changes]


def _as_backend(installation: LedgerInstallation) -> Any:
    class Only:
        events = installation.log

    return Only


async def _while_clock_advances(clock: FakeClock, work: Any) -> Any:
    """The result of a call that pauses between its attempts."""
    doing = asyncio.ensure_future(work)
    while not doing.done():
        await asyncio.sleep(0.005)
        if (deadline := clock.next_deadline) is not None:
            clock.advance(deadline - clock.elapsed())
    return await doing


async def _succeeds(call: Call) -> AwsResponse:
    return await call()


async def _twice(call: Call) -> AwsResponse:
    answer = await call()
    answer["Items"] = [item for item in answer["Items"] for _ in range(2)]
    return answer


async def _only_the_first(call: Call) -> AwsResponse:
    answer = await call()
    (table, items) = next(iter(answer["Responses"].items()))
    left = [{name: item[name] for name in ("bucket", "id")} for item in items[1:]]
    return {
        "Responses": {table: items[:1]},
        "UnprocessedKeys": {table: {"Keys": left, "ConsistentRead": True}},
    }


async def _nothing(call: Call) -> AwsResponse:
    answer = await call()
    (table, items) = next(iter(answer["Responses"].items()))
    left = [{name: item[name] for name in ("bucket", "id")} for item in items]
    return {"Responses": {}, "UnprocessedKeys": {table: {"Keys": left, "ConsistentRead": True}}}


async def _all_but_the_second(call: Call) -> AwsResponse:
    answer = await call()
    refused = {"ErrorCode": "ThrottlingException", "ErrorMessage": "slow down"}
    answer["Entries"][1] = refused
    return answer


async def _none_at_all(call: Call) -> AwsResponse:
    raise BackendUnavailable("events.put_events: InternalFailure")
