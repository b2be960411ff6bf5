"""Agents whose budgets are used up, of every kind; people look at them and add to them."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from longshore.core.budgets import Budget, BudgetScope, BudgetUnit, Reservation, job_budget_name
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.events.types import Usage
from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.ports.runner import SpendRequest, UsageReport
from longshore.testing.fake_runner import Script
from tests.errors_everywhere.harness import DAY, LEASE, ErrorHarness
from tests.unit.services.harness import TENANT, job_id, make_task, task_id

_NOTHING = Usage()
_MORE = Budget(usd=1_000.0)
_SOON = timedelta(seconds=8)
_THRIFTY = Definition(
    name="thrifty", runner=RunnerKind.AGENT, options={"prompt": "Save.", "budget": 0.5}
)


def _usd(amount: float) -> Usage:
    return Usage(cost_usd=amount)


def _spends(amount: float) -> Script:
    """One answer that costs so much, and another question."""
    return Script(
        reports=[
            SpendRequest(1, "task", _NOTHING, _usd(amount)),
            UsageReport(_usd(amount), settled_request=1),
            SpendRequest(2, "task", _usd(amount), _usd(amount)),
        ]
    )


async def prepare_budgets(harness: ErrorHarness) -> None:
    """A task that rests until soon, and a reservation whose holder is dead."""
    await harness.raw.definitions.put(TENANT, _THRIFTY)
    await _submit(harness.clean.producer.submit, "rested", 5.0)
    claimed = await harness.clean.claim(task_id("rested", "rested"))
    await harness.clean.transitions.apply_to_task(claimed.id, _park_until_soon(harness, claimed))
    await _submit(harness.clean.producer.submit, "leaky", 1.0)
    dead = await harness.clean.claim(task_id("leaky", "leaky"))
    own, name = Reservation(task_id=dead.id, attempt=dead.attempt), job_budget_name(job_id("leaky"))
    await harness.clean.reservations.reserve(TENANT, name, Budget(usd=1.0), own, _usd(1.0))
    ended = c.LeaseEnded(fence=dead.fence, margin=LEASE.skew_margin, holder_dead=True)
    await harness.clean.transitions.apply_to_task(dead.id, ended)
    other = [make_task("other", name="talkative")]
    await harness.clean.producer.add_tasks(TENANT, job_id("leaky"), "more", {"tasks": other})


def _park_until_soon(harness: ErrorHarness, claimed: TaskRow) -> c.Park:
    return c.Park(
        fence=claimed.fence,
        scope=BudgetScope.DAY,
        unit=BudgetUnit.USD,
        reason="all is spent",
        duration=timedelta(0),
        until=harness.raw.clock.now() + _SOON,
    )


async def _submit(submit: Callable[..., Awaitable[Any]], request: str, budget: float) -> None:
    tasks = [make_task(request, name="talkative")]
    await submit(TENANT, request, {"tasks": tasks, "budget": budget})


async def budgets(harness: ErrorHarness) -> None:
    """Each kind of budget is used up, looked at, and added to."""
    budgeting, ann = harness.faulty.budget_operations, {"by": "ann", "request_id": "more"}
    harness.children.set_scripts("poor", _spends(0.5), Script())
    harness.children.set_scripts("thrifty", _spends(0.5), Script())
    await harness.call_with_retry(lambda: _submit(harness.faulty.producer.submit, "poor", 0.5))
    await harness.submit("thrifty", make_task("thrifty", name="thrifty"))
    if await _is_parked(harness, "poor"):
        await harness.call_until_answered(lambda: budgeting.get(TENANT, job_id("poor")))
        await harness.call_with_retry(lambda: budgeting.add(TENANT, job_id("poor"), _MORE, **ann))
    if await _is_parked(harness, "thrifty"):
        thrifty = task_id("thrifty", "thrifty")
        await harness.call_until_answered(lambda: budgeting.get(TENANT, thrifty))
        await harness.call_with_retry(lambda: budgeting.add(TENANT, thrifty, _MORE, **ann))
    await harness.wait_for_jobs("poor", "thrifty", "rested", "leaky")

    harness.children.set_scripts("daily", _spends(DAY.usd or 0.0), Script())
    await harness.submit("daily", make_task("daily", name="talkative"))
    if await _is_parked(harness, "daily"):
        await harness.call_until_answered(lambda: budgeting.get(TENANT, None))
        await harness.call_until_answered(lambda: budgeting.add(TENANT, None, _MORE, **ann))
    await harness.wait_for_jobs("daily")


async def _is_parked(harness: ErrorHarness, request: str) -> bool:
    await harness.wait_for_task(request, request, TaskState.PARKED)
    return await harness.state_of(request, request) is TaskState.PARKED
