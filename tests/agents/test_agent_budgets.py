"""What agents may spend: asked before, settled after; parked when it is used up, and gone on with.

All is real but the model.
"""

from pathlib import Path

from longshore.core.budgets import Budget, Scope, day_account, job_account
from longshore.core.states import TaskState
from longshore.testing.messages_api import Usage, text, tool_use
from tests.acceptance.conftest import until
from tests.agents.stage import TENANT, Stage, on_stage, scenario

DEAR = Usage(input_tokens=100_000, output_tokens=100)  # 20 cents
LOOK = {"command": "echo looked"}


async def _parked(stage: Stage, *keys: str) -> None:
    async def look() -> bool:
        states = await stage.services.backend.ledger.task_states(stage.job_id)
        return all(states[key] is TaskState.PARKED for key in keys or ("a",))

    await until(look)


@scenario
async def test_a_task_whose_budget_is_used_up_is_parked_and_goes_on_when_more_is_allowed(
    stage: Stage,
) -> None:
    stage.api.play([tool_use("Bash", LOOK, usage=DEAR), text("Done.", usage=DEAR)])
    await stage.define(options={"prompt": "Look.", "tools": ["Bash"], "budget": {"usd": 0.15}})
    await stage.submit()

    await _parked(stage)

    row = await stage.row()
    assert row.parked is not None
    assert (row.parked.scope, row.attempts_used, row.lease) == (Scope.TASK, 0, None)
    assert row.parked.reason == "budget of the task: $0.20 of $0.15 is spent"
    assert row.usage.cost_usd > 0.15
    assert row.usage.seconds > 0
    assert len(stage.requests()) == 1
    await stage.services.budgeting.add_to_task(
        TENANT, stage.id_of(), Budget(usd=1.0), by="ann", request_id="r1"
    )
    row = await stage.over()
    assert row.state is TaskState.COMPLETED, row.failure
    assert await stage.result() == "Done."
    # It went on in its conversation: what had been answered was not asked again.
    assert stage.asked_again() == []
    assert len(stage.requests()) == 2
    row, history = await stage.history()
    assert [event.type for event in history if "Heartbeat" not in event.type] == [
        "Task Pending",
        "Task Processing Started",
        "Task Parked",
        "Task Budget Added",
        "Task Unparked",
        "Task Processing Started",
        "Task Completed",
    ]


@scenario
async def test_tasks_that_share_a_budget_go_over_it_by_one_answer_each_at_most(
    stage: Stage,
) -> None:
    stage.api.play([tool_use("Bash", LOOK, usage=DEAR)])
    await stage.define(options={"prompt": "Look.", "tools": ["Bash"]})
    tasks = [{"taskId": key, "name": "agent-task"} for key in ("a", "b")]
    await stage.submit(*tasks, budget={"usd": 0.3})

    await _parked(stage, "a", "b")

    rows = [await stage.row("a"), await stage.row("b")]
    assert [row.parked.scope for row in rows if row.parked] == [Scope.JOB, Scope.JOB]
    spent = sum(row.usage.cost_usd for row in rows)
    assert 0.3 <= spent <= 0.3 + 2 * 0.21
    name = job_account(stage.job_id)

    async def closed() -> bool:  # which comes after the outcome
        return not (await stage.services.accounting.read(TENANT, name)).holdings

    await until(closed)
    account = await stage.services.accounting.read(TENANT, name)
    assert abs(account.spent.cost_usd - spent) < 1e-9
    stage.api.play([text("Done.")])
    await stage.services.budgeting.add_to_job(
        TENANT, stage.job_id, Budget(usd=5.0), by="ann", request_id="r1"
    )
    assert (await stage.over("a", "b")).state is TaskState.COMPLETED


@scenario
async def test_a_day_that_is_used_up_parks_until_the_next_one(tmp_path: Path) -> None:
    script = [tool_use("Bash", LOOK, usage=DEAR), text("Done.")]
    async with on_stage(tmp_path, script, flags={"agent.usd_per_day": 0.15}) as stage:
        services = stage.services
        await stage.define(options={"prompt": "Look.", "tools": ["Bash"]})
        await stage.submit()

        await _parked(stage)

        row = await stage.row()
        assert row.parked is not None
        assert row.parked.scope is Scope.DAY
        assert row.due_at is not None
        assert (row.due_at.hour, row.due_at.minute) == (0, 0)
        standing = await services.budgeting.add_to_day(
            TENANT, Budget(usd=5.0), by="ann", request_id="r1"
        )
        assert (await stage.over()).state is TaskState.COMPLETED
        name = day_account(services.backend.clock.now())
        account = await services.accounting.read(TENANT, name)
        assert account.spent.cost_usd > standing.spent.cost_usd


@scenario
async def test_a_step_and_tokens_have_budgets_too(stage: Stage) -> None:
    steps = [
        {"name": "look", "prompt": "Look.", "tools": ["Bash"], "budget": {"tokens": 1_000}},
        {"name": "tell", "prompt": "Tell."},
    ]
    stage.api.play([tool_use("Bash", LOOK, usage=DEAR), text("Done."), text("Told.")])
    await stage.define(options={"steps": steps})
    await stage.submit()

    await _parked(stage)

    row = await stage.row()
    assert row.parked is not None
    assert row.parked.reason == ("budget of step 'look': 100,100 of 1,000 tokens are used")
    await stage.services.budgeting.add_to_task(
        TENANT, stage.id_of(), Budget(tokens=200_000), by="ann", request_id="r1"
    )
    assert (await stage.over()).state is TaskState.COMPLETED
    assert await stage.result() == "Told."
