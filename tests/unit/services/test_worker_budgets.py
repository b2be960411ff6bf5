"""A worker whose agents have budgets: they ask, are answered, and rest when nothing is left."""

from pathlib import Path
from typing import Any

import pytest

from longshore.core.agents.plan import read_plan
from longshore.core.budgets import NO_BUDGET, Budget, Scope, day_account, day_after
from longshore.core.definition import Definition, RunnerKind
from longshore.core.events.types import Usage
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.ports.ledger import AnyChange
from longshore.ports.runner import Used
from longshore.services.worker.purse import Purse, Verdict
from longshore.testing.runner import Script, succeeds
from tests.unit.services.ports import Happening
from tests.unit.services.samples import MINUTE
from tests.unit.services.spending import (
    AGENT,
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
    NO_WAIT,
    SECOND,
    TENANT,
    Stage,
    a_task,
    job_id,
    opened,
    scenario,
    task_id,
)


async def parked(stage: Stage, key: str = "a") -> tuple[Scope, str]:
    """What a task that rests lacks, and why."""
    row = await stage.task(key)
    assert row.parked is not None, row.state
    assert (row.state, row.lease, row.attempts_used) == (TaskState.PARKED, None, 0)
    return row.parked.scope, row.parked.reason


class BeforeParking:
    """A ledger before whose first commit of a task that is to rest something happens."""

    def __init__(self, ledger: Any, happening: Happening) -> None:
        self._ledger = ledger
        self._happening = happening
        self.happened = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def commit(self, *changes: AnyChange) -> Any:
        rests = any(change.row.state is TaskState.PARKED for change in changes)
        if rests and not self.happened:
            self.happened = True
            await self._happening()
        return await self._ledger.commit(*changes)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_agent_is_answered_until_its_tasks_budget_is_used_up(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend, budget=0.5)
        stage.runner.plays("a", Script(says=turns(5)), Script(ending=succeeds("done")))
        await submit(stage)
        async with stage.working():
            why = "budget of the task: $0.50 of $0.50 is spent"
            assert await parked(stage) == (Scope.TASK, why)
            assert answers(stage) == [[(1, None), (2, None), (3, why)]]
            row = await stage.task("a")
            assert (row.usage.cost_usd, row.due_at, row.attempt) == (0.5, None, 1)
            assert stage.runner.alive == []
            assert await stage.messages() == []

            await stage.passes(10 * MINUTE)
            assert len(stage.runner.orders) == 1
            await stage.budgeting.add_to_task(
                TENANT, row.id, Budget(usd=1.0), by="ann", request_id="r1"
            )
            await stage.passes(NO_WAIT)
            assert (await stage.task("a")).state is TaskState.COMPLETED
    assert [order.budgeted for order in stage.runner.orders] == [True, True]


@scenario
async def test_what_earlier_attempts_have_spent_counts_for_the_task(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend, budget=0.5)
        stage.runner.plays("a", Script(says=[*turns(1), 20 * MINUTE]), Script(says=turns(5)))
        await submit(stage)
        async with stage.working():
            await stage.lost("a")
            await stage.passes(MINUTE)

            assert answers(stage)[1][0] == (1, None)
            assert answers(stage)[1][1] == (2, "budget of the task: $0.50 of $0.50 is spent")
            row = await stage.task("a")
            assert (row.state, row.attempts_used) == (TaskState.PARKED, 1)


@scenario
async def test_a_step_has_a_budget_of_its_own(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"name": "look", "prompt": "Look.", "budget": 0.25},
        {"name": "tell", "prompt": "Tell.", "budget": {"usd": 0.5}},
    ]
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        said = [
            asks(1, 0.0, step="look"),
            Used(usd(0.25), settles=1),
            *(asks(2, 0.25, step="tell"), Used(usd(0.5), settles=2)),
            *(asks(3, 0.5, step="tell"), Used(usd(0.75), settles=3)),
            asks(4, 0.75, step="tell"),
        ]
        stage.runner.plays("a", Script(says=said))
        definition = Definition(
            name="agent-task", runner=RunnerKind.AGENT, options={"steps": steps}
        )
        await backend.definitions.put(TENANT, definition)
        await submit(stage)
        async with stage.working():
            why = "budget of step 'tell': $0.50 of $0.50 is spent"
            assert await parked(stage) == (Scope.STEP, why)
            assert answers(stage) == [[(1, None), (2, None), (3, None), (4, why)]]


class Asking:
    """An attempt as a purse knows it."""

    ends = False

    def __init__(self, row: TaskRow) -> None:
        self.row = row

    async def renew(self) -> bool:
        return True


@pytest.mark.parametrize("shared", [False, True])
@scenario
async def test_several_questions_at_once_are_all_counted(tmp_path: Path, shared: bool) -> None:
    """One that might be too much waits for the answers of the others."""
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend, **({} if shared else {"budget": 0.5}))
        await submit(stage, budget=0.5 if shared else None)
        spender = Asking(await stage.claim(task_id("a")))
        plan, _ = read_plan({"prompt": "Do it.", **({} if shared else {"budget": 0.5})})
        assert plan is not None
        purse = Purse(stage.accounting, stage.clock, spender, plan, day=NO_BUDGET)
        assert await purse.open()

        first = [await purse.admits(asks(number)) for number in (1, 2, 3)]
        assert first == [Verdict(), Verdict(), Verdict(wait=True)]
        assert purse.waiting is not None

        await purse.settle(1, usd(0.1))
        assert await purse.admits(purse.waiting) == Verdict()
        assert purse.waiting is None
        await purse.settle(2, usd(0.6))
        assert (await purse.admits(asks(4))).stop is not None


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_jobs_budget_is_shared_and_parks_whoever_finds_nothing_left(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        for key in "ab":
            stage.runner.plays(key, Script(says=turns(9, pause=SECOND)), Script())
        await submit(stage, "a", "b", budget=1.0)
        async with stage.working():
            await stage.passes(MINUTE)

            spent = 0.0
            for key in "ab":
                scope, why = await parked(stage, key)
                assert scope is Scope.JOB
                assert why.startswith("budget of the job: $1.")
                spent += (await stage.task(key)).usage.cost_usd
            assert 1.0 <= spent <= 1.5
            account = await account_of_job(stage)
            assert (account.spent.cost_usd, account.holdings) == (spent, ())


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_day_that_is_used_up_parks_until_midnight_and_the_sweeper_lets_go_on(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        stage.runner.plays("a", Script(says=turns(9)), Script(says=turns(2)))
        await submit(stage)
        async with stage.working():
            midnight = day_after(stage.clock.now())
            assert await parked(stage) == (
                Scope.DAY,
                "budget of the day: $1.00 of $1.00 is spent",
            )
            assert (await stage.task("a")).due_at == midnight

            await stage.passes(midnight - stage.clock.now() - SECOND)
            assert not await stage.sweeper.sweep()
            assert (await stage.task("a")).state is TaskState.PARKED
            await stage.passes(SECOND)
            assert (await stage.sweeper.sweep()).unparked == 1
            await stage.passes(NO_WAIT)

            assert (await stage.task("a")).state is TaskState.COMPLETED
            assert (await account_of_day(stage)).spent.cost_usd == 0.5


@scenario
async def test_an_attempt_that_spans_midnight_spends_in_two_days_and_is_counted_once(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        left = day_after(stage.clock.now()) - stage.clock.now()
        stage.clock.advance(left - 10 * SECOND)
        # The second is asked for before midnight, and answered after it: it is the old day's.
        stage.runner.plays("a", Script(says=turns(3, pause=8 * SECOND)))
        await submit(stage)
        async with stage.working():
            before = stage.clock.now()
            await stage.passes(MINUTE)

            assert (await stage.task("a")).usage.cost_usd == 0.75
            old = await stage.accounting.read(TENANT, day_account(before))
            new = await account_of_day(stage)
            assert (old.spent.cost_usd, new.spent.cost_usd) == (0.5, 0.25)
            assert (old.holdings, new.holdings) == ((), ())


@scenario
async def test_a_child_is_not_even_started_if_nothing_is_left(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", Script(says=turns(9)))
        await submit(stage, "a", budget=0.5)
        async with stage.working():
            assert (await parked(stage))[0] is Scope.JOB
            await stage.add(a_task("b", **AGENT))
            await stage.passes(NO_WAIT)

            assert await parked(stage, "b") == (
                Scope.JOB,
                "budget of the job: $0.50 of $0.50 is spent",
            )
            assert [order.key for order in stage.runner.orders] == ["a"]
            assert (await stage.task("b")).usage == Usage()


@scenario
async def test_what_is_no_agent_has_no_budget(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend, day=DAY)
        stage.runner.plays("a", Script(says=[asks(1, wanted=99.0)]))
        await stage.submit(a_task())
        async with stage.working():
            assert (await stage.task("a")).state is TaskState.COMPLETED
            assert [order.budgeted for order in stage.runner.orders] == [False]
            assert answers(stage) == [[(1, None)]]


@scenario
async def test_an_agent_that_nothing_limits_is_not_told_to_ask(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        stage.runner.plays("a", Script(says=[*turns(2), asks(9)]))
        await submit(stage)
        async with stage.working():
            assert (await stage.task("a")).state is TaskState.COMPLETED
            assert [order.budgeted for order in stage.runner.orders] == [False]
            # Whoever asks all the same is answered.
            assert [why for _, why in answers(stage)[0]] == [None, None, None]
            assert (await account_of_job(stage)).version == 0


@scenario
async def test_more_that_is_allowed_while_the_agent_runs_is_heard_of(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend, budget=0.25)
        said = [*turns(1), MINUTE, asks(2, 0.25), Used(usd(0.5), settles=2)]
        stage.runner.plays("a", Script(says=said))
        await submit(stage)
        async with stage.working():
            more = {"by": "ann", "request_id": "r1"}
            await stage.budgeting.add_to_task(TENANT, task_id("a"), Budget(usd=1.0), **more)
            await stage.passes(2 * MINUTE)

            assert (await stage.task("a")).state is TaskState.COMPLETED
            assert answers(stage) == [[(1, None), (2, None)]]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_more_that_is_allowed_in_the_moment_in_which_a_task_is_parked_is_not_lost(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend, budget=0.25)
        stage.runner.plays("a", Script(says=turns(2)), Script())
        await submit(stage)

        async def add() -> None:
            await stage.budgeting.add_to_task(
                TENANT, task_id("a"), Budget(usd=1.0), by="ann", request_id="r1"
            )

        ledger = BeforeParking(backend.ledger, add)
        async with stage.with_ports(ledger=ledger).working():
            await stage.passes(SECOND)

            assert ledger.happened
            row = await stage.task("a")
            assert (row.state, row.attempt, row.attempts_used) == (TaskState.COMPLETED, 2, 0)
            assert "Task Parked" not in await stage.told("a")


@scenario
async def test_more_for_the_job_is_heard_of_before_a_task_is_parked(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        said = [*turns(1), MINUTE, asks(2, 0.25), Used(usd(0.5), settles=2)]
        stage.runner.plays("a", Script(says=said))
        await submit(stage, "a", budget=0.25)
        async with stage.working():
            await stage.budgeting.add_to_job(
                TENANT, job_id(), Budget(usd=1.0), by="ann", request_id="r1"
            )
            await stage.passes(2 * MINUTE)

            assert (await stage.task("a")).state is TaskState.COMPLETED
            assert len(stage.runner.orders) == 1
