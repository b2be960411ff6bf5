"""Agents that spend: their definitions, what they ask for, and what it comes to."""

from datetime import timedelta
from typing import Any

from longshore.core.budgets import (
    Budget,
    BudgetScope,
    BudgetUnit,
    Reservation,
    SharedBudget,
    day_budget_name,
    job_budget_name,
    next_day_start,
)
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.events.types import Usage
from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import TaskRow
from longshore.ports.backend import Backend
from longshore.ports.runner import ChildReport, SpendRequest, UsageReport
from longshore.services.submit import AcceptedTasks
from tests.unit.services.harness import (
    REQUEST,
    SECOND,
    TENANT,
    ServiceHarness,
    job_id,
    make_task,
    task_id,
)

AGENT = {"name": "agent-task", "input": {}}
DAY = Budget(usd=1.0)
MORE = Budget(usd=2.0)
ANN: dict[str, Any] = {"by": "ann", "request_id": "r1"}


def usd(amount: float) -> Usage:
    return Usage(cost_usd=amount)


def spend_request(
    number: int, spent: float = 0.0, estimate: float = 0.25, step: str = "task"
) -> SpendRequest:
    return SpendRequest(number, step, usd(spent), usd(estimate))


def spend_turns(
    count: int, cost: float = 0.25, *, pause: timedelta | None = None
) -> list[ChildReport | timedelta]:
    """So many questions one after the other, and what has been spent after each."""
    message: list[ChildReport | timedelta] = []
    for number in range(1, count + 1):
        message += [spend_request(number, (number - 1) * cost, cost), *([pause] if pause else [])]
        message.append(UsageReport(usd(number * cost), settled_request=number))
    return message


async def agent_harness(
    backend: Backend, *, day_budget: Budget | None = None, **options: Any
) -> ServiceHarness:
    """A stage with an agent of these options."""
    definition = Definition(
        name="agent-task", runner=RunnerKind.AGENT, options={"prompt": "Do it.", **options}
    )
    await backend.definitions.put(TENANT, definition)
    return ServiceHarness(backend, day_budget=day_budget) if day_budget else ServiceHarness(backend)


async def submit(
    harness: ServiceHarness, *keys: str, budget: Any = None, request_id: str = REQUEST
) -> AcceptedTasks:
    """A job of agents, with a budget if there is one."""
    tasks = [make_task(key, **AGENT) for key in keys or ("a",)]
    document = {"tasks": tasks} if budget is None else {"tasks": tasks, "budget": budget}
    return await harness.producer.submit(TENANT, request_id, document)


async def job_budget(harness: ServiceHarness, request_id: str = REQUEST) -> SharedBudget:
    return await harness.reservations.read(TENANT, job_budget_name(job_id(request_id)))


async def day_budget(harness: ServiceHarness) -> SharedBudget:
    return await harness.reservations.read(TENANT, day_budget_name(harness.clock.now()))


def spend_answers(harness: ServiceHarness) -> list[list[tuple[int, str | None]]]:
    """The answers that each child got, in order."""
    return [child.answers for child in harness.runner.children]


async def park(
    harness: ServiceHarness, key: str, scope: BudgetScope, *, spent: float = 0.0
) -> TaskRow:
    """An attempt that finds nothing left of a budget."""
    claimed = await harness.claim(task_id(key))
    until = next_day_start(harness.clock.now()) if scope is BudgetScope.DAY else None
    command = c.Park(
        fence=claimed.fence,
        scope=scope,
        unit=BudgetUnit.USD,
        reason="all is spent",
        duration=SECOND,
        until=until,
        usage=usd(spent),
    )
    return await harness.transitions.apply_to_task(claimed.id, command, row=claimed)


async def spend(harness: ServiceHarness, key: str, name: str, amount: float) -> None:
    """What an attempt of another task has spent of a shared budget."""
    row = await harness.task(key)
    own = Reservation(task_id=row.id, attempt=row.attempt)
    await harness.reservations.reserve(TENANT, name, Budget(usd=9.0), own, usd(amount))
    await harness.reservations.close(row, name, spent=usd(amount))


async def states(harness: ServiceHarness) -> dict[str, str]:
    return {key: state.value for key, state in (await harness.states()).items()}
