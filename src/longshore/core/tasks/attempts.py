"""The commands of workers, from the claim of a task to the end of its attempt.

An outcome under the current fence is accepted even after the lease's expiry, as long as no process
has ended the lease: the work is done, and discarding it would not help.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from operator import attrgetter
from typing import Any

from longshore.core.events import types as e
from longshore.core.events.event import to_tick
from longshore.core.tasks import commands as c
from longshore.core.tasks.backoff import delay_before
from longshore.core.tasks.changes import (
    Refusal,
    RefusalReason,
    TaskChange,
    TaskDecision,
    TaskTransition,
    cancel_task,
)
from longshore.core.tasks.failures import ErrorCategory, Failure, timeout_text
from longshore.core.tasks.lease import Lease, is_over, next_fence
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState

_UNCOUNTED = frozenset({ErrorCategory.RATE_LIMIT})
"""Failures that are not the task's fault and do not use up one of its attempts."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended without a result."""

    failure: Failure
    ran_for: timedelta | None = None
    usage: e.Usage | None = None
    last_output: int | None = None


def claim(step: TaskTransition, command: c.Claim) -> TaskDecision:
    row = step.row
    if row.lease is not None:
        return Refusal(
            RefusalReason.LEASE_HELD,
            f"worker {row.lease.worker_id!r} holds it",
            until=row.lease.expires_at,
        )
    if row.state is not TaskState.PENDING:
        return step.wrong_state("pending")
    # In whole ticks, as ``now`` is: a worker that wakes at exactly that moment must succeed.
    if row.due_at is not None and step.now < to_tick(row.due_at):
        return Refusal(RefusalReason.NOT_DUE, "it is not due yet", until=row.due_at)
    fence = next_fence(row.fence, command.epoch)
    lease = Lease(
        worker_id=command.worker_id,
        fence=fence,
        claim_id=step.change_id,
        acquired_at=step.now,
        expires_at=to_tick(step.now + command.lease_duration),
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
        durable=not command.local,
        state=TaskState.PROCESSING,
        attempt=row.attempt + 1,
        fence=fence,
        lease=lease,
        started_at=step.now,
        due_at=None,
        enqueued_at=None,
        ran_for=None,
        exit_code=None,
        last_output=None,
    )


def renew(step: TaskTransition, command: c.Renew) -> TaskDecision:
    lease = step.lease
    if not lease.is_live(step.now):
        return Refusal(RefusalReason.LEASE_LOST, "the lease ran out before it was renewed")
    expires_at = to_tick(step.now + command.lease_duration)
    # Renewals may arrive out of order, and usage only grows.
    usage = max(lease.usage, command.usage, key=attrgetter("cost_usd", "seconds"))
    renewed = replace(lease, expires_at=expires_at, heartbeats=lease.heartbeats + 1, usage=usage)
    heartbeat = e.TaskHeartbeat(
        task_id=step.row.id,
        job_id=step.row.spec.job_id,
        effective_until=renewed.expires_at,
        number=renewed.heartbeats,
        elapsed=_lease_age(step, lease),
        worker_id=lease.worker_id,
        process_id=command.process_id,
        attempt_number=step.row.attempt,
        rss_bytes=command.rss_bytes,
        last_activity=command.activity,
        usage=_lease_usage(renewed),
    )
    # Usage must be durable: a power loss must not lose what was spent.
    durable = not lease.local or renewed.usage != lease.usage
    return step.change(heartbeat, durable=durable, lease=renewed)


def _lease_usage(lease: Lease) -> e.Usage | None:
    """Returns the usage that an attempt last reported; None if it reported none."""
    return lease.usage if lease.usage != e.Usage() else None


def _lease_age(step: TaskTransition, lease: Lease) -> timedelta:
    # Never negative, although clocks differ and are set back.
    return max(step.now - lease.acquired_at, timedelta())


def save_checkpoint(step: TaskTransition, command: c.SaveCheckpoint) -> TaskDecision:
    return step.change(checkpoint=command.key)


def release(step: TaskTransition, command: c.Release) -> TaskDecision:
    row = step.row
    if row.cancel is not None:
        return cancel_task(step, row.cancel, usage=command.usage, last_output=command.last_output)
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
        effects=(step.enqueue(step.now),),
        state=TaskState.PENDING,
        lease=None,
        due_at=step.now,
        enqueued_at=step.now,
        last_output=command.last_output,
        usage=row.usage + command.usage,
    )


def complete(step: TaskTransition, command: c.Complete) -> TaskDecision:
    row = step.row
    if row.spec.requires_review and row.cancel is not None:
        # A review is not an end, and a cancelled result needs no review.
        return cancel_task(step, row.cancel, usage=command.usage, last_output=command.last_output)
    ended: dict[str, Any] = {
        "lease": None,
        "result": command.result,
        "exit_code": command.exit_code,
        "failure": None,
        "ran_for": command.duration,
        "last_output": command.last_output,
        "usage": row.usage + command.usage,
        "cancel": None,  # the outcome came first
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


def attempt_failed(step: TaskTransition, command: c.AttemptFailed) -> TaskDecision:
    if step.row.cancel is not None:
        return cancel_task(
            step, step.row.cancel, usage=command.usage, last_output=command.last_output
        )
    end = AttemptEnd(command.failure, command.duration, command.usage, command.last_output)
    return _end_attempt(step, end, jitter=command.jitter)


def time_out(step: TaskTransition, command: c.TimeOut) -> TaskDecision:
    row = step.row
    if row.cancel is not None:
        return cancel_task(step, row.cancel, usage=command.usage, last_output=command.last_output)
    failure = Failure(
        category=ErrorCategory.TIMEOUT,
        message=timeout_text(command.timeout),
        signal=command.signal,
    )
    used = row.attempts_used + 1
    if row.spec.retry_on_timeout and used < row.spec.retry.max_attempts:
        end = AttemptEnd(failure, command.elapsed, command.usage, command.last_output)
        return _end_attempt(step, end, jitter=command.jitter)
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


def lease_ended(step: TaskTransition, command: c.LeaseEnded) -> TaskDecision:
    lease = step.lease
    dead = command.holder_dead and lease.local
    if not dead and not is_over(lease, now=step.now, margin=command.margin):
        return Refusal(
            RefusalReason.LEASE_HELD,
            "the lease may still be used",
            until=lease.expires_at + command.margin,
        )
    if step.row.cancel is not None:
        return cancel_task(step, step.row.cancel, usage=_lease_usage(lease))
    why = "its process is gone" if dead else "its lease ran out"
    failure = Failure(
        category=ErrorCategory.CRASH, message=f"worker {lease.worker_id!r} stopped: {why}"
    )
    end = AttemptEnd(failure, _lease_age(step, lease), _lease_usage(lease))
    # The death of a worker is no reason to wait: without jitter the task is due at once.
    return _end_attempt(step, end, jitter=0.0)


def _end_attempt(step: TaskTransition, end: AttemptEnd, *, jitter: float) -> TaskChange:
    """The task becomes pending again after a backoff, or fails for good.

    The failure's category and the attempts that are left decide.
    """
    row, failure = step.row, end.failure
    counts = failure.category not in _UNCOUNTED
    used = row.attempts_used + counts
    ended: dict[str, Any] = {
        "lease": None,
        "attempts_used": used,
        "failure": failure,
        "exit_code": failure.exit_code,
        "ran_for": end.ran_for,
        "last_output": end.last_output,
        "usage": row.usage + end.usage if end.usage else row.usage,
    }
    if not failure.retryable or used >= row.spec.retry.max_attempts:
        failed = _failed_event(row, end, used, step.context.origin)
        return step.change(failed, state=TaskState.FAILED, finished_at=step.now, **ended)
    # A failure that does not count backs off too, or it would be retried every second for ever.
    tries = used if counts else row.attempt
    pause = delay_before(tries, row.spec.retry, jitter=jitter, retry_after=failure.retry_after)
    due_at = to_tick(step.now + pause)
    again = e.TaskProcessingFailed(
        task_id=row.id,
        job_id=row.spec.job_id,
        attempt_number=row.attempt,
        error=failure.message,
        error_category=failure.category.value,
        due_at=due_at,
        duration=end.ran_for,
        exit_code=failure.exit_code,
        last_output=end.last_output,
        usage=end.usage,
        peak_rss_bytes=failure.peak_rss_bytes,
    )
    return step.change(
        again,
        effects=(step.enqueue(due_at),),
        state=TaskState.PENDING,
        due_at=due_at,
        enqueued_at=step.now,
        **ended,
    )


def _failed_event(row: TaskRow, end: AttemptEnd, used: int, source: str) -> e.TaskFailed:
    failure = end.failure
    return e.TaskFailed(
        task_id=row.id,
        job_id=row.spec.job_id,
        error=failure.message,
        error_category=failure.category.value,
        retry_count=used,
        source=source,
        attempt_number=row.attempt or None,
        exit_code=failure.exit_code,
        duration=end.ran_for,
        last_output=end.last_output,
        usage=end.usage,
        peak_rss_bytes=failure.peak_rss_bytes,
    )


def fail_task(step: TaskTransition, command: c.FailTask) -> TaskDecision:
    row = step.row
    if row.lease is not None and not is_over(row.lease, now=step.now, margin=command.margin):
        return Refusal(
            RefusalReason.LEASE_HELD,
            "a worker is running it",
            until=row.lease.expires_at + command.margin,
        )
    if row.state not in (TaskState.PENDING, TaskState.PROCESSING):
        return step.wrong_state("pending")
    spent = None if row.lease is None else _lease_usage(row.lease)
    if row.cancel is not None:
        return cancel_task(step, row.cancel, usage=spent)
    end = AttemptEnd(failure=command.failure, usage=spent)
    failed = _failed_event(row, end, row.attempts_used, command.source)
    return step.change(
        failed,
        state=TaskState.FAILED,
        lease=None,
        failure=command.failure,
        exit_code=command.failure.exit_code,
        usage=row.usage + spent if spent else row.usage,
        finished_at=step.now,
        due_at=None,
        enqueued_at=None,
    )
