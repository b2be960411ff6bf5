"""Every list of very many rows is read along an index."""

import re
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.core.tasks.states import JobState, TaskState
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import commit_job, new_job, new_task
from longshore.testing.contracts.suite import START
from tests.adapters.sqlite.conftest import Query
from tests.execution.conftest import scenario

SECOND = timedelta(seconds=1)
# The index columns in use: all columns before the time, and both bounds of the time.
BOUNDS = "created_us>? AND created_us<?"
WALKS = {
    "by_state": f"(tenant=? AND state=? AND {BOUNDS})",
    "by_name": f"(tenant=? AND name=? AND state=? AND {BOUNDS})",
}
JOB_OF_TASK = "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)"


def steps_of(folder: Path, query: Query) -> list[list[str]]:
    """How SQLite goes about each statement."""
    connection = apsw.Connection(str(folder / store_file.FILE_NAME))
    plans = [connection.execute(f"EXPLAIN QUERY PLAN {sql}", values) for sql, values in query]
    steps = [[step[-1] for step in plan] for plan in plans]
    connection.close()
    return steps


def walks(index: str, times: int) -> list[str]:
    return [f"SEARCH jobs USING INDEX jobs_{index} {WALKS[index]}"] * times


def looks(steps: list[str]) -> list[str]:
    """What is looked at; merging two walks is no look, sorting what was found is one."""
    return [step for step in steps if not re.match(r"MERGE|LEFT|RIGHT", step)]


@pytest.mark.parametrize("paged", [False, True], ids=["first page", "later page"])
@scenario
async def test_jobs_by_every_filter_are_walks_along_an_index(
    tmp_path: Path, query: Query, paged: bool
) -> None:
    expected: list[list[str]] = []
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        for number in range(3):
            await commit_job(backend, new_job(f"job-{number}", name="nightly"))
        page = await backend.ledger.list_jobs("acme", limit=1)
        cursor = page.cursor if paged else None
        query.clear()
        for state, name, first, before in product(
            (None, JobState.RUNNING), (None, "nightly"), (None, START), (None, START + SECOND)
        ):
            span: dict[str, Any] = {"created_from": first, "created_before": before}
            await backend.ledger.list_jobs("acme", state=state, name=name, cursor=cursor, **span)
            # Of any state: one walk a state, merged as they go.
            expected.append(walks("by_name" if name else "by_state", 1 if state else len(JobState)))

    assert [looks(steps) for steps in steps_of(tmp_path, query)] == expected


@scenario
async def test_jobs_of_a_name_are_found_by_it_also_with_statistics_of_other_days(
    tmp_path: Path, query: Query
) -> None:
    """Any tool may have run ANALYZE while no job of this state was there, and many are by now."""
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        jobs = [
            new_job(f"job-{number}", name="nightly", now=START + number * SECOND)
            for number in range(100)
        ]
        await backend.ledger.commit(*jobs)
        connection = apsw.Connection(str(tmp_path / store_file.FILE_NAME))
        connection.execute("ANALYZE")
        connection.close()
        await backend.ledger.list_jobs("acme", state=JobState.COMPLETED, name="nightly")

    assert [looks(steps) for steps in steps_of(tmp_path, query)] == [walks("by_name", 1)]


@pytest.mark.parametrize(
    ("state", "indexes"),
    [
        (None, ["tasks_completed", "tasks_open"]),
        (TaskState.COMPLETED, ["tasks_completed"]),
        (TaskState.PENDING, ["tasks_open"]),
        (TaskState.FAILED, ["tasks_open"]),
    ],
)
@scenario
async def test_tasks_are_walks_along_an_index(
    tmp_path: Path, query: Query, state: TaskState | None, indexes: list[str]
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await backend.ledger.list_tasks("acme", state=state)

    (steps,) = steps_of(tmp_path, query)
    walk = "SEARCH t USING INDEX {} (tenant=? AND created_us<?)"
    # Of any state: both walks, merged as they go.
    expected = [step for index in indexes for step in (walk.format(index), JOB_OF_TASK)]
    assert looks(steps) == expected


@scenario
async def test_what_belongs_to_one_job_and_what_an_id_begins_with_is_found_by_an_index(
    tmp_path: Path, query: Query
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        ledger = backend.ledger
        await ledger.list_tasks("acme", job_id="job-one")
        await ledger.list_tasks("acme", job_id="job-one", state=TaskState.PENDING)
        await ledger.task_states("job-one")
        await ledger.find_ids("acme", "job-0")

    *of_job, texts, numbers = [looks(steps) for steps in steps_of(tmp_path, query)]
    of_numbers = "USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
    assert of_job == [
        *([f"SEARCH t {of_numbers}", JOB_OF_TASK] for _ in range(2)),
        ["SEARCH jobs USING COVERING INDEX sqlite_autoindex_jobs_1 (id=?)"],
        [f"SEARCH tasks {of_numbers}"],
    ]
    by_id = ["SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id>? AND id<?)"]
    assert texts == numbers == by_id


@pytest.mark.parametrize("limit", [1, 3, 4, 300])
@scenario
async def test_the_few_ids_of_one_tenant_are_found_behind_the_many_of_another(
    tmp_path: Path, limit: int
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        for number in range(250):
            await commit_job(backend, new_job(f"job-{number:03}", tenant="large"))
        few = [new_job(job_id, tenant="small") for job_id in ("job-1", "job-248-b", "job-249-b")]
        for job in few:
            await commit_job(backend, job)
        task = new_task("a", job_id="job-249-b", tenant="small")
        await backend.ledger.commit(task)

        rows = await backend.ledger.find_ids("small", "job-", limit=limit)

        assert rows == ["job-1", "job-248-b", "job-249-b", "job-249-b_a"][:limit]
        assert await backend.ledger.find_ids("small", "job-3") == []
        assert await backend.ledger.find_ids("large", "job-24", limit=2) == ["job-240", "job-241"]


DIGITS = "0123456789abcdefghijklmnopqrstuv"


@pytest.mark.parametrize("length", [0, 1, 2, 12, 23, 24])
@scenario
async def test_an_id_is_found_by_a_prefix_that_ends_at_any_digit(
    tmp_path: Path, length: int
) -> None:
    same = "5" * length
    last = 24 - length
    inside = [same + "0" * last, same + "v" * last, same + ("7gv" * 8)[:last]]
    outside = [same[:-1] + digit + "0" * last for digit in "46v"] if length else []
    outside += [same[:-1] + "4" + "v" * last] if length else []
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        for digits in {*inside, *outside}:
            await commit_job(backend, new_job(f"job-{digits}"))

        ids = await backend.ledger.find_ids("acme", f"job-{same}", limit=50)

    assert ids == sorted(f"job-{digits}" for digits in set(inside))


@pytest.mark.parametrize("prefix", ["", "j", "job", "job-"])
@scenario
async def test_every_id_is_found_by_the_beginning_of_all_ids(tmp_path: Path, prefix: str) -> None:
    ids = [f"job-{digit * 24}" for digit in DIGITS[::31]] + ["job-one"]
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        for job_id in ids:
            await commit_job(backend, new_job(job_id))

        assert await backend.ledger.find_ids("acme", prefix) == sorted(ids)


@pytest.mark.parametrize("prefix", ["job-w", "job-A", "job-_", "k", "job-" + "0" * 25])
@scenario
async def test_nothing_is_found_by_a_prefix_of_no_id(tmp_path: Path, prefix: str) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await commit_job(backend, new_job("job-" + "0" * 24))

        assert await backend.ledger.find_ids("acme", prefix) == []
