"""The queue's envelope: "look at this task", and how one that came from anywhere is read.

The body is JSON with the task's global id under its wire name. Whatever else a sender put there is
ignored; whatever cannot be read is a ``Malformed`` with a reason that a person understands.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from longshore.core.ids import is_task_id

BODY_LIMIT_CHARACTERS = 256 * 1024
_EXCERPT_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that names no task, and why."""

    reason: str
    excerpt: str


def body_for(task_id: str) -> str:
    """The message that rings for a task."""
    return f'{{"requestId":"{task_id}"}}'


def task_named_in(body: str) -> str | Malformed:
    """The task that a message's body asks to look at."""
    if len(body) > BODY_LIMIT_CHARACTERS:
        return _malformed(body, f"longer than {BODY_LIMIT_CHARACTERS} characters")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return _malformed(body, "not JSON")
    if not isinstance(content, dict):
        return _malformed(body, "not a JSON object")
    task_id = content.get("requestId")
    if not is_task_id(task_id):
        return _malformed(body, "requestId must match [A-Za-z0-9_-]{1,256}")
    return str(task_id)


def _malformed(body: str, reason: str) -> Malformed:
    return Malformed(reason, body[:_EXCERPT_CHARACTERS])
