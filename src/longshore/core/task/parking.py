"""Parking: a task rests when a budget is used up, and goes on when more is allowed."""

from __future__ import annotations

from typing import Any

from longshore.core import commands as c
from longshore.core.budgets import OWN_SCOPES, allowed_more
from longshore.core.changes import Reason, Refusal
from longshore.core.events import types as e
from longshore.core.events.event import to_tick
from longshore.core.rows import Parked
from longshore.core.states import TaskState
from longshore.core.task.attempts import release
from longshore.core.task.step import Decision, Step, cancelled


def park(step: Step, command: c.Park) -> Decision:
    if isinstance(lease := step.held(command.fence), Refusal):
        return lease
    row = step.row
    if row.cancel is not None:
        return cancelled(step, row.cancel, usage=command.usage, last_output=command.last_output)
    if command.scope in OWN_SCOPES and row.allowance != command.allowance:
        # Nobody will come to let it go on: whoever allowed more did so before it rested.
        return release(step, _allowed_meanwhile(command))
    parked = e.TaskParked(
        task_id=row.id,
        job_id=row.spec.job_id,
        attempt_number=row.attempt,
        scope=command.scope.value,
        reason=command.reason,
        due_at=command.until,
        duration=command.duration,
        last_output=command.last_output,
        usage=command.usage,
    )
    return step.change(
        parked,
        state=TaskState.PARKED,
        lease=None,
        parked=Parked(scope=command.scope, reason=command.reason, at=step.now),
        due_at=command.until,
        rung_at=None,
        ran_for=command.duration,
        last_output=command.last_output,
        usage=row.usage + command.usage,
    )


def _allowed_meanwhile(command: c.Park) -> c.Release:
    return c.Release(
        fence=command.fence,
        reason="a budget was used up, and more was allowed meanwhile",
        usage=command.usage,
        last_output=command.last_output,
    )


def unpark(step: Step, command: c.Unpark) -> Decision:
    row = step.row
    if row.state is not TaskState.PARKED or row.parked is None:
        return step.wrong_state("parked")
    if row.parked.scope is not command.scope:
        detail = f"it rests for want of another budget: its {row.parked.scope.value}'s"
        return Refusal(reason=Reason.NOTHING_TO_DO, detail=detail)
    if command.due and (row.due_at is None or step.now < to_tick(row.due_at)):
        return Refusal(reason=Reason.NOT_DUE, detail="its time has not come", until=row.due_at)
    unparked = e.TaskUnparked(task_id=row.id, job_id=row.spec.job_id, by=command.by)
    return step.change(unparked, effects=(step.ring(step.now),), **_going_on(step))


def _going_on(step: Step) -> dict[str, Any]:
    return {
        "state": TaskState.PENDING,
        "parked": None,
        "due_at": step.now,
        "rung_at": step.now,
    }


def add_budget(step: Step, command: c.AddBudget) -> Decision:
    row = step.row
    if row.state.terminal:
        detail = f"the task is {row.state}: nothing more is spent on it unless it is resumed"
        return Refusal(reason=Reason.ENDED, detail=detail)
    allowance = allowed_more(row.allowance, command.more, command.request_id)
    if allowance is None:
        return Refusal(reason=Reason.NOTHING_TO_DO, detail="this was added already")
    more = command.more
    added = e.TaskBudgetAdded(
        task_id=row.id,
        job_id=row.spec.job_id,
        by=command.by,
        usd=more.usd,
        tokens=more.tokens,
        minutes=more.minutes,
    )
    if row.parked is None or row.parked.scope not in OWN_SCOPES:
        return step.change(added, allowance=allowance)
    unparked = e.TaskUnparked(task_id=row.id, job_id=row.spec.job_id, by=command.by)
    return step.change(
        added,
        unparked,
        effects=(step.ring(step.now),),
        allowance=allowance,
        **_going_on(step),
    )
