"""Request bodies, as the OpenAPI document shows them.

Answers are the documents of ``services.documents``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema

from longshore.core.api_keys import ApiScope
from longshore.core.budgets import MAX_AMOUNT
from longshore.core.definitions.reader import field_schemas
from longshore.core.ids import NAME_PATTERN
from longshore.core.jobs.submission import MAX_ATTEMPTS, MAX_DELAY, TASK_KEY_PATTERN
from longshore.core.maximums import (
    FEEDBACK_LIMIT_CHARACTERS,
    MAX_JOBS_PER_BATCH,
    MAX_TASKS_PER_JOB,
    REASON_LIMIT_CHARACTERS,
    comment_problem,
)
from longshore.core.tasks.failures import ErrorCategory


class ApiModel(BaseModel):
    """Base of all models: camel case in JSON; the docstring of a field is its description."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class ApiRequestModel(ApiModel):
    """Base of request bodies: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TaskRequestDocument(ApiRequestModel):
    """A task to run."""

    task_id: str = Field(pattern=f"^{TASK_KEY_PATTERN.pattern}$", examples=["fetch"])
    name: str = Field(examples=["command"])
    """The name of a definition."""
    depends_on: list[str] | None = None
    """Tasks that must complete before it."""
    input: Any = Field(default=None, examples=[{"argv": ["echo", "hello"]}])
    queue: str | None = None
    """Instead of the definition's queue."""
    priority: Literal["high", "normal", "low"] | None = None
    delay: float | None = Field(default=None, ge=0, le=MAX_DELAY.total_seconds())
    """Seconds to wait before it may start."""
    run_at: AwareDatetime | None = Field(default=None, examples=["2030-01-31T12:00:00.000Z"])
    """It does not start before this time; not together with `delay`."""
    max_attempts: int | None = Field(default=None, ge=1, le=MAX_ATTEMPTS)


class AddTasksRequestDocument(ApiRequestModel):
    """Tasks to add to a job."""

    tasks: list[TaskRequestDocument] = Field(min_length=1, max_length=MAX_TASKS_PER_JOB)


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)  # it would be null, which is refused


Amount = Annotated[float, Field(gt=0, le=MAX_AMOUNT)]
Count = Annotated[int, Field(gt=0, le=MAX_AMOUNT)]


class BudgetRequestDocument(ApiRequestModel):
    """What may be spent; a field that is left out is not limited."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    usd: Amount | SkipJsonSchema[None] = Field(default=None, json_schema_extra=_without_default)
    tokens: Count | SkipJsonSchema[None] = Field(default=None, json_schema_extra=_without_default)
    minutes: Amount | SkipJsonSchema[None] = Field(default=None, json_schema_extra=_without_default)


class JobRequestDocument(AddTasksRequestDocument):
    """A job to run."""

    name: str | None = Field(default=None, max_length=200, examples=["nightly"])
    app: str | None = Field(default=None, pattern=f"^{NAME_PATTERN.pattern}$", examples=["shop"])
    """The application in the events of the job and its tasks; by default that of the server."""
    budget: Amount | BudgetRequestDocument | None = Field(default=None, examples=[20])
    """What the agents of all its tasks may spend together; a number is dollars."""


class BatchedJobDocument(ApiRequestModel):
    """A job of a batch."""

    job: Any
    """A job, as `POST /v1/jobs` takes it."""
    request_id: str | None = Field(default=None, min_length=1, max_length=256)
    """A job that is sent again with the same id is accepted once."""


class JobBatchDocument(ApiRequestModel):
    """Jobs that are submitted together."""

    jobs: list[BatchedJobDocument] = Field(min_length=1, max_length=MAX_JOBS_PER_BATCH)


class ApproveRequestDocument(ApiRequestModel):
    """Which result is approved."""

    attempt: int | None = Field(default=None, ge=1)
    """The attempt whose result was reviewed; the result of another is refused."""


def _check_feedback(text: str) -> str:
    if problem := comment_problem(text, limit=FEEDBACK_LIMIT_CHARACTERS):
        raise ValueError(problem)
    return text


class ReviseRequestDocument(ApproveRequestDocument):
    """Why a result is sent back."""

    feedback: Annotated[str, AfterValidator(_check_feedback)] = Field(
        min_length=1, max_length=FEEDBACK_LIMIT_CHARACTERS
    )


class CancelRequestDocument(ApiRequestModel):
    """Why something is cancelled."""

    reason: str | None = Field(default=None, max_length=REASON_LIMIT_CHARACTERS)


class PauseRequestDocument(ApiRequestModel):
    """Why a queue is paused."""

    reason: str | None = Field(default=None, max_length=REASON_LIMIT_CHARACTERS)


class PruneRequestDocument(ApiRequestModel):
    """Which jobs to remove."""

    older_than: str = Field(max_length=64)
    """How long ago they ended, such as `30d`."""
    dry_run: bool = False
    """Only count them."""


class ResumeRequestDocument(ApiRequestModel):
    """Which tasks run again."""

    tasks: list[str] | None = None
    """Their ids in the job; null: all that failed or were cancelled."""


class KeyRequestDocument(ApiRequestModel):
    """A key to create."""

    name: str = Field(min_length=1, max_length=100, examples=["ci"])
    scopes: list[Annotated[ApiScope, Field(strict=False)]] = Field(min_length=1)
    expires: str | None = Field(default=None, max_length=100, examples=["30d"])
    """After this time the key is refused; without it, never."""
    definitions: list[str] | None = Field(default=None, max_length=1_000, examples=[["report"]])
    """The key may start tasks of these definitions only; without it, of any."""
    queues: list[str] | None = Field(default=None, max_length=1_000, examples=[["mail"]])
    """The key may start tasks in these queues only; without it, in any."""
    tenant: str | None = Field(default=None, pattern=f"^{NAME_PATTERN.pattern}$")


class AddBudgetRequestDocument(ApiRequestModel):
    """What to add to a budget."""

    usd: float | None = Field(default=None, gt=0, le=MAX_AMOUNT, examples=[5])
    tokens: int | None = Field(default=None, gt=0, le=MAX_AMOUNT)
    minutes: float | None = Field(default=None, gt=0, le=MAX_AMOUNT)


class DeadLetterFilterDocument(ApiRequestModel):
    """Which dead letters are selected; a field that is left out selects all."""

    queue: str | None = None
    name: str | None = None
    category: Annotated[ErrorCategory, Field(strict=False)] | None = None
    job_id: str | None = None
    since: Annotated[AwareDatetime, Field(strict=False)] | None = Field(
        default=None, examples=["2030-01-31T12:00:00Z"]
    )
    """Not older than this."""


class ReplayRequestDocument(ApiRequestModel):
    """What to replay: either these tasks, or all that match."""

    ids: list[str] | None = Field(default=None, max_length=10_000)
    matching: DeadLetterFilterDocument | None = None


class DefinitionRequestDocument(ApiModel):
    """A definition: how a kind of task runs. Its name may be left out, as it is in the path."""

    model_config = ConfigDict(
        json_schema_extra={"properties": field_schemas(), "required": ["runner"]}
    )
