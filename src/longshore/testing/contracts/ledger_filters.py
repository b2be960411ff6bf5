"""The ledger's clauses about the filters of ``list_jobs``: by name, by time, and by all at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.core.pages import Page
from longshore.core.tasks.rows import JobRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.ports.backend import Backend
from longshore.testing.contracts.ledger_listings import all_pages, ended_job
from longshore.testing.contracts.samples import commit_job, new_job
from longshore.testing.contracts.suite import START, TICK, PortContract, clause

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


class JobFilterClauses(PortContract):
    """``list_jobs`` with ``name``, ``created_from`` and ``created_before``."""

    @clause
    async def test_jobs_of_one_name_are_listed_newest_first_whatever_their_states(
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
                found = await _job_ids(
                    backend, created_from=first, created_before=before, **filters
                )
                assert found == [f"job-{number}" for number in numbers], (filters, first, before)

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
