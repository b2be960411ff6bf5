"""A worker whose agents have budgets, while others cancel, drain, die or are out of reach."""

from pathlib import Path

import pytest

from longshore.core.budgets import Budget, Reservation
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
from tests.unit.services.harness import BACKENDS, SECOND, TENANT, open_backend, scenario, task_id
from tests.unit.services.port_wrappers import InterposedPort
from tests.unit.services.samples import HANGS, MINUTE


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_is_cancelled_when_it_is_parked_is_cancelled(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", Script(reports=spend_turns(2)))

        async def cancel() -> None:
            await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        await submit(harness, budget=0.25)
        # The reads of the job before the second question is refused.
        ledger = InterposedPort(backend.ledger, "get_job", before=cancel, at=2)
        async with harness.with_ports(ledger=ledger).running_worker():
            await harness.advance(SECOND)

            row = await harness.task("a")
            assert (row.state, row.parked) == (TaskState.CANCELLED, None)
            assert row.usage.cost_usd == 0.25
            assert (await job_budget(harness)).spent.cost_usd == 0.25


@scenario
async def test_a_drained_attempt_is_released_and_its_reservation_is_free(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts(
            "a", Script(reports=[*spend_turns(1), spend_request(2, 0.25)], ending=None)
        )
        await submit(harness, budget=5.0)
        async with harness.running_worker():
            assert (await job_budget(harness)).spent_and_reserved.cost_usd == 0.5
        row = await harness.task("a")
        assert (row.state, row.attempts_used) == (TaskState.PENDING, 0)
        account = await job_budget(harness)
        assert (account.spent.cost_usd, account.reservations) == (0.25, ())


@pytest.mark.parametrize("method", ["get", "commit"])
@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_accounts_that_are_out_of_reach_cost_the_task_no_attempt(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts(
            "a", Script(reports=[*spend_turns(1), SECOND, *spend_turns(1)]), Script()
        )
        await submit(harness, budget=5.0)
        accounts = FlakyPort(backend.budgets, method, times=0)
        async with harness.with_ports(budgets=accounts).running_worker():
            accounts.fail_always()
            await harness.advance(20 * SECOND)
            row = await harness.task("a")
            assert "Task Released" in await harness.event_types("a")
            assert row.attempts_used == 0

            accounts.recover()
            await harness.advance(2 * MINUTE)
            row = await harness.task("a")
            assert (row.state, row.attempts_used) == (TaskState.COMPLETED, 0)
            assert harness.runner.alive == []


@scenario
async def test_nothing_more_is_spent_before_it_is_written_down_what_was(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, budget={"usd": 5.0})
        harness.runner.set_scripts("a", Script(reports=[SECOND, *spend_turns(2)]))
        await submit(harness)
        ledger = FlakyPort(backend.ledger, "commit", times=0)
        async with harness.with_ports(ledger=ledger).running_worker():
            ledger.fail_always()
            await harness.advance(8 * SECOND)
            assert spend_answers(harness) == [[(1, None)]]

            ledger.recover()
            await harness.advance(8 * SECOND)
            assert spend_answers(harness) == [[(1, None), (2, None)]]
            row = await harness.task("a")
            assert (row.state, row.usage.cost_usd) == (TaskState.COMPLETED, 0.5)


@scenario
async def test_an_answer_that_was_lost_reserves_and_spends_nothing_twice(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        harness.runner.set_scripts("a", Script(reports=spend_turns(2)))
        await submit(harness, budget=5.0)
        for skip in range(8):
            accounts = FlakyPort(backend.budgets, "commit", skip=skip, after_write=True)
            key = f"request-{skip + 2}"
            async with harness.with_ports(budgets=accounts).running_worker():
                await submit(harness, "a", budget=5.0, request_id=key)
                await harness.advance(MINUTE)
            account = await job_budget(harness, key)
            row = await harness.task("a", key)
            assert account.spent.cost_usd == row.usage.cost_usd
            assert account.reservations == ()


@scenario
async def test_an_attempt_that_another_process_ended_spends_and_reports_nothing(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        message = [
            *spend_turns(1),
            SECOND,
            spend_request(2, 0.25),
            UsageReport(usd(9.0), settled_request=2),
        ]
        harness.runner.set_scripts("a", Script(reports=message), Script(reports=spend_turns(1)))
        await submit(harness, budget=5.0)
        async with harness.running_worker():
            lost = await harness.end_lease("a")
            await harness.reservations.close_lost_attempt(lost)
            await harness.advance(2 * MINUTE)

            # The second question was not answered, and the child is dead.
            assert spend_answers(harness) == [[(1, None)], [(1, None)]]
            assert harness.runner.alive == []
            row = await harness.task("a")
            assert (row.state, row.attempt, row.attempts_used) == (TaskState.COMPLETED, 2, 1)
            assert (await job_budget(harness)).spent.cost_usd == 0.5
            assert row.usage.cost_usd == 0.5


@scenario
async def test_nothing_is_spent_after_the_report_that_found_the_lease_lost(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, budget={"usd": 5.0})
        reports = spend_turns(2)
        # The lease ends while the first answer of the model is on its way.
        late = [reports[0], SECOND, *reports[1:]]
        harness.runner.set_scripts("a", Script(reports=late, ignores_sigterm=True))
        await submit(harness)
        async with harness.running_worker():
            await harness.advance(SECOND / 2)
            await harness.end_lease("a")
            await harness.advance(SECOND)
            assert spend_answers(harness)[0] == [(1, None)]


@scenario
async def test_a_worker_that_is_stale_before_it_has_started_a_child_starts_none(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        await submit(harness, budget=5.0)

        async def other_attempt() -> None:
            row = await harness.task("a")
            await harness.end_lease("a")
            claimed = await harness.claim(row.id, "worker-2")
            own = Reservation(task_id=claimed.id, attempt=claimed.attempt)
            name = f"job/{row.spec.job_id}"
            await harness.reservations.reserve(TENANT, name, Budget(usd=5.0), own, usd(1.0))

        accounts = InterposedPort(backend.budgets, "get", before=other_attempt)
        async with harness.with_ports(budgets=accounts).running_worker():
            await harness.advance(SECOND)

            assert harness.runner.specs == []
            row = await harness.task("a")
            assert row.lease is not None
            assert (row.lease.worker_id, row.attempt) == ("worker-2", 2)
            assert (await job_budget(harness)).spent_and_reserved.cost_usd == 1.0


@scenario
async def test_a_budget_check_that_cannot_be_closed_costs_no_outcome(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", Script(reports=spend_turns(1)))
        await submit(harness, budget=5.0)
        # One to begin, one for the question, one for the answer; the next is to close.
        accounts = FlakyPort(backend.budgets, "commit", RuntimeError("a bug"), times=None, skip=3)
        async with harness.with_ports(budgets=accounts).running_worker():
            assert (await harness.task("a")).state is TaskState.COMPLETED
            assert accounts.failures == 1
            assert await harness.messages() == []
        assert (await job_budget(harness)).spent.cost_usd == 0.25


@scenario
async def test_the_reservation_of_a_dead_worker_is_free_when_its_lease_is_ended(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        harness.runner.set_scripts(
            "a", Script(reports=[*spend_turns(1), spend_request(2, 0.25)], ending=None), HANGS
        )
        await submit(harness, budget=5.0)
        async with harness.running_worker():
            assert (await day_budget(harness)).spent_and_reserved.cost_usd == 0.5
            harness.worker_registry.kill("worker-1")
            await harness.sweeper.reap_dead_workers()

            for account in (await day_budget(harness), await job_budget(harness)):
                assert (account.spent_and_reserved.cost_usd, account.reservations) == (0.25, ())
