"""The ledger's clauses about listings: who is in them, in which order, page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

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
from longshore.testing.contracts.suite import START, PortContract, clause

ItemT = TypeVar("ItemT")
SECOND = timedelta(seconds=1)


class TaskListingClauses(PortContract):
    """``list_tasks``."""

    @clause
    async def test_a_tenant_without_tasks_has_an_empty_listing(self, backend: Backend) -> None:
        assert await backend.ledger.list_tasks("nobody") == Page(items=(), cursor=None)

    @clause
    async def test_tasks_of_a_tenant_come_newest_first(self, backend: Backend) -> None:
        for place in (1, 3, 0, 2):
            await commit(backend, new_task(f"t{place}", now=START + place * SECOND))

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
        held = await leased_task(backend, "held")
        pending = await commit(backend, new_task("pending", number=1))
        waiting = await commit(backend, new_task("waiting", number=2, awaits=[0]))

        for state, rows in {
            TaskState.PROCESSING: (held,),
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
        for place in (1, 3, 0, 2):
            created = new_job(f"job-{place}", now=START + place * SECOND)
            rows[place] = await commit_job(backend, created)

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
