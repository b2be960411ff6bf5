"""A worker whose agents have budgets, while others cancel, drain, die or are out of reach."""

from pathlib import Path

import pytest

from longshore.core import commands as c
from longshore.core.budgets import Budget
from longshore.core.events.types import Usage
from longshore.core.states import TaskState
from longshore.ports.runner import Used
from longshore.testing.flaky import Flaky
from longshore.testing.runner import Script
from tests.unit.services.ports import Interposed
from tests.unit.services.samples import HANGS, MINUTE
from tests.unit.services.spending import (
    DAY,
    account_of_day,
    account_of_job,
    answers,
    asks,
    staged,
    submit,
    turns,
    usd,
)
from tests.unit.services.stage import (
    BACKENDS,
    SECOND,
    opened,
    scenario,
    task_id,
)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_is_cancelled_when_it_is_parked_is_cancelled(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", Script(says=turns(2)))

        async def cancel() -> None:
            await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann"))

        await submit(stage, budget=0.25)
        # The reads of the job before the second question is refused.
        ledger = Interposed(backend.ledger, "job", before=cancel, at=2)
        async with stage.with_ports(ledger=ledger).working():
            await stage.passes(SECOND)

            row = await stage.task("a")
            assert (row.state, row.parked) == (TaskState.CANCELLED, None)
            assert row.usage.cost_usd == 0.25
            assert (await account_of_job(stage)).spent.cost_usd == 0.25


@scenario
async def test_what_is_drained_is_released_and_what_it_had_reserved_is_free(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", Script(says=[*turns(1), asks(2, 0.25)], ending=None))
        await submit(stage, budget=5.0)
        async with stage.working():
            assert (await account_of_job(stage)).taken.cost_usd == 0.5
        row = await stage.task("a")
        assert (row.state, row.attempts_used) == (TaskState.PENDING, 0)
        account = await account_of_job(stage)
        assert (account.spent.cost_usd, account.holdings) == (0.25, ())


@pytest.mark.parametrize("method", ["account", "commit"])
@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_accounts_that_are_out_of_reach_cost_the_task_no_attempt(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", Script(says=[*turns(1), SECOND, *turns(1)]), Script())
        await submit(stage, budget=5.0)
        accounts = Flaky(backend.accounts, method, times=0)
        async with stage.with_ports(accounts=accounts).working():
            accounts.breaks()
            await stage.passes(20 * SECOND)
            row = await stage.task("a")
            assert "Task Released" in await stage.told("a")
            assert row.attempts_used == 0

            accounts.mend()
            await stage.passes(2 * MINUTE)
            row = await stage.task("a")
            assert (row.state, row.attempts_used) == (TaskState.COMPLETED, 0)
            assert stage.runner.alive == []


@scenario
async def test_nothing_more_is_spent_before_it_is_written_down_what_was(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend, budget={"usd": 5.0})
        stage.runner.plays("a", Script(says=[SECOND, *turns(2)]))
        await submit(stage)
        ledger = Flaky(backend.ledger, "commit", times=0)
        async with stage.with_ports(ledger=ledger).working():
            ledger.breaks()
            await stage.passes(8 * SECOND)
            assert answers(stage) == [[(1, None)]]

            ledger.mend()
            await stage.passes(8 * SECOND)
            assert answers(stage) == [[(1, None), (2, None)]]
            row = await stage.task("a")
            assert (row.state, row.usage.cost_usd) == (TaskState.COMPLETED, 0.5)


@scenario
async def test_an_answer_that_was_lost_reserves_and_spends_nothing_twice(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        stage.runner.plays("a", Script(says=turns(2)))
        await submit(stage, budget=5.0)
        for skip in range(8):
            accounts = Flaky(backend.accounts, "commit", skip=skip, after_the_write=True)
            key = f"request-{skip + 2}"
            async with stage.with_ports(accounts=accounts).working():
                await submit(stage, "a", budget=5.0, request_id=key)
                await stage.passes(MINUTE)
            account = await account_of_job(stage, key)
            row = await stage.task("a", key)
            assert account.spent.cost_usd == row.usage.cost_usd
            assert account.holdings == ()


@scenario
async def test_an_attempt_that_others_have_ended_spends_nothing_more_and_says_nothing(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        said = [*turns(1), SECOND, asks(2, 0.25), Used(usd(9.0), settles=2)]
        stage.runner.plays("a", Script(says=said), Script(says=turns(1)))
        await submit(stage, budget=5.0)
        async with stage.working():
            lost = await stage.lost("a")
            await stage.budgeting.attempt_lost(lost, began=stage.clock.now())
            await stage.passes(2 * MINUTE)

            # The second question was not answered, and the child is dead.
            assert answers(stage) == [[(1, None)], [(1, None)]]
            assert stage.runner.alive == []
            row = await stage.task("a")
            assert (row.state, row.attempt, row.attempts_used) == (TaskState.COMPLETED, 2, 1)
            assert (await account_of_job(stage)).spent.cost_usd == 0.5
            assert row.usage.cost_usd == 0.5


@scenario
async def test_a_worker_that_is_stale_before_it_has_started_a_child_starts_none(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        await submit(stage, budget=5.0)

        async def somebody_else() -> None:
            row = await stage.task("a")
            await stage.lost("a")
            claimed = await stage.claim(row.id, "worker-2")
            await stage.accounting.reserve(
                claimed,
                f"job/{row.spec.job_id}",
                Budget(usd=5.0),
                spent=Usage(),
                reserved=Usage(),
                wanted=usd(1.0),
            )

        accounts = Interposed(backend.accounts, "account", before=somebody_else)
        async with stage.with_ports(accounts=accounts).working():
            await stage.passes(SECOND)

            assert stage.runner.orders == []
            row = await stage.task("a")
            assert row.lease is not None
            assert (row.lease.worker_id, row.attempt) == ("worker-2", 2)
            assert (await account_of_job(stage)).taken.cost_usd == 1.0


@scenario
async def test_a_purse_that_cannot_be_closed_costs_no_outcome(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", Script(says=turns(1)))
        await submit(stage, budget=5.0)
        # One to begin, one for the question, one for the answer; the next is to close.
        accounts = Flaky(backend.accounts, "commit", RuntimeError("a bug"), times=None, skip=3)
        async with stage.with_ports(accounts=accounts).working():
            assert (await stage.task("a")).state is TaskState.COMPLETED
            assert accounts.failures == 1
            assert await stage.messages() == []
        assert (await account_of_job(stage)).spent.cost_usd == 0.25


@scenario
async def test_what_a_dead_worker_had_reserved_is_free_when_its_lease_is_ended(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        stage.runner.plays("a", Script(says=[*turns(1), asks(2, 0.25)], ending=None), HANGS)
        await submit(stage, budget=5.0)
        async with stage.working():
            assert (await account_of_day(stage)).taken.cost_usd == 0.5
            stage.presence.dies("worker-1")
            await stage.sweeper.bury_the_dead()

            for account in (await account_of_day(stage), await account_of_job(stage)):
                assert (account.taken.cost_usd, account.holdings) == (0.25, ())
