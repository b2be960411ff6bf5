"""Every list of very many rows is read along an index."""

import re
from collections.abc import Sequence
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.database import Database
from longshore.core.tasks.states import JobState, TaskState
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import commit_job, new_job, new_task
from longshore.testing.contracts.suite import START
from tests.execution.conftest import scenario

SECOND = timedelta(seconds=1)
Query = list[tuple[str, Sequence[Any]]]
# The index columns in use: all columns before the time, and both bounds of the time.
BOUNDS = "created_us>? AND (created_us,id)<(?,?)"
WALKS = {
    "by_time": f"(tenant=? AND {BOUNDS})",
    "by_state": f"(tenant=? AND state=? AND {BOUNDS})",
    "by_name": f"(tenant=? AND name=? AND state=? AND {BOUNDS})",
}


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Query:
    """Every statement that the reading thread is asked to run."""
    noted: Query = []
    scan = Database.scan

    async def noting(self: Database, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        noted.append((sql, values))
        return await scan(self, sql, values)

    monkeypatch.setattr(Database, "scan", noting)
    return noted


def steps_of(folder: Path, query: Query) -> list[list[str]]:
    """How SQLite goes about each statement."""
    connection = apsw.Connection(str(folder / store_file.FILE_NAME))
    plans = [connection.execute(f"EXPLAIN QUERY PLAN {sql}", values) for sql, values in query]
    steps = [[step[-1] for step in plan] for plan in plans]
    connection.close()
    return steps


def walks(table: str, index: str, times: int = 1) -> list[str]:
    return [f"SEARCH {table} USING INDEX {table}_{index} {WALKS[index]}"] * times


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
            if name is None:
                expected.append(walks("jobs", "by_state" if state else "by_time"))
            else:
                # Of one name and any state: one walk a state, merged as they go.
                expected.append(walks("jobs", "by_name", 1 if state else len(JobState)))

    assert [looks(steps) for steps in steps_of(tmp_path, query)] == expected


@pytest.mark.parametrize("state", [None, TaskState.PENDING], ids=str)
@scenario
async def test_tasks_are_a_walk_along_an_index(
    tmp_path: Path, query: Query, state: TaskState | None
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await backend.ledger.list_tasks("acme", state=state)

    (steps,) = steps_of(tmp_path, query)
    assert steps == walks("tasks", "by_state" if state else "by_time")


@scenario
async def test_what_belongs_to_one_job_and_what_an_id_begins_with_is_found_by_an_index(
    tmp_path: Path, query: Query
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        ledger = backend.ledger
        await ledger.list_tasks("acme", job_id="job-one")
        await ledger.list_tasks("acme", job_id="job-one", state=TaskState.PENDING)
        await ledger.task_states("job-one")
        await ledger.find_ids("acme", "job-o")

    *of_job, rows = [looks(steps) for steps in steps_of(tmp_path, query)]
    assert {step.partition(" (")[0] for steps in of_job for step in steps} == {
        "SEARCH tasks USING INDEX tasks_by_job"
    }
    assert rows == [
        f"SEARCH {table} USING INDEX sqlite_autoindex_{table}_1 (id>? AND id<?)"
        for table in ("jobs", "tasks")
    ]


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
