"""Jobs that are created together have the rows, events and feed that core decides."""

import asyncio
import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.database import Database, SqliteOptions
from longshore.adapters.sqlite.ledger import SqliteLedger
from longshore.core.budgets import Budget
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.documents import make_document
from longshore.core.events.event import Event
from longshore.core.jobs.planning import initial_target, plan_tasks
from longshore.core.jobs.submission import TaskRequest
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.rows import JobSpec
from longshore.core.tasks.states import Priority
from longshore.errors import VersionConflict
from longshore.ports.backend import Backend
from longshore.ports.ledger import JobCreation
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START

_DEFINITIONS = {
    "resize": Definition(name="resize", runner=RunnerKind.COMMAND),
    "fetch": Definition(
        name="fetch",
        runner=RunnerKind.COMMAND,
        version=3,
        queue="slow",
        priority=Priority.LOW,
        retry=RetryPolicy(max_attempts=7),
        requires_review=True,
    ),
}


def a_creation(draw: random.Random, number: int) -> JobCreation:
    """A job with some tasks, most of them without options."""

    def rarely(value: Any) -> Any:
        return value if draw.random() < 0.15 else None

    now = START + timedelta(milliseconds=draw.randrange(10_000))
    if rarely(True):
        now += timedelta(microseconds=draw.randrange(1000))
    # Some of these ids occur twice.
    number = draw.randrange(number + 1) if rarely(True) else number
    spec = JobSpec(
        id=f"job-{number:024d}",
        tenant=draw.choice(["acme", "other"]),
        app="shop",
        request_id=f"req-{number:024d}" if rarely(True) else f"request {number}",
        body_hash="00ff" * 16,
        created_at=now,
        name=draw.choice([None, "nightly"]),
        budget=Budget(usd=5) if rarely(True) else Budget(),
    )
    requests: list[TaskRequest] = []
    for position in range(draw.choice([1, 1, 2, 5])):
        earlier = [request.key for request in requests]
        due = now + timedelta(microseconds=draw.randrange(-5000, 5000))
        request = TaskRequest(
            key=f"t{position}",
            definition=draw.choice(list(_DEFINITIONS)),
            parents=tuple(draw.sample(earlier, draw.randrange(len(earlier) + 1))),
            input=draw.choice([None, {"n": position}, {"text": "ü" * 700}]),
            queue=rarely("fast"),
            priority=rarely(Priority.HIGH),
            max_attempts=rarely(9),
            delay=rarely(timedelta(seconds=draw.randrange(3))),
        )
        requests.append(request if request.delay else replace(request, run_at=rarely(due)))
    plan = plan_tasks(initial_target(spec), requests, _DEFINITIONS, retry=RetryPolicy())
    graph, _ = make_document(plan.graph.to_json(), "graph")
    change_id = rarely("odd change") or f"{draw.getrandbits(64):016x}"
    return JobCreation(spec=spec, plan=plan, graph=graph, change_id=change_id)


async def stored(backend: Backend, creations: list[JobCreation]) -> Any:
    """The rows and the histories of all jobs and tasks, and the events of the feed."""
    rows: dict[str, Any] = {}
    histories: dict[tuple[str, str], list[Event]] = {}
    for creation in creations:
        spec = creation.spec
        rows[spec.id] = await backend.ledger.get_job(spec.id)
        histories[spec.tenant, spec.id] = await backend.events.history(
            spec.tenant, f"JOB#{spec.id}"
        )
        ids = [task.spec.id for task in creation.plan.tasks]
        for task_id in ids:
            rows[task_id] = await backend.ledger.get_task(task_id)
            histories[spec.tenant, task_id] = await backend.events.history(
                spec.tenant, f"TASK#{task_id}"
            )
    # Events of one commit are ordered by entity only: a batch is one commit.
    feed = [
        sorted(event.id for event in (await backend.events.query(tenant, limit=10_000)).items)
        for tenant in ("acme", "other")
    ]
    return rows, histories, feed


async def expected_answer(backend: Backend, creation: JobCreation) -> Any:
    """Create a job as the rules of core say, by a general commit."""
    job, tasks = creation.changes()
    try:
        await backend.ledger.commit(job, *tasks)
    except VersionConflict as conflict:
        return (conflict.row_id, conflict.expected)
    return ()


def test_rows_histories_and_feed_are_those_of_a_general_commit(tmp_path: Path) -> None:
    async def scenario(seed: int, direct: Backend, general: Backend) -> None:
        draw = random.Random(seed)
        creations = [a_creation(draw, number) for number in range(40)]
        creations += draw.sample(creations, 3)  # the answers were lost
        answers: list[Any] = []
        left = list(creations)
        while left:
            count = draw.choice([1, 2, 9])
            batch, left = left[:count], left[count:]
            answers += [
                (answer.row_id, answer.expected) if isinstance(answer, VersionConflict) else answer
                for answer in await direct.ledger.create_jobs(batch)
            ]

        expected = [await expected_answer(general, creation) for creation in creations]

        assert answers == expected
        assert any(expected)
        rows, histories, feed = await stored(direct, creations)
        assert (rows, histories, feed) == await stored(general, creations)
        for creation, answer in zip(creations, expected, strict=True):
            if answer == ():
                job, tasks = creation.changes()
                assert rows[job.row.id] == job.row
                assert histories[job.row.spec.tenant, job.row.id] == list(job.events)
                assert [rows[task.row.id] for task in tasks] == [task.row for task in tasks]

    async def with_backends(seed: int) -> None:
        async with (
            sqlite_backend(tmp_path / f"direct-{seed}", FakeClock()) as direct,
            sqlite_backend(tmp_path / f"general-{seed}", FakeClock()) as general,
        ):
            await scenario(seed, direct, general)

    for seed in range(6):
        asyncio.run(with_backends(seed))


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


def test_a_refused_creation_leaves_nothing(tmp_path: Path) -> None:
    draw = random.Random(3)
    first, second = (a_creation(draw, 0) for _ in range(2))
    counts = [
        *("SELECT count(*) FROM jobs", "SELECT count(*) FROM tasks", "SELECT count(*) FROM feed"),
        "SELECT total(length(history)) FROM jobs",
    ]

    async def counts_after(*calls: list[JobCreation]) -> list[Any]:
        database = Database(tmp_path, FakeClock(), SqliteOptions())
        for creations in calls:
            await SqliteLedger(database).create_jobs(creations)
        await database.close()
        connection = apsw.Connection(str(database.path))
        values = [connection.execute(sql).get for sql in counts]
        connection.close()
        return values

    before = asyncio.run(counts_after([first]))

    assert asyncio.run(counts_after([second], [second, first])) == before
