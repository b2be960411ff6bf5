"""Queues: their messages, lanes and pauses, and what a worker does with a message.

A message says "look at this task". Its body is JSON with the task's global id under its wire name.
Other content is ignored; a body that cannot be read is a ``MalformedMessage`` with the reason.

A message may arrive twice, late, or for a task that has ended, so ``triage`` decides from the
task's row. A message that is dropped or delayed is not an attempt of the task.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from longshore.core.ids import is_task_id
from longshore.core.tasks.lease import is_over
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import Priority, TaskState

NORMAL_EVERY = 4
LOW_EVERY = 8


def lane_order(receive_number: int) -> tuple[Priority, ...]:
    """Returns the order of lanes for a receiver's n-th receive, counted from 0.

    One receive in eight begins with the low lane and one in eight with the normal lane, so that a
    steady stream of urgent tasks slows down the others and never stops them.
    """
    first = Priority.HIGH
    if receive_number % LOW_EVERY == LOW_EVERY - 1:
        first = Priority.LOW
    elif receive_number % NORMAL_EVERY == NORMAL_EVERY - 1:
        first = Priority.NORMAL
    return first, *(lane for lane in Priority if lane is not first)


BODY_LIMIT_CHARACTERS = 256 * 1024
_EXCERPT_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class MalformedMessage:
    """A message that names no task."""

    reason: str
    excerpt: str


def message_body(task_id: str) -> str:
    """Returns the body of a task's message."""
    return f'{{"requestId":"{task_id}"}}'


def parse_message(body: str) -> str | MalformedMessage:
    """Returns the id of the task that a message's body names."""
    if len(body) > BODY_LIMIT_CHARACTERS:
        return _malformed_message(body, f"longer than {BODY_LIMIT_CHARACTERS} characters")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return _malformed_message(body, "not JSON")
    if not isinstance(content, dict):
        return _malformed_message(body, "not a JSON object")
    task_id = content.get("requestId")
    if not is_task_id(task_id):
        return _malformed_message(body, "requestId must match [A-Za-z0-9_-]{1,256}")
    return str(task_id)


def _malformed_message(body: str, reason: str) -> MalformedMessage:
    return MalformedMessage(reason, body[:_EXCERPT_CHARACTERS])


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMessage:
    """A message of a queue, or of its dead letters."""

    id: str
    queue: str
    body: str
    receive_count: int  # deliveries so far
    # To the millisecond. Of a merged message: when the last of its parts was sent.
    sent_at: datetime

    @property
    def task_id(self) -> str | MalformedMessage:
        """The id of its task, or why the message names none."""
        return parse_message(self.body)


class MessageAction(Enum):
    """What to do with the message."""

    RUN = "claim the task and run it"
    TAKE_OVER = "end the silent holder's lease, then look again"
    DELAY = "delay the message until a time"
    DROP = "nothing is left to do: delete the message"
    REJECT = "there is no such task: report and delete the message, unless its job was removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriageDecision:
    """An action, and for ``DELAY`` the time."""

    action: MessageAction
    until: datetime | None = None


def triage(row: TaskRow | None, *, now: datetime, margin: timedelta) -> TriageDecision:
    """Decide from the row alone; the caller acts."""
    if row is None:
        return TriageDecision(action=MessageAction.REJECT)
    if row.state is TaskState.PENDING:
        if row.due_at is not None and now < row.due_at:
            return TriageDecision(action=MessageAction.DELAY, until=row.due_at)
        return TriageDecision(action=MessageAction.RUN)
    if row.state is TaskState.PROCESSING:
        lease = row.lease
        if lease is None or is_over(lease, now=now, margin=margin):
            return TriageDecision(action=MessageAction.TAKE_OVER)
        return TriageDecision(action=MessageAction.DELAY, until=lease.expires_at + margin)
    # It has ended, or it is waiting, in review or parked, and is enqueued when it becomes pending.
    return TriageDecision(action=MessageAction.DROP)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """The number of messages of a queue."""

    ready: int
    hidden: int  # delivered and not yet deleted, or not visible yet
    dead_letters: int


MAX_HOLD: Final = timedelta(hours=1)
"""The longest hold; a service that asks for more gets this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePause:
    """A paused or held queue: no worker starts its tasks."""

    name: str
    by: str
    reason: str | None
    at: datetime
    until: datetime | None = None  # when a hold ends; None: a pause, which does not end by itself

    def is_active(self, now: datetime) -> bool:
        """Whether a pause, or a hold that has not ended.

        A hold that would last longer than ``MAX_HOLD`` was written by a wrong clock, or the clock
        was set back since: it has ended too.
        """
        return self.until is None or timedelta(0) < self.remaining(now) <= MAX_HOLD

    def remaining(self, now: datetime) -> timedelta:
        """Returns the time until a hold ends by itself."""
        return timedelta.max if self.until is None else self.until - now


def capped_hold_end(until: datetime, now: datetime) -> datetime:
    """Returns when a requested hold ends: after ``MAX_HOLD`` at the latest."""
    return min(until, now + MAX_HOLD)
