"""A cancelled task is killed and recorded as cancelled, at any moment of the request."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.tasks import commands as c
from longshore.core.tasks.states import TaskState
from longshore.testing.fake_runner import Script, prints, succeeds
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    NO_WAIT,
    SECOND,
    WITH_QUEUE,
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
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[prints("x")], ending=None))
        await harness.submit(make_task("a"), make_task("b"))
        harness.runner.set_scripts("b", HANGS)

        async with harness.running_worker() as worker:
            await harness.advance(SECOND)
            await harness.transitions.apply_to_task(
                task_id("a"), c.RequestCancel(by="ann", reason="enough")
            )
            await harness.advance(NO_WAIT)
            running = worker.running

        last = (await harness.history("a"))[-1]
        assert harness.runner.children[0].signals == ["SIGTERM"]
        assert harness.runner.children[0].ended_at == SECOND
        assert running == [task_id("b")]
        assert (await harness.task("a")).state is TaskState.CANCELLED
        assert last.type == "Task Cancelled"
        assert (last.body.by, last.body.last_output) == ("ann", 1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancelled_task_that_ignores_the_request_is_killed_for_good(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", STUBBORN)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)
            await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))
            await harness.advance(LEASE.kill_grace)

            assert harness.runner.children[0].signals == ["SIGTERM", "SIGKILL"]
            assert (await harness.task("a")).state is TaskState.CANCELLED


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_cancellation_that_comes_with_the_claim_is_not_missed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS)
        await harness.submit(make_task())

        async def operator_cancels() -> None:
            await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))
            # The worker is woken for it before its claim is answered.
            await received.wait()

        async def note() -> None:
            received.set()

        received = asyncio.Event()
        nudging = InterposedPort(backend.ledger, "wait_for_wake", after=note)
        ledger = InterposedPort(nudging, "commit", after=operator_cancels)
        async with harness.with_ports(ledger=ledger).running_worker():
            await harness.advance(NO_WAIT)

            assert received.is_set()
            assert (await harness.task("a")).state is TaskState.CANCELLED
            assert harness.runner.alive == []


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_claim_whose_answer_was_lost_while_it_was_cancelled_is_not_run(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS)
        await harness.submit(make_task())

        async def operator_cancels() -> None:
            await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        interposed = InterposedPort(backend.ledger, "commit", after=operator_cancels)
        ledger = FlakyPort(interposed, "commit", after_write=True)
        async with harness.with_ports(ledger=ledger).running_worker():
            await harness.advance(SECOND)

            assert ledger.failures == 1
            assert (await harness.task("a")).state is TaskState.CANCELLED
            assert harness.runner.alive == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_attempt_that_is_cancelled_before_it_starts_ends_as_cancelled(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.claim(task_id("a"))
        row = await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        await harness.attempt(row)

        assert (await harness.task("a")).state is TaskState.CANCELLED
        assert harness.runner.specs == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_outcome_that_is_committed_before_the_cancellation_stays(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[SECOND], ending=succeeds(1)))
        await harness.submit(make_task())

        async def operator_cancels() -> None:
            await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        # The first commit is the claim, the second the outcome.
        ledger = InterposedPort(backend.ledger, "commit", before=operator_cancels, at=2)
        async with harness.with_ports(ledger=ledger).running_worker():
            await harness.advance(timedelta(seconds=2))

        row = await harness.task("a")
        assert row.state is TaskState.COMPLETED
        assert row.cancel is None
        assert await harness.documents.load(row.result) == 1
