"""A worker whose agents have budgets: they ask, are answered, and rest when nothing is left."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from longshore.core.agents.plan import read_plan
from longshore.core.budgets import NO_BUDGET, Budget, BudgetScope, day_budget_name, next_day_start
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.events.types import Usage
from longshore.core.tasks.states import TaskState
from longshore.ports.ledger import AnyChange
from longshore.ports.runner import UsageReport
from longshore.services.worker.budget_check import BudgetCheck
from longshore.services.worker.output import AttemptReports, OutputPump
from longshore.testing.fake_runner import Script, succeeds
from tests.unit.services.agent_spending import (
    AGENT,
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
from tests.unit.services.harness import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import Action
from tests.unit.services.samples import MINUTE


async def parked(harness: ServiceHarness, key: str = "a") -> tuple[BudgetScope, str]:
    """What a task that rests lacks, and why."""
    row = await harness.task(key)
    assert row.parked is not None, row.state
    assert (row.state, row.lease, row.attempts_used) == (TaskState.PARKED, None, 0)
    return row.parked.scope, row.parked.reason


class BeforeParking:
    """A ledger before whose first commit of a task that is to rest something happens."""

    def __init__(self, ledger: Any, action: Action) -> None:
        self._ledger = ledger
        self._action = action
        self.done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def commit(self, *changes: AnyChange) -> Any:
        rests = any(change.row.state is TaskState.PARKED for change in changes)
        if rests and not self.done:
            self.done = True
            await self._action()
        return await self._ledger.commit(*changes)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_an_agent_is_answered_until_its_tasks_budget_is_used_up(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend, budget=0.5)
        harness.runner.set_scripts(
            "a", Script(reports=spend_turns(5)), Script(ending=succeeds("done"))
        )
        await submit(harness)
        async with harness.running_worker():
            why = "budget of the task: $0.50 of $0.50 is spent"
            assert await parked(harness) == (BudgetScope.TASK, why)
            assert spend_answers(harness) == [[(1, None), (2, None), (3, why)]]
            row = await harness.task("a")
            assert (row.usage.cost_usd, row.due_at, row.attempt) == (0.5, None, 1)
            assert harness.runner.alive == []
            assert await harness.messages() == []

            await harness.advance(10 * MINUTE)
            assert len(harness.runner.specs) == 1
            await harness.budget_operations.add(
                TENANT, row.id, Budget(usd=1.0), by="ann", request_id="r1"
            )
            await harness.advance(NO_WAIT)
            assert (await harness.task("a")).state is TaskState.COMPLETED
    assert [spec.has_budget for spec in harness.runner.specs] == [True, True]


@scenario
async def test_spending_of_earlier_attempts_counts_for_the_task(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, budget=0.5)
        harness.runner.set_scripts(
            "a", Script(reports=[*spend_turns(1), 20 * MINUTE]), Script(reports=spend_turns(5))
        )
        await submit(harness)
        async with harness.running_worker():
            await harness.end_lease("a")
            await harness.advance(MINUTE)

            assert spend_answers(harness)[1][0] == (1, None)
            assert spend_answers(harness)[1][1] == (
                2,
                "budget of the task: $0.50 of $0.50 is spent",
            )
            row = await harness.task("a")
            assert (row.state, row.attempts_used) == (TaskState.PARKED, 1)


@scenario
async def test_a_step_has_a_budget_of_its_own(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"name": "look", "prompt": "Look.", "budget": 0.25},
        {"name": "report", "prompt": "Report.", "budget": {"usd": 0.5}},
    ]
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        message = [
            spend_request(1, 0.0, step="look"),
            UsageReport(usd(0.25), settled_request=1),
            *(spend_request(2, 0.25, step="report"), UsageReport(usd(0.5), settled_request=2)),
            *(spend_request(3, 0.5, step="report"), UsageReport(usd(0.75), settled_request=3)),
            spend_request(4, 0.75, step="report"),
        ]
        harness.runner.set_scripts("a", Script(reports=message))
        definition = Definition(
            name="agent-task", runner=RunnerKind.AGENT, options={"steps": steps}
        )
        await backend.definitions.put(TENANT, definition)
        await submit(harness)
        async with harness.running_worker():
            why = "budget of step 'report': $0.50 of $0.50 is spent"
            assert await parked(harness) == (BudgetScope.STEP, why)
            assert spend_answers(harness) == [[(1, None), (2, None), (3, None), (4, why)]]


async def renewed() -> bool:
    return True


@pytest.mark.parametrize("shared", [False, True])
@scenario
async def test_several_questions_at_once_are_all_counted(tmp_path: Path, shared: bool) -> None:
    """One that might be too much waits for the answers of the others."""
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, **({} if shared else {"budget": 0.5}))
        await submit(harness, budget=0.5 if shared else None)
        row = await harness.claim(task_id("a"))
        context = harness.worker_context(day_budget=NO_BUDGET)
        pump = OutputPump(context, row.id, row.attempt)
        reports, never = AttemptReports(pump, row), asyncio.Future[None]()
        plan, _ = read_plan({"prompt": "Do it.", **({} if shared else {"budget": 0.5})})
        assert plan is not None
        check = BudgetCheck(context, reports, never, renewed, plan)
        assert await check.open()

        for number in (1, 2):
            await check.decide(spend_request(number))
            assert check.waiting is None
        await check.decide(spend_request(3))
        assert check.waiting is not None

        await check.settle(1, usd(0.1))
        await check.decide(check.waiting)
        assert check.waiting is None
        assert check.stop is None
        await check.settle(2, usd(0.6))
        await check.decide(spend_request(4))
        assert check.stop is not None


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_jobs_budget_is_shared_and_parks_tasks_when_nothing_is_left(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        for key in "ab":
            harness.runner.set_scripts(key, Script(reports=spend_turns(9, pause=SECOND)), Script())
        await submit(harness, "a", "b", budget=1.0)
        async with harness.running_worker():
            await harness.advance(MINUTE)

            spent = 0.0
            for key in "ab":
                scope, why = await parked(harness, key)
                assert scope is BudgetScope.JOB
                assert why.startswith("budget of the job: $1.")
                spent += (await harness.task(key)).usage.cost_usd
            assert 1.0 <= spent <= 1.5
            account = await job_budget(harness)
            assert (account.spent.cost_usd, account.reservations) == (spent, ())


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_day_that_is_used_up_parks_tasks_until_the_sweeper_resumes_them_at_midnight(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        # A minute before midnight: half a day of an idle worker's polls would take very long.
        harness.clock.advance(next_day_start(harness.clock.now()) - harness.clock.now() - MINUTE)
        harness.runner.set_scripts(
            "a", Script(reports=spend_turns(9)), Script(reports=spend_turns(2))
        )
        await submit(harness)
        async with harness.running_worker():
            midnight = next_day_start(harness.clock.now())
            assert await parked(harness) == (
                BudgetScope.DAY,
                "budget of the day: $1.00 of $1.00 is spent",
            )
            assert (await harness.task("a")).due_at == midnight

            await harness.advance(midnight - harness.clock.now() - SECOND)
            assert not await harness.sweeper.sweep()
            assert (await harness.task("a")).state is TaskState.PARKED
            await harness.advance(SECOND)
            assert (await harness.sweeper.sweep())["unparked"] == 1
            await harness.advance(NO_WAIT)

            assert (await harness.task("a")).state is TaskState.COMPLETED
            assert (await day_budget(harness)).spent.cost_usd == 0.5


@scenario
async def test_an_attempt_that_spans_midnight_spends_in_two_days_and_is_counted_once(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        left = next_day_start(harness.clock.now()) - harness.clock.now()
        harness.clock.advance(left - 10 * SECOND)
        # The second is asked for before midnight, and answered after it: it is the old day's.
        harness.runner.set_scripts("a", Script(reports=spend_turns(3, pause=8 * SECOND)))
        await submit(harness)
        async with harness.running_worker():
            before = harness.clock.now()
            await harness.advance(MINUTE)

            assert (await harness.task("a")).usage.cost_usd == 0.75
            old = await harness.reservations.read(TENANT, day_budget_name(before))
            new = await day_budget(harness)
            assert (old.spent.cost_usd, new.spent.cost_usd) == (0.5, 0.25)
            assert (old.reservations, new.reservations) == ((), ())


@scenario
async def test_a_child_is_not_even_started_if_nothing_is_left(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", Script(reports=spend_turns(9)))
        await submit(harness, "a", budget=0.5)
        async with harness.running_worker():
            assert (await parked(harness))[0] is BudgetScope.JOB
            await harness.add_tasks(make_task("b", **AGENT))
            await harness.advance(NO_WAIT)

            assert await parked(harness, "b") == (
                BudgetScope.JOB,
                "budget of the job: $0.50 of $0.50 is spent",
            )
            assert [spec.key for spec in harness.runner.specs] == ["a"]
            assert (await harness.task("b")).usage == Usage()


@scenario
async def test_a_task_that_is_no_agent_has_no_budget(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend, day_budget=DAY)
        harness.runner.set_scripts("a", Script(reports=[spend_request(1, estimate=99.0)]))
        await harness.submit(make_task())
        async with harness.running_worker():
            assert (await harness.task("a")).state is TaskState.COMPLETED
            assert [spec.has_budget for spec in harness.runner.specs] == [False]
            assert spend_answers(harness) == [[(1, None)]]


@scenario
async def test_an_agent_without_a_budget_makes_no_spend_requests(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        harness.runner.set_scripts("a", Script(reports=[*spend_turns(2), spend_request(9)]))
        await submit(harness)
        async with harness.running_worker():
            assert (await harness.task("a")).state is TaskState.COMPLETED
            assert [spec.has_budget for spec in harness.runner.specs] == [False]
            # A child that asks all the same is answered.
            assert [why for _, why in spend_answers(harness)[0]] == [None, None, None]
            assert (await job_budget(harness)).version == 0


@scenario
async def test_a_budget_that_is_raised_while_the_agent_runs_is_noticed(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, budget=0.25)
        message = [
            *spend_turns(1),
            MINUTE,
            spend_request(2, 0.25),
            UsageReport(usd(0.5), settled_request=2),
        ]
        harness.runner.set_scripts("a", Script(reports=message))
        await submit(harness)
        async with harness.running_worker():
            more = {"by": "ann", "request_id": "r1"}
            await harness.budget_operations.add(TENANT, task_id("a"), Budget(usd=1.0), **more)
            await harness.advance(2 * MINUTE)

            assert (await harness.task("a")).state is TaskState.COMPLETED
            assert spend_answers(harness) == [[(1, None), (2, None)]]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_more_that_is_allowed_in_the_moment_in_which_a_task_is_parked_is_not_lost(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend, budget=0.25)
        harness.runner.set_scripts("a", Script(reports=spend_turns(2)), Script())
        await submit(harness)

        async def add() -> None:
            await harness.budget_operations.add(
                TENANT, task_id("a"), Budget(usd=1.0), by="ann", request_id="r1"
            )

        ledger = BeforeParking(backend.ledger, add)
        async with harness.with_ports(ledger=ledger).running_worker():
            await harness.advance(SECOND)

            assert ledger.done
            row = await harness.task("a")
            assert (row.state, row.attempt, row.attempts_used) == (TaskState.COMPLETED, 2, 0)
            assert "Task Parked" not in await harness.event_types("a")


@scenario
async def test_a_raised_job_budget_is_read_before_a_task_is_parked(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        message = [
            *spend_turns(1),
            MINUTE,
            spend_request(2, 0.25),
            UsageReport(usd(0.5), settled_request=2),
        ]
        harness.runner.set_scripts("a", Script(reports=message))
        await submit(harness, "a", budget=0.25)
        async with harness.running_worker():
            await harness.budget_operations.add(
                TENANT, job_id(), Budget(usd=1.0), by="ann", request_id="r1"
            )
            await harness.advance(2 * MINUTE)

            assert (await harness.task("a")).state is TaskState.COMPLETED
            assert len(harness.runner.specs) == 1
