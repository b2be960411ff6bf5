"""What a task's events add up to.

Events are delivered late, twice and out of order; their ``sequence`` is the only order that counts.
So folding sorts by it and takes each number once, and the view is the same whatever the delivery
was. Folding all events of a task gives what its row says, which is how the two are held against
each other.

Terminal beats late: once a task is over, nothing but a new round changes what is said of it.
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

EVENT_TO_STATE: dict[str, TaskState] = {
    e.TaskPending.TYPE: TaskState.PENDING,
    e.TaskWaiting.TYPE: TaskState.WAITING,
    e.TaskProcessingStarted.TYPE: TaskState.PROCESSING,
    e.TaskHeartbeat.TYPE: TaskState.PROCESSING,
    e.TaskProcessingFailed.TYPE: TaskState.PENDING,
    e.TaskReleased.TYPE: TaskState.PENDING,
    e.TaskParked.TYPE: TaskState.PARKED,
    e.TaskUnparked.TYPE: TaskState.PENDING,
    e.TaskSubmittedForReview.TYPE: TaskState.IN_REVIEW,
    e.TaskRevisionRequested.TYPE: TaskState.PENDING,
    # Task Completed follows in the same commit, and that is what ends the task.
    e.TaskApproved.TYPE: TaskState.IN_REVIEW,
    e.TaskCompleted.TYPE: TaskState.COMPLETED,
    e.TaskFailed.TYPE: TaskState.FAILED,
    e.TaskTimeout.TYPE: TaskState.FAILED,
    e.TaskCancelled.TYPE: TaskState.CANCELLED,
}
"""The state that a task is in after each event; one that is not here leaves it as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task as its events tell it."""

    state: TaskState = TaskState.WAITING
    round: int = 1
    attempt: int = 0
    fence: int = 0
    worker_id: str | None = None  # who holds the lease
    effective_until: datetime | None = None  # the end of the lease
    error: str | None = None  # of the latest attempt that failed
    error_category: str | None = None
    started_at: datetime | None = None  # of the latest attempt
    updated_at: datetime | None = None  # when the last event that changed anything happened
    last_sequence: int = 0
    complete: bool = True  # no event up to ``last_sequence`` is missing


def fold(events: Iterable[Event]) -> TaskView:
    """The view after these events of one task, in any order and any number of copies."""
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
    state = EVENT_TO_STATE.get(event.type, view.state)
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
    """What the event says of the task, besides its state."""
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
