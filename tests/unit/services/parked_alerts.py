"""Tasks that are parked and resumed, and the alerts about them."""

from typing import Any

from longshore.core.alerts import Backlog, BacklogKind, HealthNotice
from longshore.core.budgets import BudgetScope, BudgetUnit
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.tasks import commands as c
from tests.unit.services.harness import SECOND, TENANT, ServiceHarness, make_task


async def park_task(
    harness: ServiceHarness,
    key: str = "a",
    scope: BudgetScope = BudgetScope.TASK,
    *,
    tenant: str = TENANT,
    **fields: Any,
) -> str:
    """A task of a job of its own is parked; its id."""
    await harness.producer.submit(tenant, key, {"tasks": [make_task(key, **fields)]})
    id_ = task_id_of(job_id_of(tenant, key), key)
    harness.clock.advance(SECOND)
    claimed = await harness.claim(id_)
    until = harness.clock.now() + 9 * SECOND if scope is BudgetScope.DAY else None
    park = c.Park(
        fence=claimed.fence,
        scope=scope,
        unit=BudgetUnit.USD,
        reason="all is spent",
        duration=SECOND,
        until=until,
    )
    await harness.transitions.apply_to_task(id_, park)
    return id_


async def unpark(harness: ServiceHarness, *ids: str, scope: BudgetScope = BudgetScope.TASK) -> None:
    for id_ in ids:
        await harness.transitions.apply_to_task(id_, c.Unpark(scope=scope, by="ann"))


def parked_change(notice: HealthNotice) -> tuple[str, int] | None:
    """What a notice says of parked tasks: what is new, and how many there are."""
    parked = notice.backlogs.get(BacklogKind.PARKED_TASKS)
    return (parked.change.value, parked.backlog.minimum_count) if parked else None


def parked_backlog(notice: HealthNotice) -> Backlog:
    return notice.backlogs[BacklogKind.PARKED_TASKS].backlog
