"""Dead letters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from longshore.interfaces.rest.schemas.base import NEXT, Asked, Moment, Shape
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
    count: int = Field(description="On all pages.")
    cursor: str | None = Field(description=NEXT)


class DeadKind(Shape):
    """How many dead letters are of one kind."""

    queue: str
    category: str = Field(description="Of the error; `message`: a message without a task.")
    count: int


class DeadCounts(Shape):
    """How many dead letters there are."""

    count: int = Field(description="All of them.")
    tasks: int = Field(description="Those that a replay would give another round.")
    messages: int
    kinds: list[DeadKind] = Field(description="The most frequent first.")


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
    body_bytes: int | None = None
    sent_at: Moment | None = None
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
    since: Annotated[AwareDatetime, Field(strict=False)] | None = Field(
        default=None,
        description="Not those from before this moment.",
        examples=["2030-01-31T12:00:00Z"],
    )


class ReplayDocument(Asked):
    """What is to have another round: either these, or all that fit."""

    ids: list[str] | None = Field(default=None, max_length=10_000)
    matching: DeadFilterDocument | None = None


class RoundDocument(Shape):
    """A task that has another round."""

    request_id: str
    round: int


class MovedOnDocument(Shape):
    """A task that was left as it is."""

    request_id: str
    reason: str


class ReplayedDocument(Shape):
    """What came of a replay."""

    replayed: list[RoundDocument]
    moved_on: list[MovedOnDocument]
