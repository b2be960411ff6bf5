"""Dead letters."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from longshore.interfaces.rest.schemas.base import Asked, Moment, Shape
from longshore.interfaces.rest.schemas.tasks import TaskDocument

Category = Literal[
    "auth",
    "validation",
    "parse",
    "not-found",
    "programming",
    "exit-code",
    "unknown",
    "timeout",
    "network",
    "rate-limit",
    "server-error",
    "crash",
    "out-of-memory",
]


class DeadLetterDocument(Shape):
    """Something that failed for good; of a message without a task, what a task has is null."""

    id: str
    kind: Literal["task", "message"]
    at: Moment
    queue: str
    error: str
    category: str | None
    request_id: str | None
    job_id: str | None
    task_id: str | None
    name: str | None
    round: int | None
    attempts_used: int | None
    max_attempts: int | None
    receives: int | None


class DeadLetterPage(Shape):
    """Dead letters, those that died last first."""

    dead_letters: list[DeadLetterDocument]
    total: int = Field(description="On all pages.")
    next_cursor: str | None = Field(description="For the next page; null: this was all.")


class PastAttemptDocument(Shape):
    """An attempt that is over."""

    attempt: int
    round: int
    worker_id: str | None
    started_at: Moment | None
    ended_at: Moment | None
    duration_ms: int | None
    outcome: str | None
    error: str | None
    category: str | None
    exit_code: int | None


class PrintedLineDocument(Shape):
    """A line that was printed."""

    stream: Literal["stdout", "stderr", "log"]
    text: str


class PostMortemDocument(DeadLetterDocument):
    """A dead letter with all that is known of it."""

    ended_by: str | None
    body: str | None
    input_bytes: int
    task: TaskDocument | None
    attempts: list[PastAttemptDocument]
    last_lines: list[PrintedLineDocument]


class DeadFilterDocument(Asked):
    """Which dead letters are meant; what is missing does not matter."""

    queue: str | None = None
    name: str | None = None
    category: Category | None = None
    job_id: str | None = None


class ReplayDocument(Asked):
    """What is to have another round: either these, or all that fit."""

    ids: list[str] | None = Field(default=None, max_length=10_000)
    matching: DeadFilterDocument | None = None


class ReplayedDocument(Shape):
    """What came of a replay, by the ids of the tasks."""

    rounds: dict[str, int]
    refused: dict[str, str]
