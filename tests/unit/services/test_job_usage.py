"""What a job cost: all that its tasks that have ended spent, each counted once."""

from pathlib import Path

import pytest

from longshore.core import commands as c
from longshore.core.budgets import Scope
from longshore.core.events.types import Usage
from longshore.core.failures import ErrorCategory, Failure
from longshore.core.rows import TaskRow
from longshore.core.states import JobState
from longshore.testing.flaky import Flaky
from tests.unit.services.ports import Crash, Interposed
from tests.unit.services.stage import (
    BACKENDS,
    SECOND,
    TENANT,
    Stage,
    a_task,
    job_id,
    opened,
    scenario,
    task_id,
)

# Sums of quarters are exact.
ONE = Usage(input_tokens=100, output_tokens=10, cache_read_tokens=5, turns=1, cost_usd=0.25)
TWO, THREE = ONE + ONE, ONE + ONE + ONE
NOTHING = Usage()


async def complete(stage: Stage, key: str) -> TaskRow:
    claimed = await stage.claim(task_id(key))
    done = c.Complete(fence=claimed.fence, result=None, duration=SECOND, usage=ONE)
    return await stage.transitions.task(claimed.id, done, row=claimed)


async def fail(stage: Stage, key: str, category: ErrorCategory = ErrorCategory.AUTH) -> TaskRow:
    claimed = await stage.claim(task_id(key))
    failed = c.AttemptFailed(
        fence=claimed.fence,
        failure=Failure(category=category, message="broke"),
        roll=0.0,
        duration=SECOND,
        usage=ONE,
    )
    return await stage.transitions.task(claimed.id, failed, row=claimed)


async def park(stage: Stage, key: str) -> TaskRow:
    claimed = await stage.claim(task_id(key))
    parked = c.Park(
        fence=claimed.fence, scope=Scope.TASK, reason="spent", duration=SECOND, usage=ONE
    )
    return await stage.transitions.task(claimed.id, parked, row=claimed)


async def usage(stage: Stage) -> Usage:
    await stage.dispatch()
    return (await stage.job()).usage


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_costs_what_its_tasks_cost_that_have_ended(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task("a"), a_task("b"), a_task("c"), a_task("d"))

        await park(stage, "a")
        resting = await usage(stage)
        await complete(stage, "b")
        await fail(stage, "c")
        ended = await usage(stage)
        await stage.cancelling.cancel_task(TENANT, task_id("a"), by="ann")
        cancelled = await usage(stage)

        assert (resting, ended, cancelled) == (NOTHING, TWO, THREE)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_attempts_that_failed_or_were_parked_are_paid_for(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task("a", maxAttempts=3))

        await fail(stage, "a", ErrorCategory.NETWORK)
        await stage.passes(SECOND * 600)
        await park(stage, "a")
        added = c.Unpark(scope=Scope.TASK, by="ann")
        await stage.transitions.task(task_id("a"), added)
        await complete(stage, "a")

        assert await usage(stage) == THREE


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_end_that_is_told_often_is_counted_once(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, other = Stage(backend), Stage(backend)
        await stage.submit(a_task("a"), a_task("b"))
        await complete(stage, "a")

        once = await usage(stage)
        for each in (stage, other):
            await each.dispatcher.settle([task_id("a"), task_id("b")])
            await each.sweeper.sweep()

        assert (once, await usage(stage), await usage(other)) == (ONE, ONE, ONE)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_is_resumed_counts_again_when_it_ends_with_all_its_rounds(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task("a"), a_task("b"))
        await complete(stage, "b")
        await fail(stage, "a")
        before = await usage(stage)

        await stage.resuming.resume(job_id(), [task_id("a")], by="ann")
        meanwhile = await usage(stage)
        await complete(stage, "a")

        assert (before, meanwhile, await usage(stage)) == (TWO, ONE, THREE)
        assert (await stage.job()).state is JobState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_end_or_a_resume_whose_answer_was_lost_is_counted_once(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task("a"), a_task("b"))
        await complete(stage, "b")
        await fail(stage, "a")

        ending = stage.with_ports(ledger=Flaky(backend.ledger, "commit", after_the_write=True))
        await stage.in_time(ending.dispatcher.settle([task_id("a"), task_id("b")]))
        ended = await usage(stage)
        again = stage.with_ports(ledger=Flaky(backend.ledger, "commit", after_the_write=True))
        await stage.in_time(again.resuming.resume(job_id(), [task_id("a")], by="ann"))

        assert (ended, await usage(stage)) == (TWO, ONE)


@scenario
async def test_whoever_dies_while_a_task_is_resumed_its_old_end_is_not_counted_again(
    tmp_path: Path,
) -> None:
    # Here a job is committed before its tasks.
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task("a"))
        await fail(stage, "a")
        assert await usage(stage) == ONE
        dying = stage.with_ports(ledger=Interposed(backend.ledger, "commit", after=_die))
        with pytest.raises(Crash):
            await dying.resuming.resume(job_id(), [task_id("a")], by="ann")

        await stage.dispatcher.settle([task_id("a")])
        taken_back = await usage(stage)
        await stage.sweeper.sweep()
        await complete(stage, "a")

        assert (taken_back, await usage(stage)) == (NOTHING, TWO)


async def _die() -> None:
    raise Crash
