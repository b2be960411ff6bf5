"""Events as text: their details on one line, and the colour of their names."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from longshore.core.budgets import Budget
from longshore.core.events import types as e
from longshore.core.events.codec import from_wire
from longshore.core.events.event import Event
from longshore.core.text.sanitise import safe_excerpt
from longshore.interfaces.cli.render import formats

if TYPE_CHECKING:
    from longshore.services.documents import EventDocument

_MAX_CHARACTERS = 200
_GOOD = (e.TaskCompleted, e.TaskApproved, e.JobCompleted)
_BAD = (e.TaskFailed, e.TaskTimeout, e.JobFailureDetected)
_NOTABLE = (e.TaskProcessingFailed, e.TaskReleased, e.TaskParked, e.TaskCancelled, e.JobCancelled)


def parse_event(document: EventDocument) -> Event:
    """The event of a document."""
    from longshore.services.documents import to_dict

    return from_wire(to_dict(document))


def style_of(event: Event) -> str:
    """The colour of an event's name."""
    for kinds, style in ((_GOOD, "green"), (_BAD, "bold red"), (_NOTABLE, "yellow")):
        if isinstance(event.body, kinds):
            return style
    return "dim" if isinstance(event.body, e.TaskHeartbeat) else ""


def details_of(event: Event, now: datetime) -> str:
    """The details of an event, such as the error of an attempt."""
    return safe_excerpt(_details(event.body, now), limit=_MAX_CHARACTERS).replace("\n", " ")


# By the type of the event; the table has the events whose fields need no formatting.
_DETAILS: dict[type[e.EventBody], str] = {
    e.TaskProcessingStarted: "attempt {body.attempt_number} by {body.worker_id}",
    e.TaskProcessingFailed: "attempt {body.attempt_number}: {body.error}",
    e.TaskReleased: "attempt {body.attempt_number}: {body.reason}",
    e.TaskParked: "attempt {body.attempt_number}: {body.reason}",
    e.TaskUnparked: "by {body.by}",
    e.TaskFailed: "{body.error} ({body.error_category})",
    e.TaskRevisionRequested: "by {body.by}: {body.feedback}",
    e.JobFailureDetected: "{body.failed_key} failed",
    e.JobResumed: "round {body.round} by {body.by}",
}


def _details(body: e.EventBody, now: datetime) -> str:
    match body:
        case e.TaskPending():
            return f"due {formats.relative_time(body.due_at, now)}" if body.due_at else body.name
        case e.TaskHeartbeat():
            return _heartbeat(body)
        case e.TaskBudgetAdded() | e.JobBudgetAdded():
            more = Budget(usd=body.usd, tokens=body.tokens, minutes=body.minutes)
            return f"{more} by {body.by}"
        case e.TaskCompleted():
            return f"attempt {body.attempt_number}, took {formats.duration_text(body.duration)}"
        case e.TaskTimeout():
            return f"after {formats.duration_text(body.elapsed)}, stopped with {body.signal}"
        case e.TaskCancelled() | e.JobCancelled():
            return f"by {body.by}" + (f": {body.reason}" if body.reason else "")
        case e.JobCreated():
            return f"{formats.plural(body.total_tasks, 'task')}, request {body.request_id}"
        case e.JobTasksAdded():
            return f"{formats.plural(body.total_tasks_now, 'task')} now"
        case e.JobCompleted():
            return formats.plural(body.total_tasks, "task")
    return _DETAILS.get(type(body), "").format(body=body)


def _heartbeat(body: e.TaskHeartbeat) -> str:
    step = body.last_activity.step_name if body.last_activity else None
    memory = f", {formats.size(body.rss_bytes)}" if body.rss_bytes else ""
    doing = f", at {step!r}" if step else ""
    return f"no. {body.number}, {formats.duration_text(body.elapsed)} in{memory}{doing}"
