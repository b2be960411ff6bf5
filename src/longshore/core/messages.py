"""Messages of the queue, and the lanes in which they are received.

A message says "look at this task". Its body is JSON with the task's global id under its wire name.
Other content is ignored; a body that cannot be read is a ``MalformedMessage`` with the reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from longshore.core.ids import is_task_id
from longshore.core.tasks.states import Priority

_HIGH_FIRST = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
_NORMAL_FIRST = (Priority.NORMAL, Priority.HIGH, Priority.LOW)
_LOW_FIRST = (Priority.LOW, Priority.HIGH, Priority.NORMAL)

NORMAL_EVERY = 4
LOW_EVERY = 8


def lane_order(receive_number: int) -> tuple[Priority, ...]:
    """Returns the order of lanes for a receiver's n-th receive, counted from 0.

    One receive in eight begins with the low lane and one in eight with the normal lane, so that a
    steady stream of urgent tasks slows down the others and never stops them.
    """
    if receive_number % LOW_EVERY == LOW_EVERY - 1:
        return _LOW_FIRST
    if receive_number % NORMAL_EVERY == NORMAL_EVERY - 1:
        return _NORMAL_FIRST
    return _HIGH_FIRST


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
