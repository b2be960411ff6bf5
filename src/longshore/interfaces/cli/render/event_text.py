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


def _details(body: e.EventBody, now: datetime) -> str:
    match body:
        case e.TaskPending():
            return f"due {formats.relative_time(body.due_at, now)}" if body.due_at else body.name
        case e.TaskProcessingStarted():
            return f"attempt {body.attempt_number} by {body.worker_id}"
        case e.TaskHeartbeat():
            return _heartbeat(body)
        case e.TaskProcessingFailed():
            return f"attempt {body.attempt_number}: {body.error}"
        case e.TaskReleased():
            return f"attempt {body.attempt_number}: {body.reason}"
        case e.TaskParked():
            return f"attempt {body.attempt_number}: {body.reason}"
        case e.TaskUnparked():
            return f"by {body.by}"
        case e.TaskBudgetAdded() | e.JobBudgetAdded():
            more = Budget(usd=body.usd, tokens=body.tokens, minutes=body.minutes)
            return f"{more} by {body.by}"
        case e.TaskCompleted():
            return f"attempt {body.attempt_number}, took {formats.duration_text(body.duration)}"
        case e.TaskFailed():
            return f"{body.error} ({body.error_category})"
        case e.TaskTimeout():
            return f"after {formats.duration_text(body.elapsed)}, stopped with {body.signal}"
        case e.TaskCancelled() | e.JobCancelled():
            return f"by {body.by}" + (f": {body.reason}" if body.reason else "")
        case e.TaskRevisionRequested():
            return f"by {body.by}: {body.feedback}"
    return _job_details(body)


def _heartbeat(body: e.TaskHeartbeat) -> str:
    step = body.last_activity.step_name if body.last_activity else None
    memory = f", {formats.size(body.rss_bytes)}" if body.rss_bytes else ""
    doing = f", at {step!r}" if step else ""
    return f"no. {body.number}, {formats.duration_text(body.elapsed)} in{memory}{doing}"


def _job_details(body: e.EventBody) -> str:
    match body:
        case e.JobCreated():
            return f"{formats.plural(body.total_tasks, 'task')}, request {body.request_id}"
        case e.JobTasksAdded():
            return f"{formats.plural(body.total_tasks_now, 'task')} now"
        case e.JobCompleted():
            return formats.plural(body.total_tasks, "task")
        case e.JobFailureDetected():
            return f"{body.failed_key} failed"
        case e.JobResumed():
            return f"round {body.round} by {body.by}"
    return ""
