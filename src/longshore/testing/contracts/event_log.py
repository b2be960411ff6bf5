"""The contract of the ``EventLog``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from longshore.core.events.event import Event
from longshore.core.events.types import EntityType
from longshore.errors import UsageError
from longshore.ports.backend import Backend
from longshore.ports.events import EventQueryResult
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import (
    TENANT,
    append_event,
    claim,
    commit,
    commit_job,
    events_to_wire,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import (
    CALLERS,
    START,
    Opener,
    PortContract,
    clause,
    gather_all,
)
from longshore.testing.full_samples import full_events

ENTITY = "QUEUE#default"
"""Whose events ``append_event`` appends."""


class RecordedOrderContract(PortContract):
    """What holds for an event log that knows in which order events came to it."""

    @clause
    async def test_events_come_in_the_order_in_which_they_were_recorded(
        self, backend: Backend
    ) -> None:
        for second, queue in ((3, "b"), (2, "a"), (4, "a")):
            await append_event(backend, queue=queue, now=START + timedelta(seconds=second))
        pending = await commit(backend, new_task("c"))
        await append_event(backend)

        assert await _query(backend) == [
            ("QUEUE#b", 1),
            ("QUEUE#a", 1),
            ("QUEUE#a", 2),
            (f"TASK#{pending.id}", 1),
            ("QUEUE#default", 1),
        ]


class QueryClauses(PortContract):
    """``query``."""

    @clause
    async def test_events_come_as_they_happened_and_were_recorded(self, backend: Backend) -> None:
        pending = await commit(backend, new_task("c"))
        for second, queue in enumerate(("b", "a", "b", "default"), start=1):
            await append_event(backend, queue=queue, now=START + timedelta(seconds=second))

        assert await _query(backend) == [
            (f"TASK#{pending.id}", 1),
            ("QUEUE#b", 1),
            ("QUEUE#a", 1),
            ("QUEUE#b", 2),
            ("QUEUE#default", 1),
        ]

    @clause
    async def test_events_are_found_by_app(self, backend: Backend) -> None:
        for app in ("shop", "other", "shop"):
            await append_event(backend, app=app)

        sequences = await backend.events.query(TENANT, app="shop")

        assert [event.sequence for event in sequences.items] == [1, 3]

    @clause
    async def test_events_are_found_by_type(self, backend: Backend) -> None:
        pending = await commit(backend, new_task("a"))
        await commit(backend, claim(pending))
        await commit(backend, new_task("b"))

        assert await _query(backend, event_type="Task Pending") == [
            ("TASK#job-one_a", 1),
            ("TASK#job-one_b", 1),
        ]
        assert await _query(backend, event_type="Task Processing Started") == [
            ("TASK#job-one_a", 2)
        ]
        assert await _query(backend, event_type="task pending") == []

    @clause
    async def test_events_are_found_by_entity(self, backend: Backend) -> None:
        for queue in ("default", "other", "default"):
            await append_event(backend, queue=queue)

        sequences = await _query(backend, entity=ENTITY)

        assert sequences == [(ENTITY, 1), (ENTITY, 2)]

    @clause
    async def test_a_jobs_events_are_its_own_and_those_of_its_tasks(self, backend: Backend) -> None:
        await commit_job(backend, new_job("job-one"))
        await commit_job(backend, new_job("job-one2"))
        await commit(backend, new_task("a", job_id="job-one"))
        await commit(backend, new_task("a", job_id="job-one2"))
        await append_event(backend)

        assert await _query(backend, job_id="job-one") == [
            ("JOB#job-one", 1),
            ("TASK#job-one_a", 1),
        ]

    @clause
    async def test_only_events_that_fit_every_condition_are_found(self, backend: Backend) -> None:
        pending = await commit(backend, new_task("a"))
        await commit(backend, claim(pending))
        await commit(backend, new_task("b", app="other"))

        everything = {
            "app": "shop",
            "event_type": "Task Pending",
            "entity": f"TASK#{pending.id}",
            "job_id": "job-one",
        }
        assert await _query(backend, **everything) == [(f"TASK#{pending.id}", 1)]
        for name in everything:
            assert await _query(backend, **(everything | {name: "another"})) == []
        assert await _query(backend, **(everything | {"job_id": "job-on"})) == []

    @clause
    async def test_the_pages_of_a_query_give_each_event_once_and_end(
        self, backend: Backend
    ) -> None:
        for sequence in range(1, 31):
            await append_event(backend, app="shop" if sequence % 3 else "other")

        sequences: list[int] = []
        cursor: str | None = None
        for _ in range(20):
            page = await backend.events.query(TENANT, app="shop", limit=6, cursor=cursor)
            assert len(page.items) <= 6
            sequences += [event.sequence for event in page.items]
            cursor = page.cursor
            if cursor is None:
                break

        assert cursor is None
        assert sequences == [sequence for sequence in range(1, 31) if sequence % 3]

    @clause
    async def test_events_that_are_recorded_while_paging_move_no_other(
        self, backend: Backend
    ) -> None:
        await _append(backend, 4)
        first = await backend.events.query(TENANT, limit=2)
        await append_event(backend)

        second = await backend.events.query(TENANT, limit=10, cursor=first.cursor)

        assert [event.sequence for event in first.items + second.items] == [1, 2, 3, 4, 5]

    @clause
    async def test_reading_goes_on_after_the_cursor_of_any_event(self, backend: Backend) -> None:
        await _append(backend, 3)
        page = await backend.events.query(TENANT)
        await _append(backend, 2)

        assert _numbers([*page.items]) == [1, 2, 3]
        assert page.cursor is None
        for sequence, cursor in enumerate(page.cursors, start=1):
            rest = await backend.events.query(TENANT, cursor=cursor)
            assert _numbers([*rest.items]) == list(range(sequence + 1, 6))

    @clause
    async def test_a_query_that_finds_nothing_is_an_empty_page(self, backend: Backend) -> None:
        await append_event(backend)

        assert await backend.events.query(TENANT, app="none") == EventQueryResult()

    @clause
    async def test_a_cursor_that_another_listing_made_is_refused_for_events(
        self, backend: Backend
    ) -> None:
        for number in range(3):
            await commit(backend, new_task(f"t{number}"))
        of_tasks = (await backend.ledger.list_tasks(TENANT, limit=2)).cursor

        for cursor in (of_tasks, "nonsense"):
            with pytest.raises(UsageError):
                await backend.events.query(TENANT, cursor=cursor)


async def _query(backend: Backend, **conditions: Any) -> list[tuple[str, int]]:
    page = await backend.events.query(TENANT, **conditions)
    assert page.cursor is None
    return [(event.entity, event.sequence) for event in page.items]


class AppendClauses(PortContract):
    """``append``."""

    @clause
    async def test_an_appended_event_is_the_next_of_its_entity(self, backend: Backend) -> None:
        appended = [await append_event(backend, reason=f"r{number}") for number in range(3)]

        assert [event.sequence for event in appended] == [1, 2, 3]
        assert {event.entity for event in appended} == {"QUEUE#default"}
        history = await backend.events.history(TENANT, "QUEUE#default")
        assert events_to_wire(history) == events_to_wire(appended)

    @clause
    async def test_an_event_of_every_type_is_kept_with_every_field(self, backend: Backend) -> None:
        for event in full_events(TENANT):
            if event.entity_type in (EntityType.QUEUE, EntityType.SYSTEM):
                appended = await backend.events.append(
                    tenant=event.tenant,
                    app=event.app,
                    entity_id=event.entity_id,
                    body=event.body,
                    context=event.context,
                    now=event.at,
                )
                assert (appended.body, appended.context) == (event.body, event.context)
                stored = await backend.events.latest(TENANT, event.entity)
                assert stored is not None
                assert events_to_wire([stored]) == events_to_wire([appended]), event.type

    @clause
    async def test_appended_events_are_strictly_later_than_those_before(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        first = await append_event(backend, now=clock.now())
        second = await append_event(backend, now=clock.now())
        third = await append_event(backend, now=clock.now() - timedelta(hours=1))

        assert first.at <= START
        assert first.at < second.at < third.at

    @clause
    async def test_concurrent_appends_get_a_sequence_each(self, backend: Backend) -> None:
        for number in range(1, self.rounds // 5):
            answers = await gather_all(append_event(backend) for _ in range(CALLERS))

            assert [answer for answer in answers if isinstance(answer, BaseException)] == []
            history = await backend.events.history(TENANT, "QUEUE#default")
            assert [event.sequence for event in history] == list(range(1, number * CALLERS + 1))

    @clause
    async def test_one_name_in_two_tenants_is_two_entities(self, backend: Backend) -> None:
        await append_event(backend, tenant="acme")
        theirs = await append_event(backend, tenant="evil")

        assert theirs.sequence == 1
        assert len(await backend.events.history("acme", "QUEUE#default")) == 1


class HistoryClauses(PortContract):
    """``history`` and ``latest``."""

    @clause
    async def test_an_entity_without_events_has_no_history(self, backend: Backend) -> None:
        assert await backend.events.history(TENANT, "TASK#none") == []
        assert await backend.events.latest(TENANT, "TASK#none") is None

    @clause
    async def test_history_goes_on_after_a_sequence_up_to_the_limit(self, backend: Backend) -> None:
        await _append(backend, 10)

        first = await backend.events.history(TENANT, ENTITY, limit=4)
        second = await backend.events.history(TENANT, ENTITY, after=4, limit=4)
        third = await backend.events.history(TENANT, ENTITY, after=8, limit=4)
        rest = await backend.events.history(TENANT, ENTITY, after=10)

        assert _numbers(first) == [1, 2, 3, 4]
        assert _numbers(second) == [5, 6, 7, 8]
        assert _numbers(third) == [9, 10]
        assert rest == []

    @clause
    async def test_history_is_of_one_entity_only(self, backend: Backend) -> None:
        for queue in ("default", "defaults"):
            await append_event(backend, queue=queue)

        assert [e.entity for e in await backend.events.history(TENANT, ENTITY)] == [ENTITY]

    @clause
    async def test_the_latest_event_is_the_last_by_sequence(self, backend: Backend) -> None:
        appended = await _append(backend, 11)

        latest = await backend.events.latest(TENANT, ENTITY)

        assert latest is not None
        assert events_to_wire([latest]) == events_to_wire(appended[-1:])

    @clause
    async def test_events_of_another_tenant_are_not_seen(self, backend: Backend) -> None:
        await append_event(backend, queue="ours")
        await append_event(backend, tenant="evil")

        assert await backend.events.history(TENANT, ENTITY) == []
        assert await backend.events.latest(TENANT, ENTITY) is None
        assert await _query(backend) == [("QUEUE#ours", 1)]

    @clause
    async def test_one_sequence_in_two_tenants_is_two_events(self, backend: Backend) -> None:
        ours = await append_event(backend)
        theirs = await append_event(backend, tenant="evil", reason="another reason")

        assert events_to_wire(await backend.events.history(TENANT, ENTITY)) == events_to_wire(
            [ours]
        )
        assert events_to_wire(await backend.events.history("evil", ENTITY)) == events_to_wire(
            [theirs]
        )


class EventLogContract(AppendClauses, HistoryClauses, QueryClauses):
    """What holds for every event log."""


class EventLogSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_concurrent_appends_in_two_instances_get_a_sequence_each(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            backends = [first, second] * (CALLERS // 2)

            answers = await gather_all(append_event(backend) for backend in backends)

            assert [answer for answer in answers if isinstance(answer, BaseException)] == []
            history = await first.events.history(TENANT, "QUEUE#default")
            assert _numbers(history) == list(range(1, CALLERS + 1))

    @clause
    async def test_events_and_cursors_are_good_after_a_restart(self, open_backend: Opener) -> None:
        async with open_backend() as before:
            await _append(before, 5)
            page = await before.events.query(TENANT, limit=3)

        async with open_backend() as again:
            rest = await again.events.query(TENANT, limit=3, cursor=page.cursor)

            assert _numbers([*page.items, *rest.items]) == [1, 2, 3, 4, 5]
            with pytest.raises(UsageError):
                await again.events.query(TENANT, cursor="nonsense")


async def _append(backend: Backend, count: int) -> list[Event]:
    return [await append_event(backend) for _ in range(count)]


def _numbers(events: list[Event]) -> list[int]:
    return [event.sequence for event in events]
