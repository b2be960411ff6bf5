"""The ledger's clauses about listings: content, filters, order and pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from longshore.core.jobs import job
from longshore.core.jobs.numbers import NumberSet
from longshore.core.pages import Page
from longshore.core.tasks.rows import JobRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.ports.backend import Backend
from longshore.testing.contracts.samples import (
    apply_job_command,
    commit,
    commit_job,
    leased_task,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import START, TICK, PortContract, clause

ItemT = TypeVar("ItemT")
SECOND = timedelta(seconds=1)
NIGHTLY = "nightly"
_ENDS = (TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED)
_FAR_EAST = datetime.strptime("+0900", "%z").tzinfo
# Everything under which a running job of that name is listed: each may be another walk.
_FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"name": NIGHTLY},
    {"state": JobState.RUNNING},
    {"state": JobState.RUNNING, "name": NIGHTLY},
)


class TaskListingClauses(PortContract):
    """``list_tasks``."""

    @clause
    async def test_a_tenant_without_tasks_has_an_empty_listing(self, backend: Backend) -> None:
        assert await backend.ledger.list_tasks("other") == Page(items=(), cursor=None)

    @clause
    async def test_tasks_of_a_tenant_come_newest_first(self, backend: Backend) -> None:
        for number in (1, 3, 0, 2):
            await commit(backend, new_task(f"t{number}", now=START + number * SECOND))

        page = await backend.ledger.list_tasks("acme")

        assert [row.spec.key for row in page.items] == ["t3", "t2", "t1", "t0"]

    @clause
    async def test_tasks_of_one_job_come_by_number(self, backend: Backend) -> None:
        for number in (10, 2, 0, 1):
            await commit(
                backend, new_task(f"t{number}", number=number, now=START - number * SECOND)
            )
        await commit(backend, new_task("other", job_id="job-two"))

        page = await backend.ledger.list_tasks("acme", job_id="job-one")

        assert [row.spec.key for row in page.items] == ["t0", "t1", "t2", "t10"]

    @clause
    async def test_a_listed_task_is_its_whole_row(self, backend: Backend) -> None:
        row = await leased_task(backend)

        assert (await backend.ledger.list_tasks("acme")).items == (row,)
        assert (await backend.ledger.list_tasks("acme", job_id="job-one")).items == (row,)

    @clause
    async def test_tasks_of_another_tenant_are_not_listed(self, backend: Backend) -> None:
        await commit(backend, new_task("theirs", tenant="evil", job_id="job-two"))
        ours = await commit(backend, new_task("ours"))

        assert (await backend.ledger.list_tasks("acme")).items == (ours,)
        assert (await backend.ledger.list_tasks("acme", job_id="job-two")).items == ()

    @clause
    async def test_tasks_are_listed_by_their_state_now(self, backend: Backend) -> None:
        leased = await leased_task(backend, "held")
        pending = await commit(backend, new_task("pending", number=1))
        waiting = await commit(backend, new_task("waiting", number=2, awaits=[0]))

        for state, rows in {
            TaskState.PROCESSING: (leased,),
            TaskState.PENDING: (pending,),
            TaskState.WAITING: (waiting,),
            TaskState.FAILED: (),
        }.items():
            assert (await backend.ledger.list_tasks("acme", state=state)).items == rows
            listed = await backend.ledger.list_tasks("acme", job_id="job-one", state=state)
            assert listed.items == rows

    @clause
    async def test_the_pages_of_a_tenants_tasks_give_each_once_and_end(
        self, backend: Backend
    ) -> None:
        # Three at each moment, so that pages end in the middle of those with one time.
        for number in range(12):
            await commit(backend, new_task(f"t{number:02}", now=START + number // 3 * SECOND))
        whole = await backend.ledger.list_tasks("acme", limit=100)

        rows = await all_pages(lambda at: backend.ledger.list_tasks("acme", limit=5, cursor=at))

        assert rows == list(whole.items)
        assert sorted(row.spec.key for row in rows) == [f"t{number:02}" for number in range(12)]

    @clause
    async def test_the_pages_of_a_jobs_tasks_give_each_once_and_end(self, backend: Backend) -> None:
        for number in range(12):
            await commit(backend, new_task(f"t{number:02}", number=number))

        rows = await all_pages(
            lambda at: backend.ledger.list_tasks("acme", job_id="job-one", limit=5, cursor=at)
        )

        assert [row.spec.number for row in rows] == list(range(12))

    @clause
    async def test_the_pages_of_one_state_give_each_once_and_end(self, backend: Backend) -> None:
        for number in range(8):
            await commit(backend, new_task(f"p{number}", number=number))
            await leased_task(backend, f"h{number}")

        rows = await all_pages(
            lambda at: backend.ledger.list_tasks(
                "acme", state=TaskState.PENDING, limit=3, cursor=at
            )
        )

        assert sorted(row.spec.key for row in rows) == [f"p{number}" for number in range(8)]

    @clause
    async def test_no_page_has_more_than_the_limit(self, backend: Backend) -> None:
        for number in range(4):
            await commit(backend, new_task(f"t{number}", number=number))

        page = await backend.ledger.list_tasks("acme", limit=3)

        assert len(page.items) == 3
        assert page.cursor is not None

    @clause
    async def test_tasks_that_are_added_while_paging_move_no_other(self, backend: Backend) -> None:
        for number in range(6):
            await commit(backend, new_task(f"old{number}", now=START + number * SECOND))
        first = await backend.ledger.list_tasks("acme", limit=3)
        for number in range(3):
            await commit(backend, new_task(f"new{number}", now=START + (10 + number) * SECOND))

        second = await backend.ledger.list_tasks("acme", limit=3, cursor=first.cursor)

        keys = [row.spec.key for row in first.items + second.items]
        assert keys == ["old5", "old4", "old3", "old2", "old1", "old0"]

    @clause
    async def test_a_cursor_that_another_listing_made_is_refused(self, backend: Backend) -> None:
        for number in range(4):
            await commit(backend, new_task(f"t{number}", number=number))
            await commit_job(backend, new_job(f"job-{number}"))
        newest = (await backend.ledger.list_tasks("acme", limit=2)).cursor
        of_job = (await backend.ledger.list_tasks("acme", job_id="job-one", limit=2)).cursor
        of_jobs = (await backend.ledger.list_jobs("acme", limit=2)).cursor

        for cursor in (of_job, of_jobs, "nonsense", "ä", (newest or "")[:-3]):
            with pytest.raises(UsageError):
                await backend.ledger.list_tasks("acme", cursor=cursor)
        for cursor in (newest, of_jobs):
            with pytest.raises(UsageError):
                await backend.ledger.list_tasks("acme", job_id="job-one", cursor=cursor)


class JobListingClauses(PortContract):
    """``list_jobs``."""

    @clause
    async def test_jobs_of_a_tenant_come_newest_first(self, backend: Backend) -> None:
        rows: dict[int, JobRow] = {}
        for number in (1, 3, 0, 2):
            created = new_job(f"job-{number}", now=START + number * SECOND)
            rows[number] = await commit_job(backend, created)

        page = await backend.ledger.list_jobs("acme")

        assert page.items == (rows[3], rows[2], rows[1], rows[0])

    @clause
    async def test_jobs_of_another_tenant_are_not_listed(self, backend: Backend) -> None:
        await commit_job(backend, new_job("job-theirs", tenant="evil"))
        ours = await commit_job(backend, new_job("job-ours"))

        assert (await backend.ledger.list_jobs("acme")).items == (ours,)

    @clause
    async def test_jobs_are_listed_by_their_state_now(self, backend: Backend) -> None:
        running = await commit_job(backend, new_job("job-running"))
        ended = {
            JobState.COMPLETED: await ended_job(backend, TaskState.COMPLETED),
            JobState.FAILED: await ended_job(backend, TaskState.FAILED),
            JobState.CANCELLED: await ended_job(backend, TaskState.CANCELLED),
        }

        assert (await backend.ledger.list_jobs("acme", state=JobState.RUNNING)).items == (running,)
        for state, row in ended.items():
            assert (await backend.ledger.list_jobs("acme", state=state)).items == (row,)

    @clause
    async def test_the_pages_of_jobs_give_each_once_and_end(self, backend: Backend) -> None:
        for number in range(12):
            await commit_job(backend, new_job(f"job-{number}", now=START + number // 3 * SECOND))
        whole = await backend.ledger.list_jobs("acme", limit=100)

        rows = await all_pages(lambda at: backend.ledger.list_jobs("acme", limit=5, cursor=at))

        assert rows == list(whole.items)
        assert len({row.id for row in rows}) == 12

    @clause
    async def test_jobs_that_are_added_while_paging_move_no_other(self, backend: Backend) -> None:
        for number in range(6):
            await commit_job(backend, new_job(f"job-{number}", now=START + number * SECOND))
        first = await backend.ledger.list_jobs("acme", limit=3)
        await commit_job(backend, new_job("job-new", now=START + 10 * SECOND))

        second = await backend.ledger.list_jobs("acme", limit=3, cursor=first.cursor)

        ids = [row.id for row in first.items + second.items]
        assert ids == [f"job-{number}" for number in (5, 4, 3, 2, 1, 0)]

    @clause
    async def test_a_cursor_that_another_listing_made_is_refused_for_jobs(
        self, backend: Backend
    ) -> None:
        for number in range(4):
            await commit(backend, new_task(f"t{number}", number=number))
            await commit_job(backend, new_job(f"job-{number}"))
        of_tasks = (await backend.ledger.list_tasks("acme", limit=2)).cursor

        for cursor in (of_tasks, "nonsense"):
            with pytest.raises(UsageError):
                await backend.ledger.list_jobs("acme", cursor=cursor)


async def ended_job(backend: Backend, state: TaskState, *, of: JobRow | None = None) -> JobRow:
    """A job whose one task has ended so."""
    row = of or await commit_job(backend, new_job(f"job-{state}"))
    ended = job.EndedTask(number=0, key="a", round=1, state=state, blocks=NumberSet())
    return await commit_job(backend, apply_job_command(row, job.TasksEnded(tasks=(ended,))))


async def all_pages(
    page_at: Callable[[str | None], Awaitable[Page[ItemT]]],
) -> list[ItemT]:
    """Every item, page by page, until a page says that this was all."""
    items: list[ItemT] = []
    cursor: str | None = None
    for _ in range(20):
        page = await page_at(cursor)
        items += page.items
        cursor = page.cursor
        if cursor is None:
            return items
    message = "twenty small pages, and still no end"
    raise AssertionError(message)


class JobFilterClauses(PortContract):
    """``list_jobs`` with ``name``, ``created_from`` and ``created_before``."""

    @clause
    async def test_jobs_of_one_name_in_any_state_are_listed_newest_first(
        self, backend: Backend
    ) -> None:
        rows = [
            await _job(backend, f"job-{number}", name=NIGHTLY, at=number, ends=ends)
            for number, ends in enumerate((None, *_ENDS, None, *_ENDS))
        ]
        await _job(backend, "job-other", name="weekly", at=99)

        page = await backend.ledger.list_jobs("acme", name=NIGHTLY)

        assert page == Page(tuple(reversed(rows)))

    @clause
    async def test_a_name_is_the_whole_name_letter_by_letter(self, backend: Backend) -> None:
        names = ("Füße", "füße", "Füsse", "Füße ", "Füß", "Füße%", "F__e", "", "'")
        rows = {name: await _job(backend, f"job-{n}", name=name) for n, name in enumerate(names)}

        for name, row in rows.items():
            assert (await backend.ledger.list_jobs("acme", name=name)).items == (row,), name
        assert (await backend.ledger.list_jobs("acme", name="F%")).items == ()

    @clause
    async def test_a_job_without_a_name_has_none_of_the_names(self, backend: Backend) -> None:
        nameless = await _job(backend, "job-one", name=None)

        for name in ("", "None", "null", nameless.id):
            assert (await backend.ledger.list_jobs("acme", name=name)).items == ()
        assert (await backend.ledger.list_jobs("acme")).items == (nameless,)

    @clause
    async def test_state_and_name_must_both_apply(self, backend: Backend) -> None:
        rows: dict[tuple[str, JobState], JobRow] = {}
        for name in (NIGHTLY, "weekly"):
            for ends in (None, *_ENDS):
                row = await _job(backend, f"job-{name}-{ends}", name=name, ends=ends)
                rows[name, row.state] = row

        assert len(rows) == 2 * len(JobState)
        for (name, state), row in rows.items():
            page = await backend.ledger.list_jobs("acme", state=state, name=name)
            assert page.items == (row,), (name, state)
        assert (await backend.ledger.list_jobs("acme", state=JobState.FAILED, name="x")).items == ()

    @clause
    async def test_a_job_moves_to_its_new_state_under_its_name(self, backend: Backend) -> None:
        running = await _job(backend, "job-one", name=NIGHTLY)
        assert (await _job_ids(backend, state=JobState.RUNNING, name=NIGHTLY)) == [running.id]

        await ended_job(backend, TaskState.COMPLETED, of=running)

        assert (await _job_ids(backend, state=JobState.RUNNING, name=NIGHTLY)) == []
        assert (await _job_ids(backend, state=JobState.COMPLETED, name=NIGHTLY)) == [running.id]
        assert (await _job_ids(backend, name=NIGHTLY)) == [running.id]

    @clause
    async def test_the_first_moment_of_a_span_is_in_it_and_the_last_is_not(
        self, backend: Backend
    ) -> None:
        for number in range(4):
            await _job(backend, f"job-{number}", name=NIGHTLY, at=number)

        for filters in _FILTERS:
            for first, before, numbers in (
                (START, START + SECOND, (0,)),
                (START + SECOND, START + 3 * SECOND, (2, 1)),
                (START + SECOND + TICK, START + 3 * SECOND + TICK, (3, 2)),
                (START + SECOND, None, (3, 2, 1)),
                (None, START + 2 * SECOND, (1, 0)),
                (None, START, ()),
                (START + 3 * SECOND + TICK, None, ()),
            ):
                job_ids = await _job_ids(
                    backend, created_from=first, created_before=before, **filters
                )
                assert job_ids == [f"job-{number}" for number in numbers], (filters, first, before)

    @clause
    async def test_a_span_that_ends_before_it_begins_is_empty(self, backend: Backend) -> None:
        await _job(backend, "job-one", name=NIGHTLY)

        for filters in _FILTERS:
            for before in (START, START - SECOND):
                span = {"created_from": START, "created_before": before}
                assert await _job_ids(backend, **span, **filters) == [], (filters, before)

    @clause
    async def test_spans_as_wide_as_time_itself_have_every_job(self, backend: Backend) -> None:
        await _job(backend, "job-one", name=NIGHTLY)
        first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

        for filters in _FILTERS:
            assert await _job_ids(backend, created_from=first, created_before=last, **filters) == [
                "job-one"
            ]
            assert await _job_ids(backend, created_from=last, **filters) == []
            assert await _job_ids(backend, created_before=first, **filters) == []

    @clause
    async def test_a_moment_is_the_same_in_every_time_zone(self, backend: Backend) -> None:
        await _job(backend, "job-one", name=NIGHTLY)
        there = START.astimezone(_FAR_EAST)

        assert await _job_ids(backend, created_from=there) == ["job-one"]
        assert await _job_ids(backend, created_before=there) == []

    @pytest.mark.parametrize("name", [None, NIGHTLY], ids=str)
    @clause
    async def test_of_equal_moments_each_job_is_on_one_page_of_the_span(
        self, backend: Backend, name: str | None
    ) -> None:
        # Four of each moment, one of each state: pages of three end among equals.
        for number in range(12):
            ends = (None, *_ENDS)[number % 4]
            await _job(backend, f"job-{number:02}", name=NIGHTLY, at=number // 4, ends=ends)
        whole = await backend.ledger.list_jobs("acme", limit=100)
        span: dict[str, Any] = {"created_from": START, "created_before": START + 3 * SECOND}

        rows = await all_pages(
            lambda at: backend.ledger.list_jobs("acme", name=name, limit=3, cursor=at, **span)
        )

        assert rows == list(whole.items)
        assert len({row.id for row in rows}) == 12

    @clause
    async def test_the_pages_of_one_state_and_name_give_each_once_and_end(
        self, backend: Backend
    ) -> None:
        for number in range(8):
            await _job(backend, f"job-{number}", name=NIGHTLY, at=number // 3)
            await _job(backend, f"job-other-{number}", name="weekly", at=number // 3)
            done = TaskState.COMPLETED
            await _job(backend, f"job-done-{number}", name=NIGHTLY, at=number // 3, ends=done)

        rows = await all_pages(
            lambda at: backend.ledger.list_jobs(
                "acme", state=JobState.RUNNING, name=NIGHTLY, limit=3, cursor=at
            )
        )

        assert sorted(row.id for row in rows) == [f"job-{number}" for number in range(8)]

    @clause
    async def test_the_last_page_of_a_span_has_no_cursor(self, backend: Backend) -> None:
        for number in range(4):
            await _job(backend, f"job-{number}", name=NIGHTLY, at=number)

        for filters in _FILTERS:
            page = await backend.ledger.list_jobs(
                "acme", created_from=START + 2 * SECOND, limit=2, **filters
            )
            assert [row.id for row in page.items] == ["job-3", "job-2"], filters
            assert page.cursor is None, filters

    @pytest.mark.parametrize("filters", _FILTERS, ids=str)
    @clause
    async def test_a_cursor_goes_on_within_its_span_while_jobs_are_added(
        self, backend: Backend, filters: dict[str, Any]
    ) -> None:
        for number in range(7):
            await _job(backend, f"job-{number}", name=NIGHTLY, at=number)
        span: dict[str, Any] = {
            "created_from": START + SECOND,
            "created_before": START + 6 * SECOND,
        }
        ids: list[str] = []
        cursor: str | None = None
        for step in range(3):
            page = await backend.ledger.list_jobs("acme", limit=2, cursor=cursor, **span, **filters)
            ids += [row.id for row in page.items]
            cursor = page.cursor
            # Before the cursor, within the span and after it; and behind the span's beginning.
            for at in (5.5, 60, 0.5):
                await _job(backend, f"job-new-{step}-{at}", name=NIGHTLY, at=at)

        assert ids == ["job-5", "job-4", "job-3", "job-2", "job-1"]
        assert cursor is None

    @clause
    async def test_jobs_of_another_tenant_are_in_no_filtered_listing(
        self, backend: Backend
    ) -> None:
        await _job(backend, "job-theirs", name=NIGHTLY, tenant="evil")
        await _job(backend, "job-ours", name=NIGHTLY)

        for filters in _FILTERS:
            for span in ({}, {"created_from": START}, {"created_before": START + SECOND}):
                assert await _job_ids(backend, **filters, **span) == ["job-ours"], (filters, span)

    @clause
    async def test_a_cursor_of_a_filtered_listing_is_one_of_jobs_and_nonsense_is_none(
        self, backend: Backend
    ) -> None:
        for number in range(3):
            await _job(backend, f"job-{number}", name=NIGHTLY, at=number)
        page = await backend.ledger.list_jobs("acme", name=NIGHTLY, limit=1)

        with pytest.raises(UsageError):
            await backend.ledger.list_tasks("acme", cursor=page.cursor)
        for filters in _FILTERS:
            with pytest.raises(UsageError):
                await backend.ledger.list_jobs("acme", cursor="nonsense", **filters)


async def _job_ids(backend: Backend, **filters: Any) -> list[str]:
    page = await backend.ledger.list_jobs("acme", **filters)
    return [row.id for row in page.items]


async def _job(
    backend: Backend,
    job_id: str,
    *,
    name: str | None,
    at: float = 0,
    tenant: str = "acme",
    ends: TaskState | None = None,
) -> JobRow:
    """A job, so many seconds after the start; it runs, or its one task has ended so."""
    created = new_job(job_id, name=name, now=START + at * SECOND, tenant=tenant)
    row = await commit_job(backend, created)
    return await ended_job(backend, ends, of=row) if ends else row
