"""A task that is cancelled is killed and said to be so, whenever the wish comes."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.tasks import commands as c
from longshore.core.tasks.states import TaskState
from longshore.services.worker.attempt import Attempt
from longshore.testing.fake_runner import Script, prints, succeeds
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    NO_WAIT,
    SECOND,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort
from tests.unit.services.samples import HANGS, STUBBORN


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancelled_task_is_killed_at_once_and_its_end_confirmed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        stage.runner.set_scripts("a", Script(reports=[prints("x")], ending=None))
        await stage.submit(make_task("a"), make_task("b"))
        stage.runner.set_scripts("b", HANGS)

        async with stage.running_worker() as worker:
            await stage.advance(SECOND)
            await stage.transitions.apply_to_task(
                task_id("a"), c.RequestCancel(by="ann", reason="enough")
            )
            await stage.advance(NO_WAIT)
            running = worker.running

        last = (await stage.history("a"))[-1]
        assert stage.runner.children[0].signals == ["SIGTERM"]
        assert stage.runner.children[0].ended_at == SECOND
        assert running == [task_id("b")]
        assert (await stage.task("a")).state is TaskState.CANCELLED
        assert last.type == "Task Cancelled"
        assert (last.body.by, last.body.last_output) == ("ann", 1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancelled_task_that_ignores_the_request_is_killed_for_good(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        stage.runner.set_scripts("a", STUBBORN)
        await stage.submit(make_task())

        async with stage.running_worker():
            await stage.advance(SECOND)
            await stage.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))
            await stage.advance(LEASE.kill_grace)

            assert stage.runner.children[0].signals == ["SIGTERM", "SIGKILL"]
            assert (await stage.task("a")).state is TaskState.CANCELLED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancellation_that_comes_with_the_claim_is_not_missed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        stage.runner.set_scripts("a", HANGS)
        await stage.submit(make_task())

        async def somebody_cancels() -> None:
            await stage.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))
            # The worker hears of it before it hears of its claim.
            await heard.wait()

        async def note() -> None:
            heard.set()

        heard = asyncio.Event()
        nudging = InterposedPort(backend.ledger, "wait_for_wake", after=note)
        ledger = InterposedPort(nudging, "commit", after=somebody_cancels)
        async with stage.with_ports(ledger=ledger).running_worker():
            await stage.advance(NO_WAIT)

            assert heard.is_set()
            assert (await stage.task("a")).state is TaskState.CANCELLED
            assert stage.runner.alive == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_claim_whose_answer_was_lost_while_it_was_cancelled_is_not_run(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        stage.runner.set_scripts("a", HANGS)
        await stage.submit(make_task())

        async def somebody_cancels() -> None:
            await stage.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        interposed = InterposedPort(backend.ledger, "commit", after=somebody_cancels)
        ledger = FlakyPort(interposed, "commit", after_write=True)
        async with stage.with_ports(ledger=ledger).running_worker():
            await stage.advance(SECOND)

            assert ledger.failures == 1
            assert (await stage.task("a")).state is TaskState.CANCELLED
            assert stage.runner.alive == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_attempt_whose_row_says_from_the_start_that_it_is_cancelled_ends_so(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        stage.runner.set_scripts("a", HANGS)
        await stage.submit(make_task())
        await stage.claim(task_id("a"))
        row = await stage.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        await Attempt(stage.worker_context(), row, stage.clock.elapsed()).run()

        assert (await stage.task("a")).state is TaskState.CANCELLED
        assert stage.runner.alive == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_outcome_that_is_faster_than_the_cancellation_stands(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        stage.runner.set_scripts("a", Script(reports=[SECOND], ending=succeeds(1)))
        await stage.submit(make_task())

        async def somebody_cancels() -> None:
            await stage.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        # The first commit is the claim, the second the outcome.
        ledger = InterposedPort(backend.ledger, "commit", before=somebody_cancels, at=2)
        async with stage.with_ports(ledger=ledger).running_worker():
            await stage.advance(timedelta(seconds=2))

        row = await stage.task("a")
        assert row.state is TaskState.COMPLETED
        assert row.cancel is None
        assert await stage.documents.load(row.result) == 1
