"""A worker whose agents have budgets, while others cancel, drain, die or are out of reach."""

from pathlib import Path

import pytest

from longshore.core.budgets import Budget
from longshore.core.events.types import Usage
from longshore.core.tasks import commands as c
from longshore.core.tasks.states import TaskState
from longshore.ports.runner import UsageReport
from longshore.testing.fake_runner import Script
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.agent_spending import (
    DAY,
    agent_harness,
    day_budget,
    job_budget,
    spend_answers,
    spend_request,
    spend_turns,
    submit,
    usd,
)
from tests.unit.services.harness import BACKENDS, SECOND, open_backend, scenario, task_id
from tests.unit.services.port_wrappers import InterposedPort
from tests.unit.services.samples import HANGS, MINUTE


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_is_cancelled_when_it_is_parked_is_cancelled(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = await agent_harness(backend)
        stage.runner.set_scripts("a", Script(reports=spend_turns(2)))

        async def cancel() -> None:
            await stage.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        await submit(stage, budget=0.25)
        # The reads of the job before the second question is refused.
        ledger = InterposedPort(backend.ledger, "get_job", before=cancel, at=2)
        async with stage.with_ports(ledger=ledger).running_worker():
            await stage.advance(SECOND)

            row = await stage.task("a")
            assert (row.state, row.parked) == (TaskState.CANCELLED, None)
            assert row.usage.cost_usd == 0.25
            assert (await job_budget(stage)).spent.cost_usd == 0.25


@scenario
async def test_what_is_drained_is_released_and_what_it_had_reserved_is_free(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = await agent_harness(backend)
        stage.runner.set_scripts(
            "a", Script(reports=[*spend_turns(1), spend_request(2, 0.25)], ending=None)
        )
        await submit(stage, budget=5.0)
        async with stage.running_worker():
            assert (await job_budget(stage)).spent_and_reserved.cost_usd == 0.5
        row = await stage.task("a")
        assert (row.state, row.attempts_used) == (TaskState.PENDING, 0)
        account = await job_budget(stage)
        assert (account.spent.cost_usd, account.reservations) == (0.25, ())


@pytest.mark.parametrize("method", ["get", "commit"])
@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_accounts_that_are_out_of_reach_cost_the_task_no_attempt(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = await agent_harness(backend)
        stage.runner.set_scripts(
            "a", Script(reports=[*spend_turns(1), SECOND, *spend_turns(1)]), Script()
        )
        await submit(stage, budget=5.0)
        accounts = FlakyPort(backend.budgets, method, times=0)
        async with stage.with_ports(budgets=accounts).running_worker():
            accounts.fail_always()
            await stage.advance(20 * SECOND)
            row = await stage.task("a")
            assert "Task Released" in await stage.event_types("a")
            assert row.attempts_used == 0

            accounts.recover()
            await stage.advance(2 * MINUTE)
            row = await stage.task("a")
            assert (row.state, row.attempts_used) == (TaskState.COMPLETED, 0)
            assert stage.runner.alive == []


@scenario
async def test_nothing_more_is_spent_before_it_is_written_down_what_was(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = await agent_harness(backend, budget={"usd": 5.0})
        stage.runner.set_scripts("a", Script(reports=[SECOND, *spend_turns(2)]))
        await submit(stage)
        ledger = FlakyPort(backend.ledger, "commit", times=0)
        async with stage.with_ports(ledger=ledger).running_worker():
            ledger.fail_always()
            await stage.advance(8 * SECOND)
            assert spend_answers(stage) == [[(1, None)]]

            ledger.recover()
            await stage.advance(8 * SECOND)
            assert spend_answers(stage) == [[(1, None), (2, None)]]
            row = await stage.task("a")
            assert (row.state, row.usage.cost_usd) == (TaskState.COMPLETED, 0.5)


@scenario
async def test_an_answer_that_was_lost_reserves_and_spends_nothing_twice(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = await agent_harness(backend, day_budget=DAY)
        stage.runner.set_scripts("a", Script(reports=spend_turns(2)))
        await submit(stage, budget=5.0)
        for skip in range(8):
            accounts = FlakyPort(backend.budgets, "commit", skip=skip, after_write=True)
            key = f"request-{skip + 2}"
            async with stage.with_ports(budgets=accounts).running_worker():
                await submit(stage, "a", budget=5.0, request_id=key)
                await stage.advance(MINUTE)
            account = await job_budget(stage, key)
            row = await stage.task("a", key)
            assert account.spent.cost_usd == row.usage.cost_usd
            assert account.reservations == ()


@scenario
async def test_an_attempt_that_others_have_ended_spends_nothing_more_and_says_nothing(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = await agent_harness(backend)
        said = [
            *spend_turns(1),
            SECOND,
            spend_request(2, 0.25),
            UsageReport(usd(9.0), settled_request=2),
        ]
        stage.runner.set_scripts("a", Script(reports=said), Script(reports=spend_turns(1)))
        await submit(stage, budget=5.0)
        async with stage.running_worker():
            lost = await stage.end_lease("a")
            await stage.budget_operations.release_reservations(lost, started_at=stage.clock.now())
            await stage.advance(2 * MINUTE)

            # The second question was not answered, and the child is dead.
            assert spend_answers(stage) == [[(1, None)], [(1, None)]]
            assert stage.runner.alive == []
            row = await stage.task("a")
            assert (row.state, row.attempt, row.attempts_used) == (TaskState.COMPLETED, 2, 1)
            assert (await job_budget(stage)).spent.cost_usd == 0.5
            assert row.usage.cost_usd == 0.5


@scenario
async def test_a_worker_that_is_stale_before_it_has_started_a_child_starts_none(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = await agent_harness(backend)
        await submit(stage, budget=5.0)

        async def somebody_else() -> None:
            row = await stage.task("a")
            await stage.end_lease("a")
            claimed = await stage.claim(row.id, "worker-2")
            await stage.reservations.reserve(
                claimed,
                f"job/{row.spec.job_id}",
                Budget(usd=5.0),
                spent=Usage(),
                reserved=Usage(),
                requested=usd(1.0),
            )

        accounts = InterposedPort(backend.budgets, "get", before=somebody_else)
        async with stage.with_ports(budgets=accounts).running_worker():
            await stage.advance(SECOND)

            assert stage.runner.specs == []
            row = await stage.task("a")
            assert row.lease is not None
            assert (row.lease.worker_id, row.attempt) == ("worker-2", 2)
            assert (await job_budget(stage)).spent_and_reserved.cost_usd == 1.0


@scenario
async def test_a_purse_that_cannot_be_closed_costs_no_outcome(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = await agent_harness(backend)
        stage.runner.set_scripts("a", Script(reports=spend_turns(1)))
        await submit(stage, budget=5.0)
        # One to begin, one for the question, one for the answer; the next is to close.
        accounts = FlakyPort(backend.budgets, "commit", RuntimeError("a bug"), times=None, skip=3)
        async with stage.with_ports(budgets=accounts).running_worker():
            assert (await stage.task("a")).state is TaskState.COMPLETED
            assert accounts.failures == 1
            assert await stage.messages() == []
        assert (await job_budget(stage)).spent.cost_usd == 0.25


@scenario
async def test_what_a_dead_worker_had_reserved_is_free_when_its_lease_is_ended(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = await agent_harness(backend, day_budget=DAY)
        stage.runner.set_scripts(
            "a", Script(reports=[*spend_turns(1), spend_request(2, 0.25)], ending=None), HANGS
        )
        await submit(stage, budget=5.0)
        async with stage.running_worker():
            assert (await day_budget(stage)).spent_and_reserved.cost_usd == 0.5
            stage.worker_registry.kill("worker-1")
            await stage.sweeper.reap_dead_workers()

            for account in (await day_budget(stage), await job_budget(stage)):
                assert (account.spent_and_reserved.cost_usd, account.reservations) == (0.25, ())
