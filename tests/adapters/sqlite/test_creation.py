"""Jobs that are created together are stored exactly as a general commit stores them."""

import asyncio
import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from longshore.adapters.sqlite.commit import plain_job_values, plain_task_values
from longshore.adapters.sqlite.database import Database, SqliteOptions
from longshore.adapters.sqlite.ledger import SqliteLedger
from longshore.adapters.sqlite.rows import job_values, task_values
from longshore.core.budgets import Budget
from longshore.core.documents import Document
from longshore.core.events.event import EventContext
from longshore.core.events.types import TaskSummary, Usage
from longshore.core.jobs import job as jobs
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks import task as tasks
from longshore.core.tasks.rows import JobSpec, TaskSpec
from longshore.core.tasks.states import Priority
from longshore.ports.ledger import JobCreation
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START

_SELECTS = (
    "SELECT * FROM jobs ORDER BY no",
    "SELECT * FROM tasks ORDER BY no",
    "SELECT * FROM feed ORDER BY position",
    "SELECT * FROM feed_types ORDER BY tenant, type, app, position",
    "SELECT * FROM names ORDER BY no",
    "SELECT * FROM kinds ORDER BY no",
    "SELECT * FROM history_segments",
)


def a_creation(draw: random.Random, number: int) -> JobCreation:
    """A job with some tasks, most of them plain."""

    def rarely() -> bool:
        return draw.random() < 0.15

    now = START + timedelta(milliseconds=draw.randrange(10_000))
    if rarely():
        now += timedelta(microseconds=draw.randrange(1000))
    drawn = f"{draw.getrandbits(64):016x}"
    change_id = "odd change" if rarely() else drawn
    spec = JobSpec(
        id=f"job-{number:024d}",
        tenant=draw.choice(["acme", "other"]),
        app="shop",
        request_id=f"req-{number:024d}" if rarely() else f"request {number}",
        body_hash="00ff" * 16,
        created_at=now - timedelta(milliseconds=7) if rarely() else now,
        name=draw.choice([None, "nightly"]),
        budget=Budget(usd=5) if rarely() else Budget(),
    )
    count = draw.choice([1, 1, 2, 5])
    summaries, created = [], []
    for position in range(count):
        key = f"t{position}"
        document = Document(text='{"n":1}', size=7) if draw.random() < 0.5 else None
        task_spec = TaskSpec(
            id=f"{spec.id}_{key}",
            tenant=spec.tenant,
            app=spec.app,
            job_id=spec.id,
            key=key,
            number=position,
            definition=draw.choice(["resize", "fetch"]),
            definition_version=0,
            created_at=spec.created_at,
            queue=draw.choice(["default", "slow"]),
            priority=draw.choice(list(Priority)),
            requires_review=rarely(),
            not_before=now + timedelta(seconds=draw.randrange(-5, 5)) if rarely() else None,
            input=document,
            parents=Document(text='["t0"]', size=6) if position and rarely() else None,
        )
        awaits = NumberSet([0]) if task_spec.parents else NumberSet()
        change = tasks.create(task_spec, awaits, now=now, change_id=change_id)
        if rarely():
            change = replace(change, row=replace(change.row, usage=Usage(turns=2), revision=3))
        if rarely():
            context = EventContext(origin="operator", source="user")
            events = tuple(replace(event, context=context) for event in change.events)
            change = replace(change, events=events)
        created.append(change)
        shown = None if rarely() else document
        depends_on = ("t0",) if task_spec.parents else ()
        summaries.append(
            TaskSummary(key=key, name=task_spec.definition, depends_on=depends_on, input=shown)
        )
    graph = Document(text=f'{{"keys":["t0"],"names":["{created[0].row.spec.definition}"],"x":1}}')
    if count == 1 and not rarely():
        definition = created[0].row.spec.definition
        text = f'{{"keys":["t0"],"names":["{definition}"],"parents":[[]]}}'
        graph = Document(text=text, size=len(text))
    change = jobs.create(spec, tuple(summaries), graph, now=now, change_id=change_id)
    return JobCreation(change, created)


async def stored_rows(folder: Path, creations: list[JobCreation], *, together: bool) -> list:
    database = Database(folder, FakeClock(), SqliteOptions())
    ledger = SqliteLedger(database)
    for creation in creations:
        if together:
            assert await ledger.create_jobs([creation]) == [()]
        else:
            await ledger.commit(creation.job, *creation.tasks)
    await database.close()
    connection = apsw.Connection(str(database.path))
    return [connection.execute(sql).fetchall() for sql in _SELECTS]


@pytest.mark.parametrize("seed", range(6))
def test_created_rows_histories_and_feed_are_those_of_a_general_commit(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    creations = [a_creation(draw, number) for number in range(60)]

    rows = asyncio.run(stored_rows(tmp_path / "one", creations, together=True))
    expected = asyncio.run(stored_rows(tmp_path / "other", creations, together=False))

    assert rows == expected


def test_plain_values_are_those_of_every_row_and_most_rows_are_plain() -> None:
    draw = random.Random(1)
    plain = 0
    for number in range(500):
        job, created = a_creation(draw, number)
        values = plain_job_values(job.row, graph="g", history=b"h")
        if values is not None:
            assert list(values) == job_values(job.row, graph="g", history=b"h")
        for task in created:
            fast = plain_task_values(task.row, b"h")
            plain += fast is not None
            if fast is not None:
                assert list(fast) == task_values(task.row, None, unsettled=False, history=b"h")

    assert plain > 500


def test_many_jobs_in_one_call_are_one_row_of_the_feed(tmp_path: Path) -> None:
    draw = random.Random(2)
    creations = [a_creation(draw, number) for number in range(40)]

    async def scenario() -> int:
        database = Database(tmp_path, FakeClock(), SqliteOptions())
        await SqliteLedger(database).create_jobs(creations)
        ((count,),) = database.point("SELECT count(*) FROM feed")
        await database.close()
        return int(count)

    assert asyncio.run(scenario()) == 1
