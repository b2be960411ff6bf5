"""Budgets of agents: checked before a request, settled after it; a task is parked and resumed.

All is real but the model.
"""

from pathlib import Path

from longshore.core.budgets import Budget, BudgetScope, day_budget_name, job_budget_name
from longshore.core.tasks.states import TaskState
from tests.acceptance.conftest import wait_until
from tests.agents.harness import TENANT, AgentHarness, open_harness, scenario
from verification.messages_api import Usage, text, tool_use

DEAR = Usage(input_tokens=100_000, output_tokens=100)  # 20 cents
LOOK = {"command": "echo looked"}


async def _wait_parked(harness: AgentHarness, *keys: str) -> None:
    async def look() -> bool:
        states = await harness.services.backend.ledger.task_states(harness.job_id)
        return all(states[key] is TaskState.PARKED for key in keys or ("a",))

    await wait_until(look)


@scenario
async def test_a_task_whose_budget_is_used_up_is_parked_and_continues_when_it_is_raised(
    harness: AgentHarness,
) -> None:
    harness.api.set_script([tool_use("Bash", LOOK, usage=DEAR), text("Done.", usage=DEAR)])
    await harness.define(options={"prompt": "Look.", "tools": ["Bash"], "budget": {"usd": 0.15}})
    await harness.submit()

    await _wait_parked(harness)

    row = await harness.row()
    assert row.parked is not None
    assert (row.parked.scope, row.attempts_used, row.lease) == (BudgetScope.TASK, 0, None)
    assert row.parked.reason == "budget of the task: $0.20 of $0.15 is spent"
    assert row.usage.cost_usd > 0.15
    assert row.usage.seconds > 0
    assert len(harness.requests()) == 1
    await harness.services.budget_operations.add(
        TENANT, harness.task_id(), Budget(usd=1.0), by="ann", request_id="r1"
    )
    row = await harness.wait_finished()
    assert row.state is TaskState.COMPLETED, row.failure
    assert await harness.result() == "Done."
    # It went on in its conversation: what had been answered was not asked again.
    assert harness.repeated_requests() == []
    assert len(harness.requests()) == 2
    row, history = await harness.history()
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
    harness: AgentHarness,
) -> None:
    harness.api.set_script([tool_use("Bash", LOOK, usage=DEAR)])
    await harness.define(options={"prompt": "Look.", "tools": ["Bash"]})
    tasks = [{"taskId": key, "name": "agent-task"} for key in ("a", "b")]
    await harness.submit(*tasks, budget={"usd": 0.3})

    await _wait_parked(harness, "a", "b")

    rows = [await harness.row("a"), await harness.row("b")]
    assert [row.parked.scope for row in rows if row.parked] == [BudgetScope.JOB, BudgetScope.JOB]
    spent = sum(row.usage.cost_usd for row in rows)
    assert 0.3 <= spent <= 0.3 + 2 * 0.21
    name = job_budget_name(harness.job_id)

    async def closed() -> bool:  # which comes after the outcome
        return not (await harness.services.reservations.read(TENANT, name)).reservations

    await wait_until(closed)
    account = await harness.services.reservations.read(TENANT, name)
    assert abs(account.spent.cost_usd - spent) < 1e-9
    harness.api.set_script([text("Done.")])
    await harness.services.budget_operations.add(
        TENANT, harness.job_id, Budget(usd=5.0), by="ann", request_id="r1"
    )
    assert (await harness.wait_finished("a", "b")).state is TaskState.COMPLETED


@scenario
async def test_a_day_that_is_used_up_parks_until_the_next_one(tmp_path: Path) -> None:
    script = [tool_use("Bash", LOOK, usage=DEAR), text("Done.")]
    async with open_harness(tmp_path, script, flags={"agent.usd_per_day": 0.15}) as harness:
        services = harness.services
        await harness.define(options={"prompt": "Look.", "tools": ["Bash"]})
        await harness.submit()

        await _wait_parked(harness)

        row = await harness.row()
        assert row.parked is not None
        assert row.parked.scope is BudgetScope.DAY
        assert row.due_at is not None
        assert (row.due_at.hour, row.due_at.minute) == (0, 0)
        standing = await services.budget_operations.add(
            TENANT, None, Budget(usd=5.0), by="ann", request_id="r1"
        )
        assert (await harness.wait_finished()).state is TaskState.COMPLETED
        name = day_budget_name(services.backend.clock.now())
        account = await services.reservations.read(TENANT, name)
        assert account.spent.cost_usd > standing.spent.cost_usd


@scenario
async def test_a_step_and_tokens_have_budgets_too(harness: AgentHarness) -> None:
    steps = [
        {"name": "look", "prompt": "Look.", "tools": ["Bash"], "budget": {"tokens": 1_000}},
        {"name": "report", "prompt": "Report."},
    ]
    harness.api.set_script([tool_use("Bash", LOOK, usage=DEAR), text("Done."), text("Reported.")])
    await harness.define(options={"steps": steps})
    await harness.submit()

    await _wait_parked(harness)

    row = await harness.row()
    assert row.parked is not None
    assert row.parked.reason == ("budget of step 'look': 100,100 of 1,000 tokens are used")
    await harness.services.budget_operations.add(
        TENANT, harness.task_id(), Budget(tokens=200_000), by="ann", request_id="r1"
    )
    assert (await harness.wait_finished()).state is TaskState.COMPLETED
    assert await harness.result() == "Reported."
