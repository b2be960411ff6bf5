"""Calls to DynamoDB that go wrong: what a ledger and its history make of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws.bus import EventBridgeBus
from longshore.adapters.aws.calls import Answer, Aws
from longshore.adapters.aws.events import DynamoEventLog
from longshore.adapters.aws.ledger import DynamoLedger
from longshore.adapters.aws.names import Names
from longshore.core import commands as c
from longshore.core.changes import Ring
from longshore.errors import BackendUnavailable, OutcomeUnknown, VersionConflict
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import (
    TENANT,
    after,
    an_event,
    append_event,
    claim,
    new_task,
)
from longshore.testing.contracts.suite import START, PortContract, clause
from tests.aws.backends import OnAws, names_in
from tests.aws.standin import stand_in
from tests.aws.trouble import Call, Trouble, lost, never_arrived, throttled

QUICK = timedelta(milliseconds=200)
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An installation, and a way to it that is troubled."""

    aws: Trouble
    names: Names
    clock: FakeClock

    @property
    def ledger(self) -> DynamoLedger:
        return DynamoLedger(self.aws, self.names, self.clock)

    @property
    def log(self) -> DynamoEventLog:
        return DynamoEventLog(self.aws, self.names, self.clock, patience=QUICK)

    @property
    def bus(self) -> EventBridgeBus:
        return EventBridgeBus(self.aws, self.names, self.clock)


class TestTrouble(OnAws, PortContract):
    """Each clause has an installation of its own."""

    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Any]:
        server = stand_in()
        with server.in_time_of(clock):
            aws = Aws(server.place)
            try:
                names = await names_in(aws, tmp_path, (), ("dispatcher",))
                yield Place(aws=Trouble(aws), names=names, clock=clock)
            finally:
                await aws.close()

    @clause
    async def test_a_commit_whose_answer_was_lost_is_made_once_and_rings(
        self, backend: Place
    ) -> None:
        created = new_task()
        backend.aws.meet("update_item", lost)

        with pytest.raises(OutcomeUnknown):
            await backend.ledger.commit(created)
        effects = await backend.ledger.commit(created)

        assert [type(effect) for effect in effects] == [Ring]
        assert await backend.ledger.task(created.row.id) == created.row

    @clause
    async def test_a_commit_that_never_arrived_is_made_when_it_is_made_again(
        self, backend: Place
    ) -> None:
        created = new_task()
        backend.aws.meet("update_item", never_arrived)

        with pytest.raises(OutcomeUnknown):
            await backend.ledger.commit(created)
        before = await backend.ledger.task(created.row.id)
        await backend.ledger.commit(created)

        assert before is None
        assert await backend.ledger.task(created.row.id) == created.row

    @clause
    async def test_a_commit_whose_answer_was_lost_and_that_was_overtaken_is_a_conflict(
        self, backend: Place
    ) -> None:
        created = new_task()
        backend.aws.meet("update_item", lost)
        with pytest.raises(OutcomeUnknown):
            await backend.ledger.commit(created)
        taken = claim(created.row)
        await backend.ledger.commit(taken)

        with pytest.raises(VersionConflict):
            await backend.ledger.commit(created)

        assert await backend.ledger.task(created.row.id) == taken.row

    @clause
    async def test_a_nudge_that_fails_costs_no_commit(self, backend: Place) -> None:
        created = new_task()
        await backend.ledger.commit(created)
        taken = claim(created.row)
        await backend.ledger.commit(taken)
        wish = after(taken.row, c.RequestCancel(by="ann"))
        backend.aws.meet("update_item", _passes, throttled)

        await backend.ledger.commit(wish)

        assert backend.aws.count("update_item") == 4
        assert await backend.ledger.task(created.row.id) == wish.row

    @clause
    async def test_rows_that_were_left_over_are_asked_for_again(
        self, backend: Place, clock: FakeClock
    ) -> None:
        ids = await _three_tasks(backend)
        backend.aws.meet("batch_get_item", _only_the_first)

        rows = await _as_time_passes(clock, backend.ledger.tasks(ids))

        assert [row.id for row in rows] == ids
        assert backend.aws.count("batch_get_item") == 2

    @clause
    async def test_rows_that_never_come_are_told_as_out_of_reach(
        self, backend: Place, clock: FakeClock
    ) -> None:
        ids = await _three_tasks(backend)
        backend.aws.meet("batch_get_item", *[_nothing] * 20)

        with pytest.raises(BackendUnavailable):
            await _as_time_passes(clock, backend.ledger.tasks(ids))

    @clause
    async def test_what_an_index_shows_twice_while_it_moves_is_listed_once(
        self, backend: Place
    ) -> None:
        ids = await _three_tasks(backend)
        backend.aws.meet("query", *[_twice] * 100)

        page = await backend.ledger.list_tasks(TENANT)
        unrung = await backend.ledger.unrung(
            due_by=START + HOUR, rung_before=START + HOUR, limit=10
        )

        assert sorted(row.id for row in page.items) == ids
        assert sorted(unrung) == ids

    @clause
    async def test_a_history_waits_for_what_its_row_has_told_and_holds_back_behind_a_gap(
        self, backend: Place
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
    async def test_an_event_whose_answer_was_lost_is_appended_once(self, backend: Place) -> None:
        backend.aws.meet("transact_write_items", lost)

        first = await append_event(_as_backend(backend))
        second = await append_event(_as_backend(backend))

        assert (first.sequence, second.sequence) == (1, 2)
        history = await backend.log.history(TENANT, "QUEUE#default")
        assert [event.sequence for event in history] == [1, 2]

    @clause
    async def test_events_that_the_bus_did_not_take_are_told_again_alone(
        self, backend: Place, clock: FakeClock
    ) -> None:
        events = [an_event(number) for number in range(1, 4)]
        backend.aws.meet("put_events", _all_but_the_second)

        refused = await _as_time_passes(clock, backend.bus.publish(events))

        sent = [len(given["Entries"]) for name, given in backend.aws.made if name == "put_events"]
        assert refused == []
        assert sent == [3, 1]

    @clause
    async def test_events_that_the_bus_never_takes_are_named(
        self, backend: Place, clock: FakeClock
    ) -> None:
        events = [an_event(number) for number in range(1, 4)]
        backend.aws.meet("put_events", *[_all_but_the_second, *[_none_at_all] * 20])

        refused = await _as_time_passes(clock, backend.bus.publish(events))

        assert refused == [events[1]]

    @clause
    async def test_a_consumer_that_is_called_off_in_a_poll_loses_and_delays_nothing(
        self, backend: Place
    ) -> None:
        bus = backend.bus
        await bus.publish([an_event(1)])
        listening = _receive(bus)
        listening.send(None)
        listening.close()

        async with bus:
            pass
        delivery = await backend.bus.receive(
            "dispatcher", types=[an_event(1).type], limit=10, wait=timedelta(0)
        )

        assert delivery is not None
        assert delivery.events == (an_event(1),)


def _receive(bus: EventBridgeBus) -> Any:
    return bus.receive(
        "dispatcher", types=[an_event(1).type], limit=10, wait=timedelta(0)
    ).__await__()


async def _three_tasks(place: Place) -> list[str]:
    changes = [new_task(key) for key in "abc"]
    for change in changes:
        await place.ledger.commit(change)
    return [change.row.id for change in changes]


def _as_backend(place: Place) -> Any:
    class Only:
        events = place.log

    return Only


async def _as_time_passes(clock: FakeClock, work: Any) -> Any:
    """What comes of something that pauses between its tries."""
    doing = asyncio.ensure_future(work)
    while not doing.done():
        await asyncio.sleep(0.005)
        if (deadline := clock.next_deadline) is not None:
            clock.advance(deadline - clock.elapsed())
    return await doing


async def _passes(call: Call) -> Answer:
    return await call()


async def _twice(call: Call) -> Answer:
    answer = await call()
    answer["Items"] = [item for item in answer["Items"] for _ in range(2)]
    return answer


async def _only_the_first(call: Call) -> Answer:
    answer = await call()
    (table, items) = next(iter(answer["Responses"].items()))
    left = [{name: item[name] for name in ("bucket", "id")} for item in items[1:]]
    return {
        "Responses": {table: items[:1]},
        "UnprocessedKeys": {table: {"Keys": left, "ConsistentRead": True}},
    }


async def _nothing(call: Call) -> Answer:
    answer = await call()
    (table, items) = next(iter(answer["Responses"].items()))
    left = [{name: item[name] for name in ("bucket", "id")} for item in items]
    return {"Responses": {}, "UnprocessedKeys": {table: {"Keys": left, "ConsistentRead": True}}}


async def _all_but_the_second(call: Call) -> Answer:
    answer = await call()
    refused = {"ErrorCode": "ThrottlingException", "ErrorMessage": "slow down"}
    answer["Entries"][1] = refused
    return answer


async def _none_at_all(call: Call) -> Answer:
    raise BackendUnavailable("events.put_events: InternalFailure")
