"""Urgent tasks start first and starve no others; delayed tasks wait; queues are independent."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from longshore.core.events.event import to_tick
from longshore.core.queues import LOW_EVERY, NORMAL_EVERY
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import Priority, TaskState
from longshore.settings import load_settings
from longshore.wiring.services import Services
from tests.acceptance.conftest import WorkerProcess, open_services_on, wait_until
from tests.acceptance.history_checks import read_checked_history, starts

BACKENDS = pytest.mark.parametrize("backend", ["memory", "sqlite"])
SOON = timedelta(seconds=1)


def scenario(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @wraps(function)
    def test(**arguments: Any) -> None:
        asyncio.run(function(**arguments))

    return test


@asynccontextmanager
async def open_backend_services(backend: str, folder: Path) -> AsyncIterator[Services]:
    settings = load_settings({"data_dir": folder}, environ={})
    async with open_services_on(backend, settings) as services:
        yield services


@asynccontextmanager
async def running_worker(
    services: Services, *queues: str, concurrency: int = 1
) -> AsyncIterator[None]:
    """A worker of these queues, with a dispatcher and a sweeper beside it."""
    worker = replace(
        services.settings.worker, queues=queues or ("default",), concurrency=concurrency
    )
    settings = replace(services.settings, worker=worker)
    hand = replace(services, settings=settings).worker()
    running = asyncio.ensure_future(hand.run())
    beside = [
        asyncio.ensure_future(services.dispatcher.run()),
        asyncio.ensure_future(services.sweeper.run()),
    ]
    try:
        yield
    finally:
        hand.stop()
        await running
        for item in beside:
            item.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


def make_task(key: str, **fields: Any) -> dict[str, Any]:
    return {"taskId": key, "name": "command", "input": {"argv": ["true"]}, **fields}


def of_priority(priority: Priority, count: int) -> list[dict[str, Any]]:
    name = priority.name.lower()
    return [make_task(f"{name}-{number}", priority=name) for number in range(count)]


async def submit(services: Services, *tasks: dict[str, Any], request_id: str = "r") -> str:
    accepted = await services.producer.submit("default", request_id, {"tasks": list(tasks)})
    return accepted.job.id


async def rows(services: Services, job_id: str) -> list[TaskRow]:
    page = await services.backend.ledger.list_tasks("default", job_id=job_id, limit=1000)
    return list(page.items)


async def completed(services: Services, job_id: str, *keys: str) -> None:
    """Return when these tasks have completed; without keys, all of the job."""

    async def look() -> bool:
        states = await services.backend.ledger.task_states(job_id)
        return all(states[key] is TaskState.COMPLETED for key in keys or states)

    await wait_until(look)


async def tasks_in_start_order(services: Services, job_id: str) -> list[TaskRow]:
    """The tasks that have begun, the first first; each has begun once."""
    begun = []
    for row in await rows(services, job_id):
        _, history = await read_checked_history(services.backend, row.id)
        if starts(history):
            (start,) = starts(history)
            begun.append((start.at, row))
    return [row for _, row in sorted(begun, key=lambda pair: pair[0])]


@BACKENDS
@scenario
async def test_a_stream_of_urgent_tasks_slows_the_others_down_and_never_stops_them(
    backend: str, tmp_path: Path
) -> None:
    async with open_backend_services(backend, tmp_path) as services:
        patient = [*of_priority(Priority.LOW, 2), *of_priority(Priority.NORMAL, 3)]
        job_id = await submit(services, *patient, *of_priority(Priority.HIGH, 3 * LOW_EVERY))

        async with running_worker(services):
            await completed(services, job_id, *(task["taskId"] for task in patient))

        priorities = [row.spec.priority for row in await tasks_in_start_order(services, job_id)]
        lows = [
            position for position, priority in enumerate(priorities) if priority is Priority.LOW
        ]
        normals = [
            position for position, priority in enumerate(priorities) if priority is Priority.NORMAL
        ]
        assert priorities[0] is Priority.HIGH
        # Never more than so many in a row before one of them has its turn.
        assert lows[0] < LOW_EVERY
        assert lows[1] - lows[0] <= LOW_EVERY
        assert normals[0] < LOW_EVERY
        assert all(b - a <= LOW_EVERY for a, b in pairwise(normals))
        # And the urgent ones have nearly all the rest.
        share = NORMAL_EVERY - 1
        assert priorities[: lows[1]].count(Priority.HIGH) >= lows[1] * share // NORMAL_EVERY


@BACKENDS
@scenario
async def test_a_low_task_is_served_while_urgent_ones_keep_coming(
    backend: str, tmp_path: Path
) -> None:
    async with open_backend_services(backend, tmp_path) as services:
        low = await submit(services, *of_priority(Priority.LOW, 1), request_id="low")
        urgent = [await submit(services, *of_priority(Priority.HIGH, 4), request_id="first")]

        async with running_worker(services):
            # As soon as one urgent job is over, the next is there already.
            while (
                await services.backend.ledger.get_task(f"{low}_low-0")
            ).state is TaskState.PENDING:
                name = f"urgent-{len(urgent)}"
                new = await submit(services, *of_priority(Priority.HIGH, 4), request_id=name)
                await completed(services, urgent[-1])
                urgent.append(new)
            await completed(services, low)

        (begun,) = await tasks_in_start_order(services, low)
        before = [
            row
            for job_id in urgent
            for row in await tasks_in_start_order(services, job_id)
            if row.started_at < begun.started_at
        ]
        assert len(before) < LOW_EVERY


@scenario
async def test_each_of_two_workers_serves_a_low_task_within_its_bound(tmp_path: Path) -> None:
    flags = {"data_dir": str(tmp_path), "worker.concurrency": 1}
    async with open_backend_services("sqlite", tmp_path) as services:
        job_id = await submit(
            services, *of_priority(Priority.LOW, 1), *of_priority(Priority.HIGH, 4 * LOW_EVERY)
        )
        workers = [WorkerProcess(flags) for _ in range(2)]
        try:
            await completed(services, job_id, "low-0")
        finally:
            for worker in workers:
                worker.stop()

        by_worker: dict[str, list[str]] = {}
        for row in await tasks_in_start_order(services, job_id):
            _, history = await read_checked_history(services.backend, row.id)
            by_worker.setdefault(starts(history)[0].body.worker_id, []).append(row.spec.key)
        (places,) = [keys.index("low-0") for keys in by_worker.values() if "low-0" in keys]
        assert places < LOW_EVERY


@BACKENDS
@pytest.mark.parametrize("field", ["delay", "runAt"])
@scenario
async def test_a_delayed_task_starts_when_it_is_due_and_delays_no_other(
    backend: str, field: str, tmp_path: Path
) -> None:
    async with open_backend_services(backend, tmp_path) as services:
        now = services.backend.clock.now()
        when: dict[str, Callable[[timedelta], float | datetime]] = {
            "delay": timedelta.total_seconds,
            "runAt": lambda later: now + later,
        }
        job_id = await submit(
            services,
            make_task("tomorrow", priority="high", **{field: when[field](timedelta(days=1))}),
            make_task("soon", priority="high", **{field: when[field](SOON)}),
            make_task("now"),
            make_task("then", dependsOn=["now"]),
        )

        async with running_worker(services):
            await completed(services, job_id, "now", "then", "soon")

        begun = {row.spec.key: row for row in await tasks_in_start_order(services, job_id)}
        due = begun["soon"].spec.not_before
        assert set(begun) == {"now", "then", "soon"}
        assert due >= now + SOON
        assert begun["soon"].started_at >= to_tick(due)


@BACKENDS
@scenario
async def test_a_task_that_depends_on_another_and_is_for_later_waits_for_both(
    backend: str, tmp_path: Path
) -> None:
    async with open_backend_services(backend, tmp_path) as services:
        later = make_task("later", dependsOn=["first"], delay=SOON.total_seconds())
        job_id = await submit(services, make_task("first"), later)

        async with running_worker(services):
            await completed(services, job_id)

        first, second = await tasks_in_start_order(services, job_id)
        assert (first.spec.key, second.spec.key) == ("first", "later")
        assert second.started_at >= to_tick(second.spec.not_before)
        assert second.started_at >= first.finished_at


@BACKENDS
@scenario
async def test_a_worker_takes_only_from_its_own_queues(backend: str, tmp_path: Path) -> None:
    async with open_backend_services(backend, tmp_path) as services:
        job_id = await submit(
            services,
            make_task("report", queue="reports", priority="high"),
            make_task("letter", queue="mail", priority="low"),
            make_task("answer", queue="mail", dependsOn=["letter"]),
            make_task("plain"),
        )

        async with running_worker(services, "mail"):
            await completed(services, job_id, "letter", "answer")
        before = await services.backend.ledger.task_states(job_id)
        async with running_worker(services, "reports", "default"):
            await completed(services, job_id)

        assert before == {
            "report": TaskState.PENDING,
            "letter": TaskState.COMPLETED,
            "answer": TaskState.COMPLETED,
            "plain": TaskState.PENDING,
        }
        assert len(await tasks_in_start_order(services, job_id)) == 4


@BACKENDS
@scenario
async def test_what_comes_later_to_one_queue_keeps_no_worker_from_the_other(
    backend: str, tmp_path: Path
) -> None:
    async with open_backend_services(backend, tmp_path) as services:
        busy = [make_task(f"busy-{number}", queue="busy") for number in range(12)]
        earlier, later = busy[:3], busy[3:]
        quiet = make_task("quiet", queue="quiet")
        job_id = await submit(services, *earlier, quiet, *later)

        async with running_worker(services, "busy", "quiet"):
            await completed(services, job_id, "quiet")

        keys = [row.spec.key for row in await tasks_in_start_order(services, job_id)]
        assert keys.index("quiet") <= len(earlier)
