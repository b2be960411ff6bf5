"""Numbers that hold everywhere and are not for users to set."""

from __future__ import annotations

MAX_REVISIONS = 5
FEEDBACK_LIMIT_CHARACTERS = 5_000
REASON_LIMIT_CHARACTERS = 1_000
MAX_TASKS_PER_JOB = 10_000
"""The default; a setting may lower or raise it."""
RECEIVE_LIMIT = 20
"""Deliveries of one message before it becomes a dead letter: the last net, well above attempts."""
