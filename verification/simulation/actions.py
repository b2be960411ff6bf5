"""What people do in a run and are answered, and what they hear unasked; counted as faults are."""

from __future__ import annotations

from enum import StrEnum


class ActionKind(StrEnum):
    """A kind of act that was carried out; the value says what it is."""

    SUBMIT = "a job is submitted"
    ADD_TASKS = "tasks are added"
    CANCEL = "a job is cancelled"
    CANCEL_TASK = "a task is cancelled"
    RESUME = "tasks are resumed"
    REPLAY = "dead letters are replayed"
    APPROVE = "a result is approved"
    REQUEST_REVISION = "a result is sent back"
    PAUSE_QUEUE = "a queue is paused"
    RESUME_QUEUE = "a pause is ended"
    HOLD_QUEUE = "a queue is held"
    ADD_BUDGET = "more is allowed to be spent"
    ALERT = "a channel is told of a problem"
    ALERT_RESOLVED = "a channel is told that a problem is over"
