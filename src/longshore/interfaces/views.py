"""Jobs and tasks as JSON documents, the same at every door.

Names are those of the wire: camel case, ``taskId`` for a task's name inside its job, ``status`` for
its state, times in ISO 8601. ``exitCode`` of a task is the one its last attempt ended with, if it
ended by itself; that of a job is the one with which a shell would have ended that ran it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from longshore.core.attempt_history import PastAttempt
from longshore.core.budgets import Budget, tokens_of
from longshore.core.dead_letters import DeadLetter
from longshore.core.events.codec import properties_of_body
from longshore.core.events.event import Event
from longshore.core.events.types import TaskHealthCheck, Usage
from longshore.core.failures import ErrorCategory, Failure
from longshore.core.health import CheckedTask
from longshore.core.keys import KeyRecord
from longshore.core.reasons import Reason
from longshore.core.rows import JobRow, Parked, TaskRow
from longshore.core.sanitise import safe_excerpt
from longshore.core.states import JobState, TaskState
from longshore.ports.queues import PausedQueue
from longshore.services.budgeting import Standing
from longshore.services.post_mortem import PostMortem

TIMED_OUT = 124
"""What ``timeout`` exits with, and so do we."""

_FAILED = 1
_SIGNALLED = 128
_BODY_CHARACTERS = 2000


def exit_code_of(task: TaskRow) -> int | None:
    """How a shell would have ended that ran the task; None while it has not ended."""
    if not task.state.terminal:
        return None
    if task.state is TaskState.COMPLETED:
        return task.exit_code or 0
    failure = task.failure
    if task.state is TaskState.CANCELLED or failure is None:
        return _FAILED
    if failure.category is ErrorCategory.TIMEOUT:
        return TIMED_OUT
    if failure.exit_code is not None:
        return failure.exit_code
    number = signal.Signals.__members__.get(failure.signal or "")
    return _FAILED if number is None else _SIGNALLED + number


def job_exit_code(job: JobRow, tasks: Iterable[TaskRow]) -> int | None:
    """Of a job with one task that task's; else 0 or 1; None while the job runs."""
    if not job.state.terminal:
        return None
    if job.total == 1:
        return next((exit_code_of(task) for task in tasks), None)
    return 0 if job.state is JobState.COMPLETED else _FAILED


def job_document(job: JobRow, *, exit_code: int | None) -> dict[str, Any]:
    """A job as a listing shows it."""
    over = len(job.ended) + len(job.blocked)
    return {
        "jobId": job.id,
        "name": job.spec.name,
        "status": job.state.value,
        "exitCode": exit_code,
        "totalTasks": job.total,
        "progress": {
            "completed": len(job.completed),
            "failed": len(job.failed),
            "cancelled": len(job.cancelled),
            "blocked": len(job.blocked),
            "open": job.total - over,
        },
        "requestId": job.spec.request_id,
        "round": job.round,
        "usage": _usage(job.usage),
        "createdAt": moment(job.spec.created_at),
        "finishedAt": moment(job.finished_at),
        "durationMs": _ms(job.finished_at - job.spec.created_at if job.finished_at else None),
    }


def task_document(task: TaskRow, *, last_event: Event | None = None) -> dict[str, Any]:
    """A task as a listing shows it."""
    document: dict[str, Any] = {
        "requestId": task.id,  # the wire's word for a task's global id
        "taskId": task.spec.key,
        "jobId": task.spec.job_id,
        "name": task.spec.definition,
        "status": task.state.value,
        "exitCode": task.exit_code,
        "queue": task.spec.queue,
        "priority": task.spec.priority.name.lower(),
        "attempt": task.attempt,
        "attemptsUsed": task.attempts_used,
        "maxAttempts": task.spec.retry.max_attempts,
        "workerId": task.lease.worker_id if task.lease else None,
        "error": _failure(task.failure),
        "parked": _parked(task.parked),
        "createdAt": moment(task.spec.created_at),
        "dueAt": moment(task.due_at),
        "startedAt": moment(task.started_at),
        "finishedAt": moment(task.finished_at),
        "durationMs": _ms(task.ran_for),
        "usage": _usage(task.usage + task.lease.usage if task.lease else task.usage),
    }
    if last_event is not None:
        document["lastEvent"] = {"type": last_event.type, "at": moment(last_event.at)}
    return document


def _parked(parked: Parked | None) -> dict[str, Any] | None:
    if parked is None:
        return None
    return {"budget": parked.scope.value, "reason": parked.reason, "at": moment(parked.at)}


def _usage(usage: Usage) -> dict[str, Any]:
    return {"costUsd": usage.cost_usd, "turns": usage.turns, "tokens": tokens_of(usage)}


def standing_document(standing: Standing) -> dict[str, Any]:
    """A budget and what is spent of it."""
    return {
        "limit": budget_document(standing.limit),
        "added": budget_document(standing.added),
        "spent": _spent(standing.spent),
        "reserved": _spent(standing.reserved),
    }


def budget_document(budget: Budget) -> dict[str, Any]:
    """Amounts; None: that is not limited."""
    return {"usd": budget.usd, "tokens": budget.tokens, "minutes": budget.minutes}


def _spent(usage: Usage) -> dict[str, Any]:
    return {"usd": usage.cost_usd, "tokens": tokens_of(usage), "minutes": usage.seconds / 60}


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {
        "message": failure.message,
        "category": failure.category.value,
        "type": failure.error_type,
        "signal": failure.signal,
    }


def dead_letter_document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as a listing shows it; of a message without a task, what a task has is null."""
    row, message = letter.row, letter.message
    return {
        "id": letter.id,
        "kind": "task" if message is None else "message",
        "at": moment(letter.at),
        "queue": letter.queue,
        "error": letter.reason,
        "category": letter.category.value if letter.category else None,
        "requestId": row.id if row else None,
        "jobId": row.spec.job_id if row else None,
        "taskId": row.spec.key if row else None,
        "name": row.spec.definition if row else None,
        "round": row.round if row else None,
        "attemptsUsed": row.attempts_used if row else None,
        "maxAttempts": row.spec.retry.max_attempts if row else None,
        "receives": message.receives if message else None,
    }


def post_mortem_document(found: PostMortem) -> dict[str, Any]:
    """A dead letter with all that is known of it."""
    row, message = found.letter.row, found.letter.message
    return {
        **dead_letter_document(found.letter),
        "endedBy": found.ended_by,
        "body": safe_excerpt(message.body, limit=_BODY_CHARACTERS) if message else None,
        "bodyBytes": len(message.body.encode()) if message else None,
        "sentAt": moment(message.sent_at) if message else None,
        "inputBytes": row.spec.input.size if row and row.spec.input else 0,
        "task": task_document(row) if row else None,
        "attempts": [_attempt(attempt) for attempt in found.attempts],
        "lastLines": [
            {"stream": line.stream.value, "text": line.text} for line in found.last_lines
        ],
    }


def _attempt(attempt: PastAttempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "round": attempt.round,
        "workerId": attempt.worker_id,
        "startedAt": moment(attempt.started_at),
        "endedAt": moment(attempt.ended_at),
        "durationMs": _ms(attempt.took),
        "outcome": attempt.ended,
        "error": attempt.error,
        "category": attempt.category,
        "exitCode": attempt.exit_code,
    }


def reason_document(reason: Reason) -> dict[str, Any]:
    """Why something waits, and the command that would move it on."""
    return {
        "code": reason.code.value,
        "text": reason.text,
        "since": moment(reason.since),
        "until": moment(reason.until),
        "requestId": reason.task_id,
        "remedy": reason.remedy_command,
    }


def task_health_document(task: TaskRow, found: CheckedTask | None) -> dict[str, Any]:
    """How a task looks now; what only a running one has is null."""
    return {
        "requestId": task.id,
        "status": task.state.value,
        "health": found.health.value if found else None,
        "elapsedMs": _ms(found.elapsed) if found else None,
        "silentMs": _ms(found.silence) if found else None,
        "lastEventType": found.last_event_type if found else None,
        "workerId": found.worker_id if found else None,
    }


def health_check_document(body: TaskHealthCheck, at: datetime) -> dict[str, Any]:
    """What a check found: its event's properties, and when."""
    return {**properties_of_body(body), "checkedAt": moment(at)}


def paused_document(queue: PausedQueue) -> dict[str, Any]:
    """A queue that is paused or held: by whom, why, since when; a hold also until when."""
    return {
        "name": queue.name,
        "by": queue.by,
        "reason": queue.reason,
        "at": moment(queue.at),
        "until": moment(queue.until),
    }


def key_document(record: KeyRecord) -> dict[str, Any]:
    """A key as far as it may be shown."""
    return {
        "id": record.id,
        "name": record.name,
        "scopes": sorted(scope.value for scope in record.scopes),
        "createdAt": moment(record.created_at),
        "revokedAt": moment(record.revoked_at),
    }


def counts_of(states: Mapping[str, TaskState]) -> dict[str, int]:
    """How many tasks are in which state; states that none is in are there with zero."""
    found = list(states.values())
    return {state.value: found.count(state) for state in TaskState}


def moment(when: datetime | None) -> str | None:
    """A time as the wire has it."""
    if when is None:
        return None
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ms(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // timedelta(milliseconds=1)
