"""The attempts of a task, as its events tell of them: who ran it, when, and how each ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from longshore.core.error_categories import ErrorCategory
from longshore.core.events import types as e
from longshore.core.events.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """One run of a task by one worker."""

    number: int
    round: int
    worker_id: str
    started_at: datetime
    ended: str | None = None  # in a word; None: nobody has said
    ended_at: datetime | None = None
    took: timedelta | None = None
    error: str | None = None
    category: str | None = None
    exit_code: int | None = None


def attempts_in(history: Iterable[Event]) -> list[PastAttempt]:
    """The attempts that a task's events tell of, in order."""
    found: list[PastAttempt] = []
    round_ = 1
    for event in history:
        body = event.body
        if isinstance(body, e.TaskPending):
            round_ = body.round
        elif isinstance(body, e.TaskProcessingStarted):
            found.append(
                PastAttempt(
                    number=body.attempt_number,
                    round=round_,
                    worker_id=body.worker_id,
                    started_at=body.started_at,
                )
            )
        # An end that comes from outside after the attempt's own is the task's, not the attempt's.
        elif found and found[-1].ended is None:
            found[-1] = _ended(found[-1], event)
    return found


def _ended(attempt: PastAttempt, event: Event) -> PastAttempt:
    match event.body:
        case e.TaskProcessingFailed() | e.TaskFailed() as body:
            attempt = replace(
                attempt,
                ended="failed",
                error=body.error,
                category=body.error_category,
                exit_code=body.exit_code,
                took=body.duration,
            )
        case e.TaskTimeout() as body:
            attempt = replace(
                attempt,
                ended="timed out",
                error=f"its time was up; ended by {body.signal}",
                category=ErrorCategory.TIMEOUT.value,
                took=body.elapsed,
            )
        case e.TaskReleased() as body:
            attempt = replace(attempt, ended="released", error=body.reason)
        case e.TaskParked() as body:
            attempt = replace(attempt, ended="parked", error=body.reason, took=body.duration)
        case e.TaskCompleted() as body:
            attempt = replace(
                attempt, ended="completed", exit_code=body.exit_code, took=body.duration
            )
        case e.TaskSubmittedForReview() as body:
            attempt = replace(attempt, ended="completed", took=body.duration)
        case e.TaskCancelled():
            attempt = replace(attempt, ended="cancelled")
        case _:
            return attempt  # a heartbeat
    took = attempt.took or max(event.at - attempt.started_at, timedelta())
    return replace(attempt, ended_at=event.at, took=took)
