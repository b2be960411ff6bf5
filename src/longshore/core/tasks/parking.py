"""Parking: a task waits when a budget is used up, and resumes when the budget is raised."""

from __future__ import annotations

from typing import Any

from longshore.core.budgets import TASK_SCOPES, add_allowance
from longshore.core.events import types as e
from longshore.core.events.event import to_tick
from longshore.core.tasks import commands as c
from longshore.core.tasks.attempts import release
from longshore.core.tasks.changes import Refusal, RefusalReason
from longshore.core.tasks.rows import ParkRecord
from longshore.core.tasks.states import TaskState
from longshore.core.tasks.transition import TaskDecision, TaskTransition, cancel_task


def park(step: TaskTransition, command: c.Park) -> TaskDecision:
    if isinstance(lease := step.require_lease(command.fence), Refusal):
        return lease
    row = step.row
    if row.cancel is not None:
        return cancel_task(step, row.cancel, usage=command.usage, last_output=command.last_output)
    if command.scope in TASK_SCOPES and row.allowance != command.allowance:
        # The budget was raised before the task was parked, so nothing would unpark it.
        return release(step, _release_instead(command))
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
        parked=ParkRecord(
            scope=command.scope, unit=command.unit, reason=command.reason, at=step.now
        ),
        due_at=command.until,
        enqueued_at=None,
        ran_for=command.duration,
        last_output=command.last_output,
        usage=row.usage + command.usage,
    )


def _release_instead(command: c.Park) -> c.Release:
    return c.Release(
        fence=command.fence,
        reason="a budget was used up, and was raised meanwhile",
        usage=command.usage,
        last_output=command.last_output,
    )


def unpark(step: TaskTransition, command: c.Unpark) -> TaskDecision:
    row = step.row
    if row.state is not TaskState.PARKED or row.parked is None:
        return step.wrong_state("parked")
    if row.parked.scope is not command.scope:
        detail = f"it is parked because of another budget: its {row.parked.scope.value}'s"
        return Refusal(reason=RefusalReason.NOTHING_TO_DO, detail=detail)
    if command.due and (row.due_at is None or step.now < to_tick(row.due_at)):
        return Refusal(reason=RefusalReason.NOT_DUE, detail="it is not due yet", until=row.due_at)
    unparked = e.TaskUnparked(task_id=row.id, job_id=row.spec.job_id, by=command.by)
    return step.change(unparked, effects=(step.enqueue(step.now),), **_unparked_fields(step))


def _unparked_fields(step: TaskTransition) -> dict[str, Any]:
    return {
        "state": TaskState.PENDING,
        "parked": None,
        "due_at": step.now,
        "enqueued_at": step.now,
    }


def add_budget(step: TaskTransition, command: c.AddBudget) -> TaskDecision:
    row = step.row
    if row.state.terminal:
        detail = f"the task is {row.state}: its budget can be raised only after it is resumed"
        return Refusal(reason=RefusalReason.ENDED, detail=detail)
    allowance = add_allowance(row.allowance, command.amount, command.request_id)
    if allowance is None:
        detail = "this request was already counted"
        return Refusal(reason=RefusalReason.NOTHING_TO_DO, detail=detail)
    more = command.amount
    added = e.TaskBudgetAdded(
        task_id=row.id,
        job_id=row.spec.job_id,
        by=command.by,
        usd=more.usd,
        tokens=more.tokens,
        minutes=more.minutes,
    )
    if row.parked is None or row.parked.scope not in TASK_SCOPES:
        return step.change(added, allowance=allowance)
    unparked = e.TaskUnparked(task_id=row.id, job_id=row.spec.job_id, by=command.by)
    return step.change(
        added,
        unparked,
        effects=(step.enqueue(step.now),),
        allowance=allowance,
        **_unparked_fields(step),
    )
