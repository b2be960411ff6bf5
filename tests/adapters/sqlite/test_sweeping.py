"""What the sweeper asks of the file: every answer is read along an index."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Change
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import apply_command, claim, commit, new_job, new_task
from longshore.testing.contracts.suite import START
from tests.adapters.sqlite.conftest import Query
from tests.execution.conftest import scenario

SECOND = timedelta(seconds=1)


async def something_of_each_kind(backend: Backend) -> None:
    row = replace(new_job().row, total=9, completed=NumberSet([1]), version=1)
    await backend.ledger.commit(Change(row=row, expected_version=0))
    for number, key in enumerate(("a", "parent")):
        locked = await commit(backend, claim(await commit(backend, new_task(key, number=number))))
        done = c.Complete(fence=locked.fence, result=None, duration=SECOND)
        await commit(backend, apply_command(locked, done))
    await commit(backend, new_task("b", number=2, awaits=[1]))


async def every_question(backend: Backend) -> None:
    ledger = backend.ledger
    later = START + SECOND
    await ledger.unqueued_tasks(due_by=later, enqueued_before=later, limit=10)
    await ledger.leased_tasks(limit=10)
    await ledger.leased_tasks(limit=10, expired_by=later)
    await ledger.open_intents(limit=10, after="job-a")
    assert await ledger.unrecorded_ends(ended_by=later, limit=10) == ["job-one_a"]
    assert await ledger.unnotified_dependents(limit=10) == ["job-one_b"]
    await ledger.unreported_ends(limit=10)


@scenario
async def test_every_question_of_the_sweeper_is_answered_by_an_index(
    tmp_path: Path, query: Query
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await something_of_each_kind(backend)
        await every_question(backend)

    connection = apsw.Connection(str(tmp_path / store_file.FILE_NAME))
    steps = [
        step[-1]
        for sql, values in query
        for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)
    ]
    connection.close()

    looks = [step for step in steps if re.match(r"SCAN|SEARCH", step)]
    used = {rows[1] for step in looks if (rows := re.search(r"INDEX (\w+)", step))}
    numbers = ("INDEX", "INTEGER PRIMARY KEY (rowid=?)")
    assert [step for step in looks if not any(text in step for text in numbers)] == []
    assert used == {
        "tasks_leased",
        "jobs_with_intents",
        "tasks_unsettled",
        "tasks_waiting",
        "jobs_unreported",
    }


@scenario
async def test_one_waiting_task_of_very_many_is_found(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        job = replace(new_job().row, total=1_500, completed=NumberSet([1]))
        waiting = [
            new_task(f"t{number:04}", number=number, awaits=[1 if number in (3, 1_201) else 2])
            for number in range(3, 1_203)
        ]
        await backend.ledger.commit(Change(row=job, expected_version=0), *waiting)

        rows = await backend.ledger.unnotified_dependents(limit=10)

        assert rows == ["job-one_t0003", "job-one_t1201"]
        assert await backend.ledger.unnotified_dependents(limit=1) == rows[:1]
        assert await backend.ledger.unnotified_dependents(limit=10, after=rows[0]) == rows[1:]


@scenario
async def test_ends_and_waiting_tasks_of_many_jobs_come_by_job_and_key(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        ended = []
        for number in range(12):
            job_id = f"job-{number:02}"
            row = replace(new_job(job_id).row, total=9, completed=NumberSet([0]), version=1)
            await backend.ledger.commit(Change(row=row, expected_version=0))
            if number in (0, 1, 2, 3, 7, 11):
                recorded = cancelled("recorded", 0, job_id=job_id)
                await backend.ledger.commit(Change(row=recorded, expected_version=0))
                task = cancelled("a", 1, job_id=job_id)
                await backend.ledger.commit(Change(row=task, expected_version=0))
                await commit(backend, new_task("b", number=2, job_id=job_id, awaits=[0]))
                ended.append(task.id)

        later = START + 2 * SECOND
        rows = await backend.ledger.unrecorded_ends(ended_by=later, limit=20)
        rest = await backend.ledger.unrecorded_ends(ended_by=later, limit=20, after=ended[2])
        waiting_ids = await backend.ledger.unnotified_dependents(limit=20)

        assert rows == ended
        assert rest == ended[3:]
        assert waiting_ids == [task_id.replace("_a", "_b") for task_id in ended]


def cancelled(key: str, number: int, **fields: Any) -> Any:
    """A task that was cancelled."""
    pending = new_task(key, number=number, **fields).row
    return apply_command(pending, c.RequestCancel(by="ann"), now=START + SECOND).row
