"""What failed for good in the course of the years: a look at the edge of an index, and no more."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Change
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import TaskRow
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.ledger_backlogs import failed_task
from longshore.testing.contracts.samples import apply_command, claim, new_task
from longshore.testing.contracts.suite import START
from tests.adapters.sqlite.conftest import Query
from tests.execution.conftest import scenario

SECOND = timedelta(seconds=1)


@scenario
async def test_both_questions_are_walks_along_the_index_of_what_failed(
    tmp_path: Path, query: Query
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await backend.ledger.failed_tasks("acme", limit=10)
        await backend.ledger.failed_tenants(limit=10, after="a")

    connection = apsw.Connection(str(tmp_path / store_file.FILE_NAME))
    plans = [connection.execute(f"EXPLAIN QUERY PLAN {sql}", values) for sql, values in query]
    of_tasks, of_tenants = [[step[-1] for step in plan] for plan in plans]
    connection.close()
    assert of_tasks == [
        "SEARCH t USING INDEX tasks_failed (tenant=?)",
        "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH n USING INTEGER PRIMARY KEY (rowid=?)",
    ]
    looks = [step for step in of_tenants if " tasks " in step]
    assert looks == ["SEARCH tasks USING COVERING INDEX tasks_failed (tenant>?)"] * 2


@scenario
async def test_of_very_many_only_those_that_are_asked_for_are_looked_at(
    tmp_path: Path, query: Query
) -> None:
    steps: dict[int, list[int]] = {}
    for many in (50, 2_000):
        folder = tmp_path / str(many)
        async with sqlite_backend(folder, FakeClock(START)) as backend:
            for tenant in ("acme", "zoo"):
                rows = [failed_row(tenant, number) for number in range(many)]
                await backend.ledger.commit(*[Change(row=row, expected_version=0) for row in rows])
            query.clear()
            rows = await backend.ledger.failed_tasks("acme", limit=10)
            tenants = await backend.ledger.failed_tenants(limit=10)
        assert [task.task_id for task in rows] == [
            f"job-acme_t{number:05}" for number in range(many - 1, many - 11, -1)
        ]
        assert tenants == ["acme", "zoo"]
        connection = apsw.Connection(str(folder / store_file.FILE_NAME))
        steps[many] = [steps_of(connection, sql, values) for sql, values in query]
        connection.close()

    assert steps[50] == steps[2_000]
    assert all(steps[50])


@scenario
async def test_a_damaged_row_and_a_category_of_a_newer_version_are_failures_of_no_known_kind(
    tmp_path: Path,
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        for key, seconds in (("damaged", 3), ("newer", 2), ("fine", 1)):
            await failed_task(backend, key, at=START + seconds * SECOND)
        connection = apsw.Connection(str(tmp_path / store_file.FILE_NAME))
        connection.execute("UPDATE tasks SET rest = '{' WHERE key = 'damaged'")
        connection.execute(
            "UPDATE tasks SET rest = json_set(rest, '$.failure.category', 'sunspots')"
            " WHERE key = 'newer'"
        )
        connection.close()

        rows = await backend.ledger.failed_tasks("acme", limit=10)

    assert [(task.task_id, task.category) for task in rows] == [
        ("job-one_damaged", None),
        ("job-one_newer", None),
        ("job-one_fine", ErrorCategory.VALIDATION),
    ]


def failed_row(tenant: str, number: int) -> TaskRow:
    """A task that failed so many seconds after the start."""
    task = new_task(f"t{number:05}", number=number, job_id=f"job-{tenant}", tenant=tenant)
    locked = claim(task.row).row
    failure = Failure(category=ErrorCategory.VALIDATION, message="broke")
    failed = c.AttemptFailed(fence=locked.fence, failure=failure, jitter=0.0, duration=SECOND)
    return apply_command(locked, failed, now=START + number * SECOND).row


def steps_of(connection: apsw.Connection, sql: str, values: Sequence[Any]) -> int:
    """How many steps SQLite takes for a statement."""
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    connection.set_progress_handler(step, 1)
    list(connection.execute(sql, values))
    return steps
