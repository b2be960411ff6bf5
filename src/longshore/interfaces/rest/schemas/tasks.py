"""Tasks, what they print, what is told of them, what they leave."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from longshore.interfaces.rest.schemas.base import Moment, Shape, TaskStatus


class ErrorDocument(Shape):
    """Why an attempt failed."""

    message: str
    category: str
    type: str | None
    signal: str | None


class ParkedDocument(Shape):
    """Why a task rests: a budget is used up."""

    budget: Literal["step", "task", "job", "day"] = Field(description="Whose.")
    reason: str
    at: Moment


class UsageDocument(Shape):
    """What a task has cost so far, or the tasks of a job that have ended."""

    cost_usd: float
    turns: int
    tokens: int = Field(description="Read and written, those from a cache too.")


class LastEvent(Shape):
    """What was last told of a task."""

    type: str
    at: Moment


class TaskDocument(Shape):
    """A task."""

    request_id: str = Field(description="The task's id everywhere: {jobId}_{taskId}.")
    task_id: str
    job_id: str
    name: str
    status: TaskStatus
    exit_code: int | None
    queue: str
    priority: Literal["high", "normal", "low"]
    attempt: int
    attempts_used: int
    max_attempts: int
    worker_id: str | None
    error: ErrorDocument | None
    parked: ParkedDocument | None = Field(description="Of a task that is parked: why.")
    created_at: Moment
    due_at: Moment | None
    started_at: Moment | None
    finished_at: Moment | None
    duration_ms: int | None
    usage: UsageDocument
    last_event: LastEvent | None = None


class ResultDocument(Shape):
    """What came of a task."""

    result: Any


class OutputPiece(Shape):
    """Something that a task printed."""

    id: str = Field(description="Its place: {attempt}.{sequence}.", examples=["1.17"])
    job_id: str
    task_id: str
    attempt: int
    sequence: int
    at: Moment
    stream: Literal["stdout", "stderr", "log", "lost"]
    text: str
    base64: str | None = Field(default=None, description="The bytes, if they are not UTF-8.")
    last_sequence: int | None = Field(default=None, description="Of `lost`: up to where.")


class OutputPage(Shape):
    """Pieces of output, in order; go on after the last one's id."""

    output: list[OutputPiece]


class Artifact(Shape):
    """A file that an attempt left."""

    name: str = Field(examples=["attempt-1/artifacts/report.csv"])
    bytes: int


class ArtifactList(Shape):
    """Files; go on after the last one's name."""

    artifacts: list[Artifact]
