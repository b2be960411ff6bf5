"""What people do in a run and are answered, and what they hear unasked; counted as faults are."""

from __future__ import annotations

from enum import StrEnum


class Deed(StrEnum):
    """A kind of act that was carried out; the value says what it is."""

    SUBMIT = "a job is submitted"
    ADD = "tasks are added"
    CANCEL = "a job is cancelled"
    CANCEL_TASK = "a task is cancelled"
    RESUME = "tasks are resumed"
    REPLAY = "dead letters are replayed"
    APPROVE = "a result is approved"
    SEND_BACK = "a result is sent back"
    PAUSE = "a queue is paused"
    END_PAUSE = "a pause is ended"
    HOLD = "a queue is held"
    ALLOW = "more is allowed to be spent"
    ALERT = "a channel is told of a problem"
    ALL_CLEAR = "a channel is told that a problem is over"
