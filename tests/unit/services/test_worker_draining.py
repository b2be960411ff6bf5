"""A worker that is stopped takes no more work, and its attempts are finished or given back."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.queues import QueueDepth
from longshore.core.tasks.states import TaskState
from longshore.testing.fake_runner import Script, prints
from tests.unit.services.harness import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.port_wrappers import InterposedPort
from tests.unit.services.samples import HANGS


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_stopping_worker_lets_its_attempts_finish_within_the_grace(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[timedelta(seconds=29)]))
        await harness.submit(make_task("a"), make_task("b", delay=5))
        worker = harness.worker()
        running = asyncio.ensure_future(worker.run())
        await harness.advance(SECOND)

        worker.stop()
        await harness.advance(timedelta(seconds=27))
        before = running.done()
        await harness.advance(SECOND)

        assert (before, running.done()) == (False, True)
        assert (await harness.task("a")).state is TaskState.COMPLETED
        assert [spec.key for spec in harness.runner.specs] == ["a"]
        assert harness.worker_registry.calls[-1] == ("deregister", "worker-1")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_attempt_that_outlasts_the_grace_period_is_released_and_costs_no_attempt(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[prints("x")], ending=None), Script())
        await harness.submit(make_task())
        worker = harness.worker()
        running = asyncio.ensure_future(worker.run())
        await harness.advance(SECOND)

        worker.stop()
        await harness.advance(timedelta(seconds=29))
        alive = harness.runner.alive
        await harness.advance(SECOND)
        row = await harness.task("a")
        ready = await harness.source.depth("default")
        async with harness.running_worker("worker-2"):
            await harness.advance(NO_WAIT)

        assert running.done()
        assert alive == ["a"]
        assert row.state is TaskState.PENDING
        assert (row.attempt, row.attempts_used, row.lease) == (1, 0, None)
        assert ready == QueueDepth(ready=1, hidden=0, dead_letters=0)
        history = await harness.history("a")
        (released,) = [event for event in history if event.type == "Task Released"]
        assert released.body.last_output == 1
        assert (await harness.task("a")).state is TaskState.COMPLETED
        assert harness.runner.specs[1].attempt == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_leases_are_kept_while_a_worker_drains(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[timedelta(minutes=3)]))
        await harness.submit(make_task())
        worker = harness.worker(drain_grace=timedelta(minutes=10))
        running = asyncio.ensure_future(worker.run())
        await harness.advance(SECOND)

        worker.stop()
        await harness.advance(timedelta(minutes=3))

        assert running.done()
        assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_second_order_to_stop_gives_everything_back_at_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS)
        await harness.submit(make_task())
        worker = harness.worker()
        running = asyncio.ensure_future(worker.run())
        await harness.advance(SECOND)

        worker.stop()
        worker.release_all()
        await harness.advance(NO_WAIT)

        assert running.done()
        assert harness.runner.alive == []
        assert (await harness.task("a")).state is TaskState.PENDING


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_task_that_is_being_claimed_when_all_are_given_back_is_given_back_too(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS)
        await harness.submit(make_task())

        async def stop_at_once() -> None:
            worker.stop()
            worker.release_all()

        ledger = InterposedPort(backend.ledger, "commit", after=stop_at_once)
        worker = harness.with_ports(ledger=ledger).worker(drain_grace=timedelta(hours=1))
        running = asyncio.ensure_future(worker.run())
        await harness.advance(SECOND)

        assert running.done()
        assert harness.runner.alive == []
        assert (await harness.task("a")).state is TaskState.PENDING


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_stopping_worker_claims_nothing_any_more(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())

        async def stop() -> None:
            worker.stop()

        ledger = InterposedPort(backend.ledger, "get_task", after=stop)
        worker = harness.with_ports(ledger=ledger).worker()
        running = asyncio.ensure_future(worker.run())
        await harness.advance(NO_WAIT)

        assert running.done()
        assert harness.runner.specs == []
        assert (await harness.source.depth("default")).ready == 1
