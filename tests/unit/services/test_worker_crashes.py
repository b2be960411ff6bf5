"""A worker dies at any call it makes; the next one finishes the work, and no event is doubled."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.queues import QueueDepth
from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.output import Stream
from longshore.ports.runner import StepReport
from longshore.testing.fake_runner import Script, prints, succeeds
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    SECOND,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import crash_at

LARGE = "x" * 5000
WORK = Script(
    reports=[
        prints("one"),
        StepReport("first", 1),
        timedelta(seconds=25),
        prints("two", Stream.STDERR),
    ],
    ending=succeeds(LARGE),
)


async def run_until_crash(harness: ServiceHarness) -> None:
    harness.runner.set_scripts("a", WORK)
    worker = harness.worker("dying")
    running = asyncio.ensure_future(worker.run())
    await harness.advance(timedelta(seconds=27))
    worker.stop()
    worker.release_all()
    await harness.advance(SECOND)
    running.cancel()  # otherwise it repeats what has failed
    await asyncio.gather(running, return_exceptions=True)
    assert harness.runner.alive == []


async def finish_on_another_worker(harness: ServiceHarness) -> None:
    """Another process takes over what is left."""
    harness.runner.set_scripts("a", WORK)
    sweeping = asyncio.ensure_future(harness.sweeper.run())
    dispatching = asyncio.ensure_future(harness.dispatcher.run())
    async with harness.running_worker("next"):
        for _ in range(12):
            await harness.advance(timedelta(seconds=20))
            if (await harness.job()).state.terminal:
                break
        # Until each message that was left behind has been seen again: nothing comes of it.
        await harness.advance(LEASE.duration)
    sweeping.cancel()
    dispatching.cancel()


async def check_done_once(harness: ServiceHarness) -> None:
    row = await harness.task("a")
    notices = await harness.event_types("a")
    assert row.state is TaskState.COMPLETED
    assert notices.count("Task Completed") == 1
    assert notices.count("Task Processing Started") == row.attempt
    assert await harness.documents.load(row.result) == LARGE
    # A worker may die just after it has claimed it.
    after, events = await harness.task("b"), await harness.event_types("b")
    assert (events[0], events[-1]) == ("Task Pending", "Task Completed")
    assert events.count("Task Completed") == 1
    assert events.count("Task Processing Started") == after.attempt
    assert (await harness.job()).state is JobState.COMPLETED
    assert await harness.job_event_types() == ["Job Created", "Job Completed"]
    assert await harness.source.depth("default") == QueueDepth(ready=0, hidden=0, dead_letters=0)
    entries = await harness.backend.output.read(task_id("a"))
    last = [entry.data for entry in entries if entry.attempt == row.attempt]
    assert last == [b"one", b"two"]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("after_the_call", [False, True], ids=["before", "after"])
@scenario
async def test_work_survives_a_worker_that_dies_at_any_call(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    for at in range(1, 200):
        async with open_backend(kind, tmp_path / str(at)) as backend:
            harness = ServiceHarness(backend)
            await harness.submit(make_task("a"), make_task("b", "a"))
            deaths: list[str] = []
            dying = crash_at(backend, at, after_call=after_the_call, crashes=deaths)

            await run_until_crash(ServiceHarness(dying, worker_registry=harness.worker_registry))
            if deaths:
                harness.worker_registry.kill("dying")
            await finish_on_another_worker(harness)

            await check_done_once(harness)
            steps = [spec.checkpoints for spec in harness.runner.specs if spec.key == "a"]
            assert all(stored in ({}, {"first": 1}) for stored in steps)
        if not deaths:
            break
    assert at > 15


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_finished_step_is_not_done_again_after_a_crash(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        harness.runner.set_scripts("a", WORK)
        running = asyncio.ensure_future(harness.worker("dying").run())
        await harness.advance(SECOND)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        harness.worker_registry.kill("dying")

        await finish_on_another_worker(harness)

        assert [spec.checkpoints for spec in harness.runner.specs[:2]] == [{}, {"first": 1}]
        assert (await harness.task("a")).attempts_used == 1
        await check_done_once(harness)
