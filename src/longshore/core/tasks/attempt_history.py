"""The attempts of a task, derived from its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.tasks.failures import ErrorCategory


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """One run of a task by one worker."""

    number: int
    round: int
    worker_id: str
    started_at: datetime
    outcome: str | None = None  # None: not reported yet
    ended_at: datetime | None = None
    duration: timedelta | None = None
    error: str | None = None
    category: str | None = None
    exit_code: int | None = None


_FAILED = {
    "error": "error",
    "category": "error_category",
    "exit_code": "exit_code",
    "duration": "duration",
}
# The outcome that an event reports, and the fields of the attempt by the event's attributes.
_ENDS: dict[type, tuple[str, dict[str, str]]] = {
    e.TaskProcessingFailed: ("failed", _FAILED),
    e.TaskFailed: ("failed", _FAILED),
    e.TaskTimeout: ("timed out", {"duration": "elapsed"}),
    e.TaskReleased: ("released", {"error": "reason"}),
    e.TaskParked: ("parked", {"error": "reason", "duration": "duration"}),
    e.TaskCompleted: ("completed", {"exit_code": "exit_code", "duration": "duration"}),
    e.TaskSubmittedForReview: ("completed", {"duration": "duration"}),
    e.TaskCancelled: ("cancelled", {}),
}


def attempts_from_events(history: Iterable[Event]) -> list[PastAttempt]:
    """Returns the attempts that a task's events describe, in order."""
    attempts: list[PastAttempt] = []
    round_ = 1
    for event in history:
        body = event.body
        if isinstance(body, e.TaskPending):
            round_ = body.round
        elif isinstance(body, e.TaskProcessingStarted):
            attempts.append(
                PastAttempt(
                    number=body.attempt_number,
                    round=round_,
                    worker_id=body.worker_id,
                    started_at=body.started_at,
                )
            )
        # An end after the attempt's own end is the end of the task.
        elif attempts and attempts[-1].outcome is None and type(body) in _ENDS:
            attempts[-1] = _with_end(attempts[-1], event)
    return attempts


def _with_end(attempt: PastAttempt, event: Event) -> PastAttempt:
    body = event.body
    outcome, attributes = _ENDS[type(body)]
    fields: dict[str, Any] = {name: getattr(body, source) for name, source in attributes.items()}
    if isinstance(body, e.TaskTimeout):
        fields["error"] = f"it timed out and was ended by {body.signal}"
        fields["category"] = ErrorCategory.TIMEOUT.value
    if fields.get("duration") is None:
        fields["duration"] = max(event.at - attempt.started_at, timedelta())
    return replace(attempt, outcome=outcome, ended_at=event.at, **fields)
