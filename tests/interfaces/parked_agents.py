"""Parked agent tasks with costs, created without a child process or a model."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from longshore.core.budgets import BudgetScope, BudgetUnit, Reservation, job_budget_name
from longshore.core.events.types import Usage
from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import TaskRow
from longshore.wiring.services import Services

LEASE = timedelta(minutes=1)
SPENT = Usage(input_tokens=1_000, output_tokens=100, turns=2, cost_usd=0.2, seconds=90.0)
USED_UP = "budget of the task: $0.20 of $0.15 is spent"


def writer_definition(**options: Any) -> dict[str, Any]:
    """The definition of an agent; its options beside the prompt."""
    return {"name": "writer", "runner": "agent", "options": {"prompt": "Write.", **options}}


def writer_task(key: str, **fields: Any) -> dict[str, Any]:
    """A task for that agent."""
    return {"taskId": key, "name": "writer", **fields}


async def claim(services: Services, task_id: str) -> TaskRow:
    """A worker begins with a task."""
    begun = c.Claim(worker_id="harbour-1", process_id=1, lease_duration=LEASE)
    return await services.transitions.apply_to_task(task_id, begun)


async def park(
    services: Services,
    task_id: str,
    *,
    scope: BudgetScope = BudgetScope.TASK,
    unit: BudgetUnit = BudgetUnit.USD,
    reason: str = USED_UP,
    until: datetime | None = None,
) -> TaskRow:
    """One attempt of a pending task, which spends something and is parked."""
    claimed = await claim(services, task_id)
    parked = c.Park(
        fence=claimed.fence,
        scope=scope,
        unit=unit,
        reason=reason,
        duration=timedelta(seconds=SPENT.seconds),
        until=until,
        usage=SPENT,
    )
    return await services.transitions.apply_to_task(task_id, parked)


async def spend(services: Services, row: TaskRow, *, reserved: Usage | None = None) -> None:
    """Record what an attempt has spent and reserved of the budget of its job."""
    reservation = Reservation(
        task_id=row.id, attempt=row.attempt, spent=SPENT, reserved=reserved or Usage()
    )
    await services.reservations.change(
        row.spec.tenant,
        job_budget_name(row.spec.job_id),
        lambda account: replace(account, reservations=(reservation,)),
    )
