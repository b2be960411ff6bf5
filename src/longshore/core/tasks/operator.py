"""The commands of users, reviewers, operators and the dispatcher, and the parking of tasks.

A task is parked when a budget is used up, and resumes when the budget is raised.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from longshore.core.budgets import TASK_SCOPES, add_allowance
from longshore.core.events import types as e
from longshore.core.events.event import to_tick
from longshore.core.maximums import FEEDBACK_LIMIT_CHARACTERS, MAX_REVISIONS, comment_problem
from longshore.core.tasks import commands as c
from longshore.core.tasks.attempts import release
from longshore.core.tasks.changes import (
    Enqueue,
    Refusal,
    RefusalReason,
    TaskDecision,
    TaskTransition,
    Wake,
    cancel_task,
    make_pending,
)
from longshore.core.tasks.rows import CancelRequest, ParkRecord
from longshore.core.tasks.states import TaskState


def parents_completed(step: TaskTransition, command: c.ParentsCompleted) -> TaskDecision:
    left = step.row.awaits - command.numbers
    if step.row.state is not TaskState.WAITING or left == step.row.awaits:
        return Refusal(RefusalReason.NOTHING_TO_DO, "none of these parents is awaited")
    return step.change(awaits=left) if left else make_pending(step)


def request_cancel(step: TaskTransition, command: c.RequestCancel) -> TaskDecision:
    row = step.row
    if command.round is not None and row.round > command.round:
        return _stale_round(row.round)
    if row.state.terminal:
        return Refusal(RefusalReason.ENDED, f"the task is {row.state} already")
    request = CancelRequest(by=command.by, reason=command.reason, at=step.now)
    if row.lease is None:
        return cancel_task(step, request)
    if row.cancel is not None:
        return Refusal(RefusalReason.NOTHING_TO_DO, "its cancellation is under way")
    wake = Wake(row.lease.worker_id, row.id)
    return step.change(effects=(wake,), cancel=request)


def confirm_cancel(step: TaskTransition, command: c.ConfirmCancel) -> TaskDecision:
    # ``task.apply`` has decided the other case.
    return Refusal(RefusalReason.WRONG_STATE, "its cancellation was not requested")


def request_revision(step: TaskTransition, command: c.RequestRevision) -> TaskDecision:
    row = step.row
    if (refusal := _not_reviewable(step, command)) is not None:
        return refusal
    if row.revision >= MAX_REVISIONS:
        detail = f"it was revised {MAX_REVISIONS} times already: approve it or cancel it"
        return Refusal(RefusalReason.LIMIT_REACHED, detail)
    problem = comment_problem(command.feedback, limit=FEEDBACK_LIMIT_CHARACTERS)
    if problem is not None:
        return Refusal(RefusalReason.LIMIT_REACHED, f"feedback {problem}")
    requested = e.TaskRevisionRequested(
        **step.ids,
        feedback=command.feedback,
        revision=row.revision + 1,
        by=command.by,
    )
    return step.pending(
        requested,
        at=step.now,
        revision=row.revision + 1,
        feedback=command.feedback,
        previous_result=row.result,
        result=None,
        # With the saved steps, the revision would return the same result.
        checkpoint=None,
        attempts_used=0,
    )


def _not_reviewable(step: TaskTransition, command: c.Approve | c.RequestRevision) -> Refusal | None:
    row = step.row
    if row.state is not TaskState.IN_REVIEW:
        return step.wrong_state("in review")
    if command.attempt is not None and command.attempt != row.attempt:
        detail = f"the result in review is that of attempt {row.attempt}, not of {command.attempt}"
        return Refusal(RefusalReason.WRONG_STATE, detail)
    return None


def approve(step: TaskTransition, command: c.Approve) -> TaskDecision:
    row = step.row
    if (refusal := _not_reviewable(step, command)) is not None:
        return refusal
    approved = e.TaskApproved(**step.ids, by=command.by)
    completed = e.TaskCompleted(
        **step.ids,
        attempt_number=row.attempt,
        output=row.result,
        duration=row.ran_for or timedelta(),
        exit_code=row.exit_code or 0,
        last_output=row.last_output,
    )
    return step.change(approved, completed, state=TaskState.COMPLETED, finished_at=step.now)


def resume(step: TaskTransition, command: c.Resume) -> TaskDecision:
    row = step.row
    if command.round <= row.round:
        return _stale_round(row.round)
    if row.state not in (TaskState.FAILED, TaskState.CANCELLED):
        detail = f"the task is {row.state}: only what failed or was cancelled can be resumed"
        return Refusal(RefusalReason.WRONG_STATE, detail)
    afresh: dict[str, Any] = {
        "round": command.round,
        "attempts_used": 0,
        "failure": None,
        "result": None,
        "exit_code": None,
        "cancel": None,
        "finished_at": None,
    }
    if left := row.awaits - command.completed:
        # It was cancelled before it could run, and its parents have not completed.
        waiting = e.TaskWaiting(**step.ids, round=command.round)
        return step.change(waiting, state=TaskState.WAITING, awaits=left, **afresh)
    return make_pending(step, **afresh)


def _stale_round(round_: int) -> Refusal:
    return Refusal(RefusalReason.STALE_ROUND, f"the task is in round {round_} already")


def enqueue_again(step: TaskTransition, command: c.EnqueueAgain) -> TaskDecision:
    row = step.row
    if row.state is not TaskState.PENDING or row.due_at is None:
        return step.wrong_state("pending")
    spec = row.spec
    enqueue = Enqueue(spec.id, spec.queue, spec.priority, max(step.now, row.due_at))
    # Not durable: if a power loss loses it, the next sweep enqueues again.
    return step.change(effects=(enqueue,), durable=False, enqueued_at=step.now)


def park(step: TaskTransition, command: c.Park) -> TaskDecision:
    row = step.row
    if command.scope in TASK_SCOPES and row.allowance != command.allowance:
        # The budget was raised before the task was parked, so nothing would unpark it.
        instead = c.Release(
            fence=command.fence,
            reason="a budget was used up, and was raised meanwhile",
            usage=command.usage,
            last_output=command.last_output,
        )
        return release(step, instead)
    parked = e.TaskParked(
        **step.ids,
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


def unpark(step: TaskTransition, command: c.Unpark) -> TaskDecision:
    row = step.row
    if row.state is not TaskState.PARKED or row.parked is None:
        return step.wrong_state("parked")
    if row.parked.scope is not command.scope:
        detail = f"it is parked because of another budget: its {row.parked.scope.value}'s"
        return Refusal(RefusalReason.NOTHING_TO_DO, detail)
    if command.due and (row.due_at is None or step.now < to_tick(row.due_at)):
        return Refusal(RefusalReason.NOT_DUE, "it is not due yet", until=row.due_at)
    unparked = e.TaskUnparked(**step.ids, by=command.by)
    return step.pending(unparked, at=step.now, parked=None)


def add_budget(step: TaskTransition, command: c.AddBudget) -> TaskDecision:
    row = step.row
    if row.state.terminal:
        detail = f"the task is {row.state}: its budget can be raised only after it is resumed"
        return Refusal(RefusalReason.ENDED, detail)
    allowance = add_allowance(row.allowance, command.amount, command.request_id)
    if allowance is None:
        detail = "this request was already counted"
        return Refusal(RefusalReason.NOTHING_TO_DO, detail)
    more = command.amount
    added = e.TaskBudgetAdded(
        **step.ids,
        by=command.by,
        usd=more.usd,
        tokens=more.tokens,
        minutes=more.minutes,
    )
    if row.parked is None or row.parked.scope not in TASK_SCOPES:
        return step.change(added, allowance=allowance)
    unparked = e.TaskUnparked(**step.ids, by=command.by)
    return step.pending(added, unparked, at=step.now, allowance=allowance, parked=None)
