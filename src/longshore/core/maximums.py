"""Limits that hold everywhere and are not settings, and the check of reasons and feedback."""

from __future__ import annotations

import re

MAX_REVISIONS = 5
FEEDBACK_LIMIT_CHARACTERS = 5_000
REASON_LIMIT_CHARACTERS = 1_000
MAX_TASKS_PER_JOB = 10_000
"""The default; a setting may lower or raise it."""
MAX_JOBS_PER_BATCH = 1_000
RECEIVE_LIMIT = 20
"""Deliveries of a message before it becomes a dead letter; more than any limit of attempts."""

# They would control the terminal or the log in which the text is read.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def comment_problem(text: str, *, limit: int) -> str | None:
    """Returns what is wrong with a reason or a feedback, as the end of a sentence, or None."""
    if len(text) > limit:
        return f"must have at most {limit} characters, and this has {len(text)}"
    if not text.strip():
        return "must not be empty"
    if match := _CONTROL.search(text):
        return f"must not contain control characters, and this contains {match[0]!r}"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must be valid Unicode, and this contains a lone surrogate"
    return None
