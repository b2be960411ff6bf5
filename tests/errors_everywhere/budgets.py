"""Agents whose budgets are used up, of every kind; people look at them and add to them."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from longshore.core import commands as c
from longshore.core.budgets import Budget, Scope, job_account
from longshore.core.definition import Definition, RunnerKind
from longshore.core.events.types import Usage
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.ports.runner import Asked, Used
from longshore.testing.runner import Script
from tests.errors_everywhere.play import DAY, LEASE, Play
from tests.unit.services.stage import TENANT, a_task, job_id, task_id

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
        says=[
            Asked(1, "task", _NOTHING, _usd(amount)),
            Used(_usd(amount), settles=1),
            Asked(2, "task", _usd(amount), _usd(amount)),
        ]
    )


async def budgets_prepared(play: Play) -> None:
    """A task that rests until soon, and a reservation whose holder is dead."""
    await play.raw.definitions.put(TENANT, _THRIFTY)
    await _submit(play.others.producer.submit, "rested", 5.0)
    held = await play.others.claim(task_id("rested", "rested"))
    await play.others.transitions.task(held.id, _parked_until_soon(play, held))
    await _submit(play.others.producer.submit, "leaky", 1.0)
    dead = await play.others.claim(task_id("leaky", "leaky"))
    await play.others.accounting.reserve(
        dead,
        job_account(job_id("leaky")),
        Budget(usd=1.0),
        spent=_NOTHING,
        reserved=_NOTHING,
        wanted=_usd(1.0),
    )
    ended = c.LeaseEnded(fence=dead.fence, margin=LEASE.skew_margin, holder_gone=True)
    await play.others.transitions.task(dead.id, ended)
    other = [a_task("other", name="talkative")]
    await play.others.adding.add(TENANT, job_id("leaky"), "more", {"tasks": other})


def _parked_until_soon(play: Play, held: TaskRow) -> c.Park:
    return c.Park(
        fence=held.fence,
        scope=Scope.DAY,
        reason="all is spent",
        duration=timedelta(0),
        until=play.raw.clock.now() + _SOON,
    )


async def _submit(submit: Callable[..., Awaitable[Any]], request: str, budget: float) -> None:
    tasks = [a_task(request, name="talkative")]
    await submit(TENANT, request, {"tasks": tasks, "budget": budget})


async def budgets(play: Play) -> None:
    """Each kind of budget is used up, looked at, and added to."""
    budgeting, ann = play.ours.budgeting, {"by": "ann", "request_id": "more"}
    play.children.plays("poor", _spends(0.5), Script())
    play.children.plays("thrifty", _spends(0.5), Script())
    await play.insists(lambda: _submit(play.ours.producer.submit, "poor", 0.5))
    await play.submitted("thrifty", a_task("thrifty", name="thrifty"))
    if await _rests(play, "poor"):
        await play.is_answered(lambda: budgeting.of_job(TENANT, job_id("poor")))
        await play.insists(lambda: budgeting.add_to_job(TENANT, job_id("poor"), _MORE, **ann))
    if await _rests(play, "thrifty"):
        thrifty = task_id("thrifty", "thrifty")
        await play.is_answered(lambda: budgeting.of_task(TENANT, thrifty))
        await play.insists(lambda: budgeting.add_to_task(TENANT, thrifty, _MORE, **ann))
    await play.until_job("poor", "thrifty", "rested", "leaky")

    play.children.plays("daily", _spends(DAY.usd or 0.0), Script())
    await play.submitted("daily", a_task("daily", name="talkative"))
    if await _rests(play, "daily"):
        await play.is_answered(lambda: budgeting.of_day(TENANT))
        await play.is_answered(lambda: budgeting.add_to_day(TENANT, _MORE, **ann))
    await play.until_job("daily")


async def _rests(play: Play, request: str) -> bool:
    await play.until_task(request, request, TaskState.PARKED)
    return await play.stands(request, request) is TaskState.PARKED
