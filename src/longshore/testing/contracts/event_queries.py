"""The event log's clauses about queries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from longshore.core.pages import Page
from longshore.errors import UsageError
from longshore.ports.backend import Backend
from longshore.testing.contracts.samples import (
    TENANT,
    an_event,
    append_event,
    claim,
    commit,
    commit_job,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import START, PortContract, clause


class RecordedOrderContract(PortContract):
    """What holds for an event log that knows in which order events came to it."""

    @clause
    async def test_events_come_in_the_order_in_which_they_were_recorded(
        self, backend: Backend
    ) -> None:
        for sequence, task_id in ((1, "job-one_b"), (2, "job-one_a"), (1, "job-one_a")):
            await backend.events.record([an_event(sequence, task_id=task_id)])
        pending = await commit(backend, new_task("c"))
        await append_event(backend)

        assert await _query(backend) == [
            ("TASK#job-one_b", 1),
            ("TASK#job-one_a", 2),
            ("TASK#job-one_a", 1),
            (f"TASK#{pending.id}", 1),
            ("QUEUE#default", 1),
        ]


class QueryClauses(PortContract):
    """``query``."""

    @clause
    async def test_events_come_as_they_happened_and_were_recorded(self, backend: Backend) -> None:
        pending = await commit(backend, new_task("c"))
        for sequence, task_id in ((1, "job-one_b"), (2, "job-one_a"), (3, "job-one_b")):
            await backend.events.record([an_event(sequence, task_id=task_id)])
        await append_event(backend, now=START + timedelta(seconds=4))

        assert await _query(backend) == [
            (f"TASK#{pending.id}", 1),
            ("TASK#job-one_b", 1),
            ("TASK#job-one_a", 2),
            ("TASK#job-one_b", 3),
            ("QUEUE#default", 1),
        ]

    @clause
    async def test_events_are_found_by_app(self, backend: Backend) -> None:
        await backend.events.record([an_event(1), an_event(2, app="other"), an_event(3)])

        found = await backend.events.query(TENANT, app="shop")

        assert [event.sequence for event in found.items] == [1, 3]

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
        await backend.events.record([an_event(1), an_event(1, task_id="job-one_b"), an_event(2)])

        found = await _query(backend, entity="TASK#job-one_a")

        assert found == [("TASK#job-one_a", 1), ("TASK#job-one_a", 2)]

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

    @clause
    async def test_the_pages_of_a_query_give_each_event_once_and_end(
        self, backend: Backend
    ) -> None:
        events = [
            an_event(sequence, app="shop" if sequence % 3 else "other") for sequence in range(1, 31)
        ]
        await backend.events.record(events)

        found: list[int] = []
        cursor: str | None = None
        for _ in range(20):
            page = await backend.events.query(TENANT, app="shop", limit=6, cursor=cursor)
            assert len(page.items) <= 6
            found += [event.sequence for event in page.items]
            cursor = page.cursor
            if cursor is None:
                break

        assert cursor is None
        assert found == [sequence for sequence in range(1, 31) if sequence % 3]

    @clause
    async def test_events_that_are_recorded_while_paging_move_no_other(
        self, backend: Backend
    ) -> None:
        await backend.events.record([an_event(sequence) for sequence in range(1, 5)])
        first = await backend.events.query(TENANT, limit=2)
        await backend.events.record([an_event(5)])

        second = await backend.events.query(TENANT, limit=10, cursor=first.cursor)

        assert [event.sequence for event in first.items + second.items] == [1, 2, 3, 4, 5]

    @clause
    async def test_a_query_that_finds_nothing_is_an_empty_page(self, backend: Backend) -> None:
        await backend.events.record([an_event(1)])

        assert await backend.events.query(TENANT, app="none") == Page(items=(), cursor=None)

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
