"""The attempts of a task, as its events tell of them: who ran it, when, and how each ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.tasks.error_categories import ErrorCategory


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """One run of a task by one worker."""

    number: int
    round: int
    worker_id: str
    started_at: datetime
    outcome: str | None = None  # in a word; None: nobody has said
    ended_at: datetime | None = None
    duration: timedelta | None = None
    error: str | None = None
    category: str | None = None
    exit_code: int | None = None


def attempts_from_events(history: Iterable[Event]) -> list[PastAttempt]:
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
        elif found and found[-1].outcome is None:
            found[-1] = _with_end(found[-1], event)
    return found


def _with_end(attempt: PastAttempt, event: Event) -> PastAttempt:
    match event.body:
        case e.TaskProcessingFailed() | e.TaskFailed() as body:
            attempt = replace(
                attempt,
                outcome="failed",
                error=body.error,
                category=body.error_category,
                exit_code=body.exit_code,
                duration=body.duration,
            )
        case e.TaskTimeout() as body:
            attempt = replace(
                attempt,
                outcome="timed out",
                error=f"its time was up; ended by {body.signal}",
                category=ErrorCategory.TIMEOUT.value,
                duration=body.elapsed,
            )
        case e.TaskReleased() as body:
            attempt = replace(attempt, outcome="released", error=body.reason)
        case e.TaskParked() as body:
            attempt = replace(attempt, outcome="parked", error=body.reason, duration=body.duration)
        case e.TaskCompleted() as body:
            attempt = replace(
                attempt, outcome="completed", exit_code=body.exit_code, duration=body.duration
            )
        case e.TaskSubmittedForReview() as body:
            attempt = replace(attempt, outcome="completed", duration=body.duration)
        case e.TaskCancelled():
            attempt = replace(attempt, outcome="cancelled")
        case _:
            return attempt  # a heartbeat
    took = attempt.duration or max(event.at - attempt.started_at, timedelta())
    return replace(attempt, ended_at=event.at, duration=took)
