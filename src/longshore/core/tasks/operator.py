"""The commands of users, reviewers, operators and the dispatcher."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from longshore.core.events import types as e
from longshore.core.maximums import FEEDBACK_LIMIT_CHARACTERS, MAX_REVISIONS, comment_problem
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Refusal, RefusalReason, Wake
from longshore.core.tasks.rows import CancelRequest
from longshore.core.tasks.states import TaskState
from longshore.core.tasks.transition import (
    TaskDecision,
    TaskTransition,
    cancel_task,
    make_pending,
)


def parents_completed(step: TaskTransition, command: c.ParentsCompleted) -> TaskDecision:
    left = step.row.awaits - command.numbers
    if step.row.state is not TaskState.WAITING or left == step.row.awaits:
        return Refusal(
            reason=RefusalReason.NOTHING_TO_DO, detail="none of these parents is awaited"
        )
    return step.change(awaits=left) if left else make_pending(step)


def request_cancel(step: TaskTransition, command: c.RequestCancel) -> TaskDecision:
    row = step.row
    if command.round is not None and row.round > command.round:
        return _stale_round(row.round)
    if row.state.terminal:
        return Refusal(
            reason=RefusalReason.ENDED, detail=f"the task is {row.state} already, and that stands"
        )
    request = CancelRequest(by=command.by, reason=command.reason, at=step.now)
    if row.lease is None:
        return cancel_task(step, request)
    if row.cancel is not None:
        return Refusal(reason=RefusalReason.NOTHING_TO_DO, detail="its cancellation is under way")
    wake = Wake(row.lease.worker_id, row.id)
    return step.change(effects=(wake,), cancel=request)


def confirm_cancel(step: TaskTransition, command: c.ConfirmCancel) -> TaskDecision:
    if isinstance(lease := step.require_lease(command.fence), Refusal):
        return lease
    if step.row.cancel is None:
        return Refusal(
            reason=RefusalReason.WRONG_STATE, detail="its cancellation was not requested"
        )
    return cancel_task(step, step.row.cancel, usage=command.usage, last_output=command.last_output)


def request_revision(step: TaskTransition, command: c.RequestRevision) -> TaskDecision:
    row = step.row
    if (refusal := _not_reviewable(step, command)) is not None:
        return refusal
    if row.revision >= MAX_REVISIONS:
        detail = f"it was revised {MAX_REVISIONS} times already: approve it or cancel it"
        return Refusal(reason=RefusalReason.LIMIT_REACHED, detail=detail)
    problem = comment_problem(command.feedback, limit=FEEDBACK_LIMIT_CHARACTERS)
    if problem is not None:
        return Refusal(reason=RefusalReason.LIMIT_REACHED, detail=f"feedback {problem}")
    requested = e.TaskRevisionRequested(
        task_id=row.id,
        job_id=row.spec.job_id,
        feedback=command.feedback,
        revision=row.revision + 1,
        by=command.by,
    )
    return step.change(
        requested,
        effects=(step.enqueue(step.now),),
        state=TaskState.PENDING,
        revision=row.revision + 1,
        feedback=command.feedback,
        previous_result=row.result,
        result=None,
        # With the saved steps, the revision would return the same result.
        checkpoint=None,
        attempts_used=0,
        due_at=step.now,
        enqueued_at=step.now,
    )


def _not_reviewable(step: TaskTransition, command: c.Approve | c.RequestRevision) -> Refusal | None:
    row = step.row
    if row.state is not TaskState.IN_REVIEW:
        return step.wrong_state("in review")
    if command.attempt is not None and command.attempt != row.attempt:
        detail = f"the result in review is that of attempt {row.attempt}, not of {command.attempt}"
        return Refusal(reason=RefusalReason.WRONG_STATE, detail=detail)
    return None


def approve(step: TaskTransition, command: c.Approve) -> TaskDecision:
    row = step.row
    if (refusal := _not_reviewable(step, command)) is not None:
        return refusal
    approved = e.TaskApproved(task_id=row.id, job_id=row.spec.job_id, by=command.by)
    completed = e.TaskCompleted(
        task_id=row.id,
        job_id=row.spec.job_id,
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
        return Refusal(reason=RefusalReason.WRONG_STATE, detail=detail)
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
        waiting = e.TaskWaiting(task_id=row.id, job_id=row.spec.job_id, round=command.round)
        return step.change(waiting, state=TaskState.WAITING, awaits=left, **afresh)
    return make_pending(step, **afresh)


def _stale_round(round_: int) -> Refusal:
    return Refusal(
        reason=RefusalReason.STALE_ROUND, detail=f"the task is in round {round_} already"
    )


def enqueue_again(step: TaskTransition, command: c.EnqueueAgain) -> TaskDecision:
    row = step.row
    if row.state is not TaskState.PENDING or row.due_at is None:
        return step.wrong_state("pending")
    # Not durable: if a power loss loses it, the next sweep enqueues again.
    return step.change(
        effects=(step.enqueue(max(step.now, row.due_at)),), durable=False, enqueued_at=step.now
    )
