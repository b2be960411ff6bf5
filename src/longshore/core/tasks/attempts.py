"""The commands of workers, from the claim of a task to the end of its attempt.

An outcome under the current fence is accepted even after the lease's expiry, as long as no process
has ended the lease: the work is done, and discarding it would not help.
"""

from __future__ import annotations

from dataclasses import replace
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
from longshore.core.tasks.states import TaskState

_UNCOUNTED = frozenset({ErrorCategory.RATE_LIMIT})
"""Failures that are not the task's fault and do not use up one of its attempts."""


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
        **step.ids,
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
        **step.ids,
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
    released = e.TaskReleased(
        **step.ids,
        reason=command.reason,
        attempt_number=row.attempt,
        last_output=command.last_output,
        usage=command.usage,
    )
    return step.pending(
        released,
        at=step.now,
        lease=None,
        last_output=command.last_output,
        usage=row.usage + command.usage,
    )


def complete(step: TaskTransition, command: c.Complete) -> TaskDecision:
    row = step.row
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
            **step.ids,
            attempt_number=row.attempt,
            output=command.result,
            duration=command.duration,
            last_output=command.last_output,
            usage=command.usage,
        )
        return step.change(submitted, state=TaskState.IN_REVIEW, **ended)
    completed = e.TaskCompleted(
        **step.ids,
        attempt_number=row.attempt,
        output=command.result,
        duration=command.duration,
        exit_code=command.exit_code,
        last_output=command.last_output,
        usage=command.usage,
    )
    return step.change(completed, state=TaskState.COMPLETED, finished_at=step.now, **ended)


def attempt_failed(step: TaskTransition, command: c.AttemptFailed) -> TaskDecision:
    return _end_attempt(
        step,
        command.failure,
        jitter=command.jitter,
        ran_for=command.duration,
        usage=command.usage,
        last_output=command.last_output,
    )


def time_out(step: TaskTransition, command: c.TimeOut) -> TaskDecision:
    failure = Failure(
        category=ErrorCategory.TIMEOUT,
        message=timeout_text(command.timeout),
        signal=command.signal,
    )
    timed_out = e.TaskTimeout(
        **step.ids,
        attempt_number=step.row.attempt,
        timeout=command.timeout,
        elapsed=command.elapsed,
        signal=command.signal,
        last_output=command.last_output,
        usage=command.usage,
    )
    return _end_attempt(
        step,
        failure,
        jitter=command.jitter,
        ran_for=command.elapsed,
        usage=command.usage,
        last_output=command.last_output,
        timed_out=timed_out,
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
    # The death of a worker is no reason to wait: without jitter the task is due at once.
    return _end_attempt(
        step, failure, jitter=0.0, ran_for=_lease_age(step, lease), usage=_lease_usage(lease)
    )


def _end_attempt(
    step: TaskTransition,
    failure: Failure,
    *,
    jitter: float,
    ran_for: timedelta,
    usage: e.Usage | None,
    last_output: int | None = None,
    timed_out: e.TaskTimeout | None = None,
) -> TaskChange:
    """The task becomes pending again after a backoff, or fails for good.

    The failure's category (for a timeout, the definition) and the attempts that are left decide.
    """
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
    report = _failure_report(step, failure, ran_for, usage, last_output)
    may_retry = row.spec.retry_on_timeout if timed_out else failure.retryable
    if not may_retry or used >= row.spec.retry.max_attempts:
        failed = timed_out or e.TaskFailed(**report, retry_count=used, source=step.context.origin)
        return step.change(failed, state=TaskState.FAILED, finished_at=step.now, **ended)
    # A failure that does not count backs off too, or it would be retried every second for ever.
    tries = used if counts else row.attempt
    pause = delay_before(tries, row.spec.retry, jitter=jitter, retry_after=failure.retry_after)
    due_at = to_tick(step.now + pause)
    return step.pending(e.TaskProcessingFailed(**report, due_at=due_at), at=due_at, **ended)


def _failure_report(
    step: TaskTransition,
    failure: Failure,
    ran_for: timedelta | None,
    usage: e.Usage | None,
    last_output: int | None = None,
) -> dict[str, Any]:
    """Returns what the events of a failed attempt and of a failed task have in common."""
    return {
        **step.ids,
        "attempt_number": step.row.attempt or None,
        "error": failure.message,
        "error_category": failure.category.value,
        "exit_code": failure.exit_code,
        "duration": ran_for,
        "last_output": last_output,
        "usage": usage,
        "peak_rss_bytes": failure.peak_rss_bytes,
    }


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
    report = _failure_report(step, command.failure, None, spent)
    failed = e.TaskFailed(**report, retry_count=row.attempts_used, source=command.source)
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
