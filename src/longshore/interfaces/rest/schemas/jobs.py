"""Jobs, and what is asked of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from longshore.core.dag import TASK_KEY_PATTERN
from longshore.core.limits import TASKS_PER_JOB
from longshore.core.submission import LONGEST_DELAY, MOST_ATTEMPTS
from longshore.interfaces.rest.schemas.base import Asked, JobStatus, Moment, Shape
from longshore.interfaces.rest.schemas.tasks import TaskDocument


class TaskRequestDocument(Asked):
    """A task to run."""

    task_id: str = Field(pattern=f"^{TASK_KEY_PATTERN.pattern}$", examples=["fetch"])
    name: str = Field(description="Of a definition.", examples=["command"])
    depends_on: list[str] | None = Field(default=None, description="Tasks that come before it.")
    input: Any = Field(default=None, examples=[{"argv": ["echo", "hello"]}])
    queue: str | None = Field(default=None, description="Instead of the definition's.")
    priority: Literal["high", "normal", "low"] | None = None
    delay: float | None = Field(
        default=None,
        ge=0,
        le=LONGEST_DELAY.total_seconds(),
        description="Seconds to wait before it may start.",
    )
    run_at: Moment | None = Field(default=None, description="Not before this; not with `delay`.")
    max_attempts: int | None = Field(default=None, ge=1, le=MOST_ATTEMPTS)


class TasksDocument(Asked):
    """Tasks to add to a job."""

    tasks: list[TaskRequestDocument] = Field(min_length=1, max_length=TASKS_PER_JOB)


class JobRequestDocument(TasksDocument):
    """A job to run."""

    name: str | None = Field(default=None, max_length=200, examples=["nightly"])


class AcceptedDocument(Shape):
    """A job that was accepted."""

    job_id: str
    status: JobStatus
    total_tasks: int
    root_tasks: list[str] = Field(description="Those that may run at once.")
    created_at: Moment


class AddedDocument(Shape):
    """Tasks that are part of a job now."""

    job_id: str
    status: JobStatus
    total_tasks: int
    added_tasks: list[str]


class Progress(Shape):
    """How many tasks of a job are where."""

    completed: int
    failed: int
    cancelled: int
    blocked: int = Field(description="Behind one that failed or was cancelled.")
    open: int


class JobDocument(Shape):
    """A job as a listing shows it."""

    job_id: str
    name: str | None
    status: JobStatus
    total_tasks: int
    progress: Progress
    request_id: str
    round: int = Field(description="Grows with each resume.")
    created_at: Moment
    finished_at: Moment | None
    duration_ms: int | None


class JobPage(Shape):
    """Jobs, the newest first."""

    jobs: list[JobDocument]
    next_cursor: str | None = Field(description="For the next page; null: this was all.")


class TaskPage(Shape):
    """Tasks of a job, in their order."""

    tasks: list[TaskDocument]
    next_cursor: str | None = Field(description="For the next page; null: this was all.")


class WholeJob(JobDocument):
    """A job with its first tasks."""

    tasks: list[TaskDocument]
    next_cursor: str | None = Field(description="For `GET …/tasks`; null: these are all.")


class ReasonDocument(Shape):
    """One link of why something waits."""

    code: str = Field(examples=["queue-paused"])
    text: str
    since: Moment | None
    until: Moment | None
    request_id: str | None = Field(description="The task that it is about.")
    remedy: str | None = Field(description="The command that would move it on.")


class WhyDocument(Shape):
    """Why something waits, from the thing asked about to the root of it."""

    reasons: list[ReasonDocument]


class ApproveDocument(Asked):
    """A result is right."""

    attempt: int | None = Field(
        default=None, ge=1, description="Whose result was looked at; another is not approved."
    )


class ReviseDocument(ApproveDocument):
    """A result is to be bettered."""

    feedback: str = Field(min_length=1, max_length=5_000)


class CancelDocument(Asked):
    """Why something is to be ended."""

    reason: str | None = Field(default=None, max_length=500)


class ResumeDocument(Asked):
    """What is to be run again."""

    tasks: list[str] | None = Field(
        default=None, description="Their ids in the job; none: all that failed or were cancelled."
    )


class ResumedDocument(Shape):
    """What came of a resume."""

    round: int
    tasks: list[str]
    refused: dict[str, str] = Field(description="Why, by the id of the task.")
