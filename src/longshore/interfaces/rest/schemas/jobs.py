"""Jobs, and what is asked of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from longshore.core.budgets import MOST
from longshore.core.dag import TASK_KEY_PATTERN
from longshore.core.limits import REASON_LIMIT_CHARACTERS, TASKS_PER_JOB
from longshore.core.submission import LONGEST_DELAY, MOST_ATTEMPTS
from longshore.interfaces.rest.schemas.base import (
    NEXT,
    Asked,
    JobStatus,
    Moment,
    Shape,
    TaskStatus,
)
from longshore.interfaces.rest.schemas.tasks import TaskDocument, UsageDocument


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


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)  # it would be null, which is refused


Amount = Annotated[float, Field(gt=0, le=MOST)]
Count = Annotated[int, Field(gt=0, le=MOST)]


class BudgetRequestDocument(Asked):
    """What may be spent; what is left out is not limited."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    usd: Amount | SkipJsonSchema[None] = Field(default=None, json_schema_extra=_without_default)
    tokens: Count | SkipJsonSchema[None] = Field(default=None, json_schema_extra=_without_default)
    minutes: Amount | SkipJsonSchema[None] = Field(default=None, json_schema_extra=_without_default)


class JobRequestDocument(TasksDocument):
    """A job to run."""

    name: str | None = Field(default=None, max_length=200, examples=["nightly"])
    budget: Amount | BudgetRequestDocument | None = Field(
        default=None,
        description="What agents may spend on all its tasks together; a number is dollars.",
        examples=[20],
    )


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
    created: bool = Field(description="False: they had been added before, by the same request.")


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
    exit_code: int | None = Field(
        description="What a shell would have ended with that ran it; null while it runs."
    )
    total_tasks: int
    progress: Progress
    request_id: str
    round: int = Field(description="Grows with each resume.")
    usage: UsageDocument = Field(description="Of its tasks that have ended, failed ones too.")
    created_at: Moment
    finished_at: Moment | None
    duration_ms: int | None


class JobPage(Shape):
    """Jobs, the newest first."""

    jobs: list[JobDocument]
    cursor: str | None = Field(description=NEXT)


class TaskPage(Shape):
    """Tasks: those of a job in their order, else the newest first."""

    tasks: list[TaskDocument]
    cursor: str | None = Field(description=NEXT)


class WholeJob(JobDocument):
    """A job with its first tasks."""

    states: dict[TaskStatus, int] = Field(description="How many of its tasks are in which state.")
    tasks: list[TaskDocument]
    cursor: str | None = Field(description="For `GET …/tasks`; null: these are all.")


class StatusesDocument(Shape):
    """Where every task of a job stands."""

    statuses: dict[str, TaskStatus] = Field(
        description="By the task's id in the job, in the order of the tasks.",
        examples=[{"fetch": "completed", "report": "processing"}],
    )


class IdList(Shape):
    """Ids, in order."""

    ids: list[str] = Field(description="A job's is `job-…`, a task's is {jobId}_{taskId}.")


class ReasonDocument(Shape):
    """One link of why something waits."""

    code: str = Field(examples=["queue_paused"])
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


class RevisedDocument(TaskDocument):
    """A task whose result goes back."""

    revision: int = Field(description="How often it has gone back so far.")


class CancelDocument(Asked):
    """Why something is to be ended."""

    reason: str | None = Field(default=None, max_length=REASON_LIMIT_CHARACTERS)


class ResumeDocument(Asked):
    """What is to be run again."""

    tasks: list[str] | None = Field(
        default=None, description="Their ids in the job; none: all that failed or were cancelled."
    )


class ResumedDocument(Shape):
    """What came of a resume; tasks by their ids in the job."""

    job_id: str
    round: int
    tasks: list[str]
    refused: dict[str, str] = Field(description="Why not, by the task.")
