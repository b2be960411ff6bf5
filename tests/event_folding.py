"""The state of a task according to its events, to be compared with its row.

Events are delivered late, twice and out of order; only their ``sequence`` orders them. ``fold``
sorts by it and counts each event once, so the order of delivery does not matter. After a task has
ended, only an event of a later round changes its state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.tasks.failures import ErrorCategory, timeout_text
from longshore.core.tasks.states import TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task as its events describe it."""

    state: TaskState = TaskState.WAITING
    round: int = 1
    attempt: int = 0
    fence: int = 0
    worker_id: str | None = None  # of the lease
    effective_until: datetime | None = None  # the end of the lease
    error: str | None = None  # of the latest attempt that failed
    error_category: str | None = None
    started_at: datetime | None = None  # of the latest attempt
    updated_at: datetime | None = None  # time of the last event that changed anything
    last_sequence: int = 0
    complete: bool = True  # no event up to ``last_sequence`` is missing


def fold(events: Iterable[Event]) -> TaskView:
    """Returns the view after these events of a task, in any order and with duplicates."""
    view = TaskView()
    count = 0
    for event in sorted(events, key=attrgetter("sequence")):
        if event.sequence != view.last_sequence:
            view = _apply_event(view, event)
            count += 1
    return replace(view, complete=count == view.last_sequence)


def _apply_event(view: TaskView, event: Event) -> TaskView:
    body = event.body
    if view.state.terminal and not _starts_later_round(view.round, body):
        return replace(view, last_sequence=event.sequence)
    state = e.EVENT_TO_STATE.get(event.type, view.state)
    changed: dict[str, Any] = {
        "state": state,
        "updated_at": event.at,
        "last_sequence": event.sequence,
    }
    if state is not TaskState.PROCESSING:
        changed |= {"worker_id": None, "effective_until": None}
    return replace(view, **changed, **_fields_from(body, view))


def _starts_later_round(round_: int, body: e.EventBody) -> bool:
    return isinstance(body, e.TaskPending | e.TaskWaiting) and body.round > round_


_NO_FAILURE = {"error": None, "error_category": None}


def _fields_from(body: e.EventBody, view: TaskView) -> dict[str, Any]:
    """Returns the fields that the event changes, besides the state."""
    match body:
        case e.TaskPending() | e.TaskWaiting():
            cleared = _NO_FAILURE if body.round > view.round else {}
            return {"round": body.round, **cleared}
        case e.TaskProcessingStarted():
            return {
                "attempt": body.attempt_number,
                "fence": body.fence,
                "started_at": body.started_at,
                "worker_id": body.worker_id,
                "effective_until": body.effective_until,
            }
        case e.TaskHeartbeat():
            return {
                "attempt": body.attempt_number,
                "worker_id": body.worker_id,
                "effective_until": body.effective_until,
            }
        case e.TaskProcessingFailed() | e.TaskFailed():
            return {"error": body.error, "error_category": body.error_category}
        case e.TaskTimeout():
            return {
                "error": timeout_text(body.timeout),
                "error_category": ErrorCategory.TIMEOUT.value,
            }
        case e.TaskCompleted() | e.TaskSubmittedForReview():
            return _NO_FAILURE
    return {}
