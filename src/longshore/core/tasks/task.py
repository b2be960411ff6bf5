"""The task aggregate: ``apply(row, command) -> Change | Refusal``, and nothing else.

::

    waiting ─► pending ─► processing ─► completed
       ▲         ▲  ▲         │   │
       │         │  └─────────┘   ├──► in_review ─► completed
       │         │  failed, gone, │        │
       │         │  released      │        └──► pending (revision)
       │         │                └──► parked ─► pending (budget raised)
       └─ resume ┴─── failed, cancelled

An outcome under the current fence is accepted even after the lease's expiry, as long as no process
has ended the lease: the work is done, and discarding it would not help.

Pure: the time, the jitter of a backoff and the change's id are arguments. Every event of a task is
decided here, so the rules of leases, rounds and attempts are in one place. A command with a fence
is decided only if the fence is that of the current lease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any

from longshore.core.budgets import TASK_SCOPES, add_allowance
from longshore.core.events import types as e
from longshore.core.events.event import EventContext, to_tick
from longshore.core.jobs.numbers import NumberSet
from longshore.core.maximums import FEEDBACK_LIMIT_CHARACTERS, MAX_REVISIONS, comment_problem
from longshore.core.tasks import commands as c
from longshore.core.tasks.backoff import delay_before
from longshore.core.tasks.changes import (
    Enqueue,
    Refusal,
    RefusalReason,
    TaskChange,
    TaskDecision,
    TaskTransition,
    Wake,
    cancel_task,
    make_pending,
)
from longshore.core.tasks.failures import ErrorCategory, Failure, timeout_text
from longshore.core.tasks.lease import Lease, is_over, next_fence
from longshore.core.tasks.rows import CancelRequest, ParkRecord, TaskRow, TaskSpec
from longshore.core.tasks.states import TaskState
from longshore.core.text.durations import format_duration

__all__ = ["TaskChange", "TaskDecision", "apply", "create"]

_SHORTEST_COUNTED_WAIT = timedelta(seconds=1)
"""Shorter waits for a rate limit count as this long, so that their number is limited as well."""


def create(spec: TaskSpec, awaits: NumberSet, *, now: datetime, change_id: str) -> TaskChange:
    """Returns a new task: pending if it awaits no parent, else waiting, without an event."""
    now = to_tick(now)
    row = TaskRow(spec=spec, state=TaskState.WAITING, version=0, change_id="", updated_at=now)
    step = TaskTransition(row, now, change_id, EventContext(origin="producer", source="user"))
    if awaits:
        return step.change(awaits=awaits)
    return make_pending(step)


def apply(row: TaskRow, command: c.Command, *, now: datetime, change_id: str) -> TaskDecision:
    """Decide a command from the row alone."""
    decide, origin, source = _RULES[type(command)]
    worker_id = None
    if origin == "worker":
        holder = command if isinstance(command, c.Claim) else row.lease
        worker_id = holder.worker_id if holder else None
    step = TaskTransition(row, to_tick(now), change_id, _context(origin, source, worker_id))
    if isinstance(command, c.FencedCommand) and (refusal := step.check_fence(command.fence)):
        return refusal
    if (
        isinstance(command, c.AttemptCommand)
        and row.cancel is not None
        # A result that needs no review completes the task although it was to be cancelled.
        and (row.spec.requires_review or not isinstance(command, c.Complete))
    ):
        return cancel_task(step, row.cancel, usage=command.usage, last_output=command.last_output)
    return decide(step, command)


@lru_cache(maxsize=1024)
def _context(origin: str, source: str, worker_id: str | None) -> EventContext:
    """Returns the context of events, cached: there are only a few."""
    return EventContext(origin=origin, source=source, worker_id=worker_id)


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
    # Not later than now: another clock may have written ``due_at``.
    due_at = step.now if command.due_at is None else min(to_tick(command.due_at), step.now)
    released = e.TaskReleased(
        **_attempt_report(step, command),
        reason=command.reason,
        due_at=due_at if due_at < step.now else None,
    )
    return step.pending(released, at=due_at, **_attempt_fields(row, command))


def _attempt_report(step: TaskTransition, command: c.AttemptCommand) -> dict[str, Any]:
    """Returns what every event of an ended attempt says."""
    return {
        **step.ids,
        "attempt_number": step.row.attempt,
        "last_output": command.last_output,
        "usage": command.usage,
    }


def _attempt_fields(row: TaskRow, command: c.AttemptCommand) -> dict[str, Any]:
    """Returns what the end of an attempt changes in the row, however it ended."""
    usage = row.usage + command.usage
    return {"lease": None, "last_output": command.last_output, "usage": usage}


def complete(step: TaskTransition, command: c.Complete) -> TaskDecision:
    row = step.row
    ended: dict[str, Any] = {
        **_attempt_fields(row, command),
        "result": command.result,
        "exit_code": command.exit_code,
        "failure": None,
        "ran_for": command.duration,
        "cancel": None,  # the outcome came first
    }
    report = _attempt_report(step, command)
    report |= {"output": command.result, "duration": command.duration}
    if row.spec.requires_review:
        submitted = e.TaskSubmittedForReview(**report)
        return step.change(submitted, state=TaskState.IN_REVIEW, **ended)
    completed = e.TaskCompleted(**report, exit_code=command.exit_code)
    return step.change(completed, state=TaskState.COMPLETED, finished_at=step.now, **ended)


def attempt_failed(step: TaskTransition, command: c.AttemptFailed) -> TaskDecision:
    return _end_attempt(step, command.failure, command, command.duration, jitter=command.jitter)


def time_out(step: TaskTransition, command: c.TimeOut) -> TaskDecision:
    failure = Failure(
        category=ErrorCategory.TIMEOUT,
        message=timeout_text(command.timeout),
        signal=command.signal,
    )
    timed_out = e.TaskTimeout(
        **_attempt_report(step, command),
        timeout=command.timeout,
        elapsed=command.elapsed,
        signal=command.signal,
    )
    return _end_attempt(
        step, failure, command, command.elapsed, jitter=command.jitter, timed_out=timed_out
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
    message = f"worker {lease.worker_id!r} stopped: {why}"
    if not command.begun:
        released = e.TaskReleased(**step.ids, reason=message, attempt_number=step.row.attempt)
        return step.pending(released, at=step.now, lease=None)
    failure = Failure(category=ErrorCategory.CRASH, message=message)
    # The death of a worker is no reason to wait: without jitter the task is due at once.
    return _end_attempt(step, failure, None, _lease_age(step, lease), jitter=0.0)


def _end_attempt(
    step: TaskTransition,
    failure: Failure,
    report: c.AttemptCommand | None,
    ran_for: timedelta,
    *,
    jitter: float,
    timed_out: e.TaskTimeout | None = None,
) -> TaskChange:
    """The task becomes pending again after a backoff, or fails for good.

    The failure's category (for a timeout, the definition) and the attempts that are left decide.

    Args:
        report: Of the lease holder; None: it has reported nothing but its heartbeats.
    """
    row = step.row
    usage = report.usage if report else _lease_usage(step.lease)
    last_output = report.last_output if report else None
    counts = failure.uses_attempt
    used = row.attempts_used + counts
    # A failure that does not count backs off too, or it would be retried every second.
    tries = used if counts else row.attempt
    pause = delay_before(tries, row.spec.retry, jitter=jitter, retry_after=failure.retry_after)
    waits, longest = row.rate_limit_waits, row.spec.retry.rate_limit_wait
    if not counts:
        waits += max(pause, _SHORTEST_COUNTED_WAIT)
        if waits > longest:
            text = f"{failure.message} (waited for rate limits for {format_duration(waits - pause)}"
            more = f" already; at most {format_duration(longest)} by `retry.rate_limit_wait`)"
            failure = replace(failure, message=f"{text}{more}", retry=False)
    ended: dict[str, Any] = {
        "lease": None,
        "attempts_used": used,
        "rate_limit_waits": waits,
        "failure": failure,
        "exit_code": failure.exit_code,
        "ran_for": ran_for,
        "last_output": last_output,
        "usage": row.usage + usage if usage else row.usage,
    }
    fields = _failure_report(step, failure, ran_for, usage, last_output)
    may_retry = row.spec.retry_on_timeout if timed_out else failure.retryable
    if not may_retry or used >= row.spec.retry.max_attempts:
        failed = timed_out or e.TaskFailed(**fields, retry_count=used, source=step.context.origin)
        return step.change(failed, state=TaskState.FAILED, finished_at=step.now, **ended)
    due_at = to_tick(step.now + pause)
    return step.pending(e.TaskProcessingFailed(**fields, due_at=due_at), at=due_at, **ended)


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
        "retry_after": failure.retry_after
        if failure.category is ErrorCategory.RATE_LIMIT
        else None,
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
        rate_limit_waits=timedelta(0),
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
        "rate_limit_waits": timedelta(0),
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
        **_attempt_report(step, command),
        scope=command.scope.value,
        reason=command.reason,
        due_at=command.until,
        duration=command.duration,
    )
    return step.change(
        parked,
        state=TaskState.PARKED,
        parked=ParkRecord(
            scope=command.scope, unit=command.unit, reason=command.reason, at=step.now
        ),
        due_at=command.until,
        enqueued_at=None,
        ran_for=command.duration,
        **_attempt_fields(row, command),
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
        return Refusal(RefusalReason.NOTHING_TO_DO, "this request was already counted")
    added = e.TaskBudgetAdded(**step.ids, by=command.by, **asdict(command.amount))
    if row.parked is None or row.parked.scope not in TASK_SCOPES:
        return step.change(added, allowance=allowance)
    unparked = e.TaskUnparked(**step.ids, by=command.by)
    return step.pending(added, unparked, at=step.now, allowance=allowance, parked=None)


_Rule = tuple[Callable[[TaskTransition, Any], TaskDecision], str, str]

_RULES: dict[type, _Rule] = {
    c.ParentsCompleted: (parents_completed, "dispatcher", "system"),
    c.Claim: (claim, "worker", "system"),
    c.Renew: (renew, "worker", "system"),
    c.SaveCheckpoint: (save_checkpoint, "worker", "system"),
    c.Release: (release, "worker", "system"),
    c.Park: (park, "worker", "system"),
    c.AttemptFailed: (attempt_failed, "worker", "system"),
    c.Complete: (complete, "worker", "system"),
    c.TimeOut: (time_out, "worker", "system"),
    c.LeaseEnded: (lease_ended, "sweeper", "system"),
    c.FailTask: (fail_task, "sweeper", "system"),
    c.RequestCancel: (request_cancel, "operator", "user"),
    c.ConfirmCancel: (confirm_cancel, "worker", "system"),
    c.RequestRevision: (request_revision, "operator", "user"),
    c.Approve: (approve, "operator", "user"),
    c.Resume: (resume, "operator", "user"),
    c.Unpark: (unpark, "operator", "user"),
    c.AddBudget: (add_budget, "operator", "user"),
    c.EnqueueAgain: (enqueue_again, "sweeper", "system"),
}
