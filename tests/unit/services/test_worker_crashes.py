"""A worker dies at any call it makes; the next one finishes the work, and nothing is told twice."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.states import JobState, TaskState
from longshore.ports.output import Stream
from longshore.ports.queue import Depth
from longshore.ports.runner import StepDone
from longshore.testing.runner import Script, prints, succeeds
from tests.unit.services.ports import crashing
from tests.unit.services.stage import (
    BACKENDS,
    LEASE,
    SECOND,
    Stage,
    a_task,
    opened,
    scenario,
    task_id,
)

LARGE = "x" * 5000
WORK = Script(
    says=[prints("one"), StepDone("first", 1), timedelta(seconds=25), prints("two", Stream.STDERR)],
    ending=succeeds(LARGE),
)


async def run_until_it_dies(stage: Stage) -> None:
    stage.runner.plays("a", WORK)
    worker = stage.worker("dying")
    running = asyncio.ensure_future(worker.run())
    await stage.passes(timedelta(seconds=27))
    worker.stop()
    worker.end_all()
    await stage.passes(SECOND)
    await asyncio.gather(running, return_exceptions=True)
    assert stage.runner.alive == []


async def work_goes_on(stage: Stage) -> None:
    """Another process takes over what is left."""
    stage.runner.plays("a", WORK)
    sweeping = asyncio.ensure_future(stage.sweeper.run())
    dispatching = asyncio.ensure_future(stage.dispatcher.run())
    async with stage.working("next"):
        for _ in range(12):
            await stage.passes(timedelta(seconds=20))
            if (await stage.job()).state.terminal:
                break
        # Until each message that was left behind has been seen again: nothing comes of it.
        await stage.passes(LEASE.lasts)
    sweeping.cancel()
    dispatching.cancel()


async def everything_is_done_once(stage: Stage) -> None:
    row = await stage.task("a")
    told = await stage.told("a")
    assert row.state is TaskState.COMPLETED
    assert told.count("Task Completed") == 1
    assert told.count("Task Processing Started") == row.attempt
    assert await stage.documents.load(row.result) == LARGE
    assert await stage.told("b") == ["Task Pending", "Task Processing Started", "Task Completed"]
    assert (await stage.job()).state is JobState.COMPLETED
    assert await stage.job_told() == ["Job Created", "Job Completed"]
    assert await stage.backend.queue.depth("default") == Depth(ready=0, hidden=0, dead=0)
    entries = await stage.backend.output.read(task_id("a"))
    last = [entry.data for entry in entries if entry.attempt == row.attempt]
    assert last == [b"one", b"two"]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_work_survives_a_worker_that_dies_at_any_call(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    for at in range(1, 200):
        async with opened(kind, tmp_path / str(at)) as backend:
            stage = Stage(backend)
            await stage.submit(a_task("a"), a_task("b", "a"))
            deaths: list[str] = []
            dying = crashing(backend, at, after_the_call=after_the_call, deaths=deaths)

            await run_until_it_dies(Stage(dying, presence=stage.presence))
            if deaths:
                stage.presence.dies("dying")
            await work_goes_on(stage)

            await everything_is_done_once(stage)
            steps = [order.checkpoints for order in stage.runner.orders if order.key == "a"]
            assert all(kept in ({}, {"first": 1}) for kept in steps)
        if not deaths:
            break
    assert at > 15


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_finished_step_is_not_done_again_after_a_crash(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task("a"), a_task("b", "a"))
        stage.runner.plays("a", WORK)
        running = asyncio.ensure_future(stage.worker("dying").run())
        await stage.passes(SECOND)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        stage.presence.dies("dying")

        await work_goes_on(stage)

        assert [order.checkpoints for order in stage.runner.orders[:2]] == [{}, {"first": 1}]
        assert (await stage.task("a")).attempts_used == 1
        await everything_is_done_once(stage)
