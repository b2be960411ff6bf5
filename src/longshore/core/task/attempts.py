"""What workers ask and report: from the claim of a task to the end of its attempt.

Every report carries the fence of the lease it was made under; under any other fence it changes
nothing. An outcome is taken from the current fence even a moment after the lease's end, as long as
nobody has ended it: the work is done, and throwing it away would help nobody.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from typing import Any

from longshore.core import commands as c
from longshore.core.backoff import delay_before
from longshore.core.changes import Reason, Refusal
from longshore.core.events import types as e
from longshore.core.events.event import to_tick
from longshore.core.failures import ErrorCategory, Failure, late_text
from longshore.core.lease import Lease, next_fence, over
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.core.task.step import Decision, Step, TaskChange, cancelled

_UNCOUNTED = frozenset({ErrorCategory.RATE_LIMIT})
"""Failures that say nothing about the task, so they do not use up one of its attempts."""


def claim(step: Step, command: c.Claim) -> Decision:
    row = step.row
    if row.lease is not None:
        return Refusal(
            reason=Reason.LEASE_HELD,
            detail=f"worker {row.lease.worker_id!r} holds it",
            until=row.lease.expires_at,
        )
    if row.state is not TaskState.PENDING:
        return step.wrong_state("pending")
    # In whole ticks as ``now`` is: whoever wakes at that very moment must not be turned away.
    if row.due_at is not None and step.now < to_tick(row.due_at):
        return Refusal(reason=Reason.NOT_DUE, detail="it is not due yet", until=row.due_at)
    fence = next_fence(row.fence, command.epoch)
    lease = Lease(
        worker_id=command.worker_id,
        fence=fence,
        claim_id=step.change_id,
        acquired_at=step.now,
        expires_at=to_tick(step.now + command.lasts),
        local=command.local,
    )
    started = e.TaskProcessingStarted(
        task_id=row.id,
        job_id=row.spec.job_id,
        started_at=step.now,
        effective_until=lease.expires_at,
        worker_id=command.worker_id,
        process_id=command.process_id,
        attempt_number=row.attempt + 1,
        fence=fence,
    )
    return step.change(
        started,
        promised=not command.local,
        state=TaskState.PROCESSING,
        attempt=row.attempt + 1,
        fence=fence,
        lease=lease,
        started_at=step.now,
        due_at=None,
        rung_at=None,
        ran_for=None,
        exit_code=None,
        last_output=None,
    )


def renew(step: Step, command: c.Renew) -> Decision:
    lease = step.held(command.fence)
    if isinstance(lease, Refusal):
        return lease
    if not lease.live(step.now):
        return Refusal(reason=Reason.LEASE_LOST, detail="the lease ran out before it was renewed")
    expires_at = to_tick(step.now + command.lasts)
    # One that was sent earlier may come later: what was spent only grows.
    usage = max(lease.usage, command.usage, key=attrgetter("cost_usd", "seconds"))
    renewed = replace(lease, expires_at=expires_at, heartbeats=lease.heartbeats + 1, usage=usage)
    heartbeat = e.TaskHeartbeat(
        task_id=step.row.id,
        job_id=step.row.spec.job_id,
        effective_until=renewed.expires_at,
        number=renewed.heartbeats,
        elapsed=_age(step, lease),
        worker_id=lease.worker_id,
        process_id=command.process_id,
        attempt_number=step.row.attempt,
        rss_bytes=command.rss_bytes,
        last_activity=command.activity,
        usage=_spent(renewed),
    )
    # What was paid for is not paid for again because nobody remembers it.
    promised = not lease.local or renewed.usage != lease.usage
    return step.change(heartbeat, promised=promised, lease=renewed)


def _spent(lease: Lease) -> e.Usage | None:
    """What an attempt consumed that tells nothing more; None: as far as it is known, nothing."""
    return lease.usage if lease.usage != e.Usage() else None


def _age(step: Step, lease: Lease) -> timedelta:
    # Clocks differ, and they are set back: nothing has run for less than no time.
    return max(step.now - lease.acquired_at, timedelta())


def save_checkpoint(step: Step, command: c.SaveCheckpoint) -> Decision:
    if isinstance(lease := step.held(command.fence), Refusal):
        return lease
    return step.change(checkpoint=command.key)


def release(step: Step, command: c.Release) -> Decision:
    if isinstance(lease := step.held(command.fence), Refusal):
        return lease
    row = step.row
    if row.cancel is not None:
        return cancelled(step, row.cancel, usage=command.usage, last_output=command.last_output)
    released = e.TaskReleased(
        task_id=row.id,
        job_id=row.spec.job_id,
        reason=command.reason,
        attempt_number=row.attempt,
        last_output=command.last_output,
        usage=command.usage,
    )
    return step.change(
        released,
        effects=(step.ring(step.now),),
        state=TaskState.PENDING,
        lease=None,
        due_at=step.now,
        rung_at=step.now,
        last_output=command.last_output,
        usage=row.usage + command.usage,
    )


def complete(step: Step, command: c.Complete) -> Decision:
    if isinstance(lease := step.held(command.fence), Refusal):
        return lease
    row = step.row
    if row.spec.requires_review and row.cancel is not None:
        # A review is not an end: nobody would look at what nobody wants any more.
        return cancelled(step, row.cancel, usage=command.usage, last_output=command.last_output)
    ended: dict[str, Any] = {
        "lease": None,
        "result": command.result,
        "exit_code": command.exit_code,
        "failure": None,
        "ran_for": command.duration,
        "last_output": command.last_output,
        "usage": row.usage + command.usage,
        "cancel": None,  # the outcome was faster: it stands
    }
    if row.spec.requires_review:
        submitted = e.TaskSubmittedForReview(
            task_id=row.id,
            job_id=row.spec.job_id,
            attempt_number=row.attempt,
            output=command.result,
            duration=command.duration,
            last_output=command.last_output,
            usage=command.usage,
        )
        return step.change(submitted, state=TaskState.IN_REVIEW, **ended)
    completed = e.TaskCompleted(
        task_id=row.id,
        job_id=row.spec.job_id,
        attempt_number=row.attempt,
        output=command.result,
        duration=command.duration,
        exit_code=command.exit_code,
        last_output=command.last_output,
        usage=command.usage,
    )
    return step.change(completed, state=TaskState.COMPLETED, finished_at=step.now, **ended)


def attempt_failed(step: Step, command: c.AttemptFailed) -> Decision:
    if isinstance(lease := step.held(command.fence), Refusal):
        return lease
    if step.row.cancel is not None:
        return cancelled(
            step, step.row.cancel, usage=command.usage, last_output=command.last_output
        )
    return _end_attempt(
        step,
        command.failure,
        roll=command.roll,
        ran_for=command.duration,
        usage=command.usage,
        last_output=command.last_output,
    )


def time_out(step: Step, command: c.TimeOut) -> Decision:
    if isinstance(lease := step.held(command.fence), Refusal):
        return lease
    row = step.row
    if row.cancel is not None:
        return cancelled(step, row.cancel, usage=command.usage, last_output=command.last_output)
    failure = Failure(
        category=ErrorCategory.TIMEOUT,
        message=late_text(command.timeout),
        signal=command.signal,
    )
    used = row.attempts_used + 1
    if row.spec.retry_on_timeout and used < row.spec.retry.max_attempts:
        return _end_attempt(
            step,
            failure,
            roll=command.roll,
            ran_for=command.elapsed,
            usage=command.usage,
            last_output=command.last_output,
        )
    timed_out = e.TaskTimeout(
        task_id=row.id,
        job_id=row.spec.job_id,
        attempt_number=row.attempt,
        timeout=command.timeout,
        elapsed=command.elapsed,
        signal=command.signal,
        last_output=command.last_output,
        usage=command.usage,
    )
    return step.change(
        timed_out,
        state=TaskState.FAILED,
        lease=None,
        attempts_used=used,
        failure=failure,
        finished_at=step.now,
        ran_for=command.elapsed,
        last_output=command.last_output,
        usage=row.usage + command.usage,
    )


def lease_ended(step: Step, command: c.LeaseEnded) -> Decision:
    lease = step.held(command.fence)
    if isinstance(lease, Refusal):
        return lease
    gone = command.holder_gone and lease.local
    if not gone and not over(lease, now=step.now, margin=command.margin):
        return Refusal(
            reason=Reason.LEASE_HELD,
            detail="the lease may still be used",
            until=lease.expires_at + command.margin,
        )
    if step.row.cancel is not None:
        return cancelled(step, step.row.cancel, usage=_spent(lease))
    why = "its process is gone" if gone else "its lease ran out"
    failure = Failure(
        category=ErrorCategory.CRASH, message=f"worker {lease.worker_id!r} stopped: {why}"
    )
    # A dead worker says nothing about how soon the task may be tried: roll 0 is "at once".
    return _end_attempt(step, failure, roll=0.0, ran_for=_age(step, lease), usage=_spent(lease))


def _end_attempt(
    step: Step,
    failure: Failure,
    *,
    roll: float,
    ran_for: timedelta,
    usage: e.Usage | None = None,
    last_output: int | None = None,
) -> TaskChange:
    """Back to pending after a pause, or over, by the category and the attempts left."""
    row = step.row
    counts = failure.category not in _UNCOUNTED
    used = row.attempts_used + counts
    ended: dict[str, Any] = {
        "lease": None,
        "attempts_used": used,
        "failure": failure,
        "exit_code": failure.exit_code,
        "ran_for": ran_for,
        "last_output": last_output,
        "usage": row.usage + usage if usage else row.usage,
    }
    if not failure.retryable or used >= row.spec.retry.max_attempts:
        source = step.context.origin
        failed = _failed(row, failure, used, source, ran_for, usage, last_output)
        return step.change(failed, state=TaskState.FAILED, finished_at=step.now, **ended)
    # What does not count must slow down too, or it would knock once a second for ever.
    tries = used if counts else row.attempt
    pause = delay_before(tries, row.spec.retry, roll=roll, retry_after=failure.retry_after)
    due_at = to_tick(step.now + pause)
    again = e.TaskProcessingFailed(
        task_id=row.id,
        job_id=row.spec.job_id,
        attempt_number=row.attempt,
        error=failure.message,
        error_category=failure.category.value,
        due_at=due_at,
        duration=ran_for,
        exit_code=failure.exit_code,
        last_output=last_output,
        usage=usage,
        peak_rss_bytes=failure.peak_rss_bytes,
    )
    return step.change(
        again,
        effects=(step.ring(due_at),),
        state=TaskState.PENDING,
        due_at=due_at,
        rung_at=step.now,
        **ended,
    )


def _failed(
    row: TaskRow,
    failure: Failure,
    used: int,
    source: str,
    ran_for: timedelta | None = None,
    usage: e.Usage | None = None,
    last_output: int | None = None,
) -> e.TaskFailed:
    return e.TaskFailed(
        task_id=row.id,
        job_id=row.spec.job_id,
        error=failure.message,
        error_category=failure.category.value,
        retry_count=used,
        source=source,
        attempt_number=row.attempt or None,
        exit_code=failure.exit_code,
        duration=ran_for,
        last_output=last_output,
        usage=usage,
        peak_rss_bytes=failure.peak_rss_bytes,
    )


def fail_task(step: Step, command: c.FailTask) -> Decision:
    row = step.row
    if row.lease is not None and not over(row.lease, now=step.now, margin=command.margin):
        return Refusal(
            reason=Reason.LEASE_HELD,
            detail="somebody is working on it",
            until=row.lease.expires_at + command.margin,
        )
    if row.state not in (TaskState.PENDING, TaskState.PROCESSING):
        return step.wrong_state("pending")
    spent = None if row.lease is None else _spent(row.lease)
    if row.cancel is not None:
        return cancelled(step, row.cancel, usage=spent)
    failed = _failed(row, command.failure, row.attempts_used, command.source, usage=spent)
    return step.change(
        failed,
        state=TaskState.FAILED,
        lease=None,
        failure=command.failure,
        exit_code=command.failure.exit_code,
        usage=row.usage + spent if spent else row.usage,
        finished_at=step.now,
        due_at=None,
        rung_at=None,
    )
