"""No child can be started now: the task is given back, costs no attempt, and no loop spins."""

from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.tasks import commands as c
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendUnavailable
from longshore.ports.runner import RunnerBroken
from longshore.testing.fake_runner import Script
from tests.unit.services.harness import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)

NOT_NOW = Script(start_error=BackendUnavailable("no child could be started: out of processes"))
MOMENT = timedelta(milliseconds=1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_no_child_could_be_started_for_is_given_back_and_costs_no_attempt(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", NOT_NOW, Script())
        await harness.submit(make_task(maxAttempts=1))

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=5))

        row = await harness.task("a")
        released = (await harness.history("a"))[2]
        assert (row.state, row.attempt, row.attempts_used) == (TaskState.COMPLETED, 2, 0)
        assert released.type == "Task Released"
        assert released.body.reason == "no child could be started: out of processes"
        assert (await harness.source.depth("default")).hidden == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_pause_before_it_is_given_back_doubles_up_to_a_limit(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        # Without pauses, it would be started eight times in the first moment, and not without end.
        harness.runner.set_scripts("a", *[NOT_NOW] * 8, Script())
        await harness.submit(make_task())

        async with harness.running_worker():
            begun = []
            for pause in (1, 2, 4, 8, 16, 30, 30):
                await harness.advance(timedelta(seconds=pause) - MOMENT)
                begun.append(len(harness.runner.specs))
                await harness.advance(MOMENT)

        assert begun == [1, 2, 3, 4, 5, 6, 7]
        assert (await harness.task("a")).attempts_used == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_counted_before_does_not_make_the_pause_longer(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.claim(task_id("a"))
        await harness.end_lease("a")
        harness.runner.set_scripts("a", NOT_NOW)

        async with harness.running_worker():
            await harness.advance(SECOND)

            assert len(harness.runner.specs) == 2
            assert (await harness.task("a")).attempts_used == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancellation_does_not_wait_for_the_end_of_the_pause(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", NOT_NOW)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(MOMENT)
            await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))
            await harness.advance(NO_WAIT)

            assert (await harness.task("a")).state is TaskState.CANCELLED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_stops_does_not_wait_for_the_end_of_the_pause(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", NOT_NOW)
        await harness.submit(make_task())

        async with harness.running_worker() as worker:
            await harness.advance(MOMENT)
            worker.stop()
            worker.release_all()
            await harness.advance(NO_WAIT)

            assert (await harness.task("a")).state is TaskState.PENDING
            assert (await harness.event_types("a"))[-1] == "Task Released"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_whose_lease_is_lost_in_the_pause_is_left_to_its_new_holder(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", NOT_NOW)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(MOMENT)
            await harness.end_lease("a")
            taken = await harness.claim(task_id("a"), "other")
            await harness.advance(SECOND)

            row = await harness.task("a")
            assert (row.lease, row.version) == (taken.lease, taken.version)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_can_start_no_child_any_more_ends_with_the_reason(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        broken = RunnerBroken("the fork server ended while it loaded tasks: exit code 3")
        harness.runner.set_scripts("a", Script(start_error=broken))
        await harness.submit(make_task("a", maxAttempts=1), make_task("b", "a"))

        with pytest.raises(RunnerBroken, match="exit code 3"):
            await harness.advance_until_done(harness.worker("w").run())

        row = await harness.task("a")
        released = (await harness.history("a"))[-1]
        assert (row.state, row.attempt, row.attempts_used) == (TaskState.PENDING, 1, 0)
        assert (released.type, released.body.reason) == ("Task Released", str(broken))
        assert harness.worker_registry.calls[-1] == ("deregister", "w")
