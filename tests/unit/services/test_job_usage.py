"""What a job cost: all that its tasks that have ended spent, each counted once."""

from pathlib import Path

import pytest

from longshore.core.budgets import BudgetScope, BudgetUnit
from longshore.core.events.types import Usage
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import JobState
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    SECOND,
    TENANT,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import Crash, InterposedPort

# Sums of quarters are exact.
ONE_USAGE = Usage(input_tokens=100, output_tokens=10, cache_read_tokens=5, turns=1, cost_usd=0.25)
TWO_USAGES, THREE_USAGES = ONE_USAGE + ONE_USAGE, ONE_USAGE + ONE_USAGE + ONE_USAGE
NOTHING = Usage()


async def complete(harness: ServiceHarness, key: str) -> TaskRow:
    claimed = await harness.claim(task_id(key))
    done = c.Complete(fence=claimed.fence, result=None, duration=SECOND, usage=ONE_USAGE)
    return await harness.transitions.apply_to_task(claimed.id, done, row=claimed)


async def fail(
    harness: ServiceHarness, key: str, category: ErrorCategory = ErrorCategory.AUTH
) -> TaskRow:
    claimed = await harness.claim(task_id(key))
    failed = c.AttemptFailed(
        fence=claimed.fence,
        failure=Failure(category=category, message="broke"),
        jitter=0.0,
        duration=SECOND,
        usage=ONE_USAGE,
    )
    return await harness.transitions.apply_to_task(claimed.id, failed, row=claimed)


async def park(harness: ServiceHarness, key: str) -> TaskRow:
    claimed = await harness.claim(task_id(key))
    parked = c.Park(
        fence=claimed.fence,
        scope=BudgetScope.TASK,
        unit=BudgetUnit.USD,
        reason="spent",
        duration=SECOND,
        usage=ONE_USAGE,
    )
    return await harness.transitions.apply_to_task(claimed.id, parked, row=claimed)


async def usage(harness: ServiceHarness) -> Usage:
    await harness.dispatch()
    return (await harness.job()).usage


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_costs_what_its_tasks_cost_that_have_ended(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"), make_task("c"), make_task("d"))

        await park(harness, "a")
        resting = await usage(harness)
        await complete(harness, "b")
        await fail(harness, "c")
        ended = await usage(harness)
        await harness.operator_commands.cancel_task(TENANT, task_id("a"), by="ann")
        cancelled = await usage(harness)

        assert (resting, ended, cancelled) == (NOTHING, TWO_USAGES, THREE_USAGES)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_attempts_that_failed_or_were_parked_are_paid_for(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a", maxAttempts=3))

        await fail(harness, "a", ErrorCategory.NETWORK)
        await harness.advance(SECOND * 600)
        await park(harness, "a")
        added = c.Unpark(scope=BudgetScope.TASK, by="ann")
        await harness.transitions.apply_to_task(task_id("a"), added)
        await complete(harness, "a")

        assert await usage(harness) == THREE_USAGES


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_end_with_many_events_is_counted_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        await complete(harness, "a")

        once = await usage(harness)
        for process in (harness, other):
            await process.dispatcher.settle([task_id("a"), task_id("b")])
            await process.sweeper.sweep()

        assert (once, await usage(harness), await usage(other)) == (ONE_USAGE, ONE_USAGE, ONE_USAGE)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_is_resumed_counts_again_when_it_ends_with_all_its_rounds(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        await complete(harness, "b")
        await fail(harness, "a")
        before = await usage(harness)

        await harness.operator_commands.resume(job_id(), [task_id("a")], by="ann")
        meanwhile = await usage(harness)
        await complete(harness, "a")

        assert (before, meanwhile, await usage(harness)) == (TWO_USAGES, ONE_USAGE, THREE_USAGES)
        assert (await harness.job()).state is JobState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_end_or_a_resume_whose_answer_was_lost_is_counted_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        await complete(harness, "b")
        await fail(harness, "a")

        ending = harness.with_ports(ledger=FlakyPort(backend.ledger, "commit", after_write=True))
        await harness.advance_until_done(ending.dispatcher.settle([task_id("a"), task_id("b")]))
        ended = await usage(harness)
        again = harness.with_ports(ledger=FlakyPort(backend.ledger, "commit", after_write=True))
        await harness.advance_until_done(
            again.operator_commands.resume(job_id(), [task_id("a")], by="ann")
        )

        assert (ended, await usage(harness)) == (TWO_USAGES, ONE_USAGE)


@scenario
async def test_after_a_crash_during_a_resume_the_old_end_is_not_counted_again(
    tmp_path: Path,
) -> None:
    # Here a job is committed before its tasks.
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))
        await fail(harness, "a")
        assert await usage(harness) == ONE_USAGE
        dying = harness.with_ports(ledger=InterposedPort(backend.ledger, "commit", after=_die))
        with pytest.raises(Crash):
            await dying.operator_commands.resume(job_id(), [task_id("a")], by="ann")

        await harness.dispatcher.settle([task_id("a")])
        taken_back = await usage(harness)
        await harness.sweeper.sweep()
        await complete(harness, "a")

        assert (taken_back, await usage(harness)) == (NOTHING, TWO_USAGES)


async def _die() -> None:
    raise Crash
