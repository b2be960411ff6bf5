"""Documents: the typed answers of every operation, shared by REST, CLI and the Python client.

A document is a msgspec struct with camel-case names in JSON. The names of the v1 wire format stay:
``requestId`` is a task's global id, ``taskId`` its key inside the job, ``status`` its state. Times
are ISO 8601 text in UTC with milliseconds: a document is the same before and after it was sent.

``exitCode`` of a task is the exit code of its last attempt, if the process exited by itself;
``exitCode`` of a job is what a shell that ran the job would exit with.
"""

from __future__ import annotations

import base64
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from longshore.core.api_keys import ApiScope, KeyRecord
from longshore.core.budgets import BudgetUnit, total_tokens
from longshore.core.dead_letters import DeadLetter
from longshore.core.definitions.definition import UNLIMITED, Definition, RunnerKind
from longshore.core.events.codec import to_wire
from longshore.core.events.event import Event
from longshore.core.events.types import Usage
from longshore.core.explain import Remedy, RemedyAction, WhyReason
from longshore.core.health import CheckedTask, Health
from longshore.core.tasks.attempt_history import PastAttempt
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.core.text.durations import format_duration
from longshore.core.text.sanitise import safe_excerpt
from longshore.ports import output
from longshore.services.budgets import BudgetStatus

TIMED_OUT_CODE = 124
"""The exit code of ``timeout``, and of a task that timed out."""

_AMOUNTS = {
    BudgetUnit.USD: "--usd 5",
    BudgetUnit.TOKENS: "--tokens 100000",
    BudgetUnit.MINUTES: "--minutes 30",
}
_COMMANDS = {
    RemedyAction.RESUME_JOB: "resume {target}",
    RemedyAction.RESUME_QUEUE: "queues resume {target}",
    RemedyAction.START_WORKER: "worker --queue {target}",
    RemedyAction.APPROVE_TASK: "approve {target}",
    RemedyAction.ADD_BUDGET: "budget add {target} {amount}",
    RemedyAction.LIST_JOB_TASKS: "tasks --job {target}",
}
_FAILED_CODE = 1
_SIGNAL_BASE = 128
_BODY_CHARACTERS = 2000

Timestamp = Annotated[
    str,
    Meta(extra_json_schema={"format": "date-time", "examples": ["2030-01-31T12:00:00.000Z"]}),
]
Priority = Literal["high", "normal", "low"]
# For interfaces, which do not import ports.
OutputChunk = output.OutputChunk
Stream = output.Stream
NextCursor = Annotated[
    str | None, Meta(description="Send it as `cursor` to get the next page; null: no more pages.")
]


class ApiDocument(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all documents."""


AnyDocument = TypeVar("AnyDocument", bound=ApiDocument)


def encode(document: ApiDocument) -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(document)


def decode(data: bytes | str, kind: type[AnyDocument]) -> AnyDocument:
    """The document that ``encode`` made.

    Raises:
        ValueError: the data is not such a document.
    """
    return msgspec.json.decode(data, type=kind)


def to_dict(document: ApiDocument) -> dict[str, Any]:
    """The document as JSON values, with the names that it has in JSON."""
    builtins: dict[str, Any] = msgspec.to_builtins(document)
    return builtins


def from_record(kind: type[AnyDocument], /, *records: object, **fields: Any) -> AnyDocument:
    """A document with the attributes of records; ``fields`` are those that differ from them.

    Where several records have an attribute, the first one counts. If a record is None, what no
    other record has is null.
    """
    for name in kind.__struct_fields__:
        if name not in fields:
            record = next((item for item in records if hasattr(item, name)), None)
            is_null = record is None and None in records
            fields[name] = None if is_null else _json_value(getattr(record, name))
    return kind(**fields)


def _json_value(value: Any) -> Any:
    match value:
        case datetime():
            return format_timestamp(value)
        case timedelta():
            return format_duration(value)
    return value


# Jobs and tasks ---------------------------------------------------------------------------------


class UsageDocument(ApiDocument, kw_only=True):
    """What a task has cost so far, or the ended tasks of a job."""

    cost_usd: float
    turns: int
    tokens: Annotated[int, Meta(description="Input and output, cached tokens included.")]


class JobProgressDocument(ApiDocument, kw_only=True):
    """How many tasks of a job are in which group."""

    completed: int
    failed: int
    cancelled: int
    blocked: Annotated[int, Meta(description="Behind a task that failed or was cancelled.")]
    open: int


class JobDocument(ApiDocument, kw_only=True):
    """A job in a listing."""

    job_id: str
    name: str | None
    status: JobState
    exit_code: Annotated[
        int | None,
        Meta(description="What a shell that ran the job would exit with; null while it runs."),
    ]
    total_tasks: int
    progress: JobProgressDocument
    request_id: str
    round: Annotated[int, Meta(description="Grows with each resume.")]
    usage: Annotated[UsageDocument, Meta(description="Of the tasks that have ended.")]
    created_at: Timestamp
    finished_at: Timestamp | None
    duration_ms: int | None


class JobPage(ApiDocument, kw_only=True):
    """Jobs, newest first."""

    jobs: list[JobDocument]
    cursor: NextCursor


class ErrorDocument(ApiDocument, kw_only=True):
    """Why an attempt failed."""

    message: str
    category: str
    type: str | None
    signal: str | None


class ParkedDocument(ApiDocument, kw_only=True):
    """Why a task is parked: a budget is used up."""

    budget: Annotated[
        Literal["step", "task", "job", "day"], Meta(description="Which budget is used up.")
    ]
    reason: str
    at: Timestamp


class LastEventDocument(ApiDocument, kw_only=True):
    """The latest event of a task."""

    type: str
    at: Timestamp


class TaskDocument(ApiDocument, kw_only=True):
    """A task."""

    request_id: Annotated[str, Meta(description="The task's global id: {jobId}_{taskId}.")]
    task_id: str
    job_id: str
    name: Annotated[str, Meta(description="The name of its definition.")]
    status: TaskState
    exit_code: int | None
    queue: str
    priority: Priority
    attempt: int
    attempts_used: int
    max_attempts: int
    worker_id: str | None
    error: ErrorDocument | None
    parked: Annotated[ParkedDocument | None, Meta(description="Why a parked task is parked.")]
    created_at: Timestamp
    due_at: Timestamp | None
    started_at: Timestamp | None
    finished_at: Timestamp | None
    duration_ms: int | None
    usage: UsageDocument
    last_event: LastEventDocument | None


class RevisedTaskDocument(TaskDocument, kw_only=True):
    """A task whose result was sent back for revision."""

    revision: Annotated[int, Meta(description="How often its result was sent back so far.")]


class TaskPage(ApiDocument, kw_only=True):
    """Tasks: those of a job in the job's own order, otherwise newest first."""

    tasks: list[TaskDocument]
    cursor: NextCursor


class JobDetailDocument(JobDocument, kw_only=True):
    """A job with its first tasks."""

    states: Annotated[dict[TaskState, int], Meta(description="The number of tasks in each state.")]
    tasks: list[TaskDocument]
    cursor: Annotated[
        str | None, Meta(description="For `GET …/tasks`; null: all tasks are in this document.")
    ]


class TaskStatusesDocument(ApiDocument, kw_only=True):
    """The state of every task of a job, by task id."""

    statuses: Annotated[
        dict[str, TaskState],
        Meta(
            description="In the order of the tasks.",
            examples=[{"fetch": "completed", "report": "processing"}],
        ),
    ]


class IdList(ApiDocument, kw_only=True):
    """Ids, sorted."""

    ids: Annotated[
        list[str], Meta(description="The id of a job is `job-…`, of a task {jobId}_{taskId}.")
    ]


class ResultDocument(ApiDocument, kw_only=True):
    """The result of a task."""

    result: Any


class AcceptedJobDocument(ApiDocument, kw_only=True):
    """A job that was accepted."""

    job_id: str
    status: JobState
    total_tasks: int
    root_tasks: Annotated[list[str], Meta(description="The tasks without dependencies.")]
    created_at: Timestamp
    request_id: str
    created: Annotated[bool, Meta(description="False: the same request had been accepted before.")]


class FieldErrorDocument(ApiDocument, kw_only=True):
    """One problem of a request, and where it is."""

    path: Annotated[str, Meta(examples=["tasks[0].dependsOn[1]"])]
    message: Annotated[str, Meta(examples=["there is no task 'fetsh'; did you mean 'fetch'?"])]


class ProblemDocument(ApiDocument, kw_only=True, omit_defaults=True):
    """An error, as RFC 9457 defines it."""

    type: Annotated[str, Meta(examples=["urn:longshore:problem:invalid"])]
    title: Annotated[str, Meta(examples=["Unprocessable Content"])]
    status: Annotated[int, Meta(examples=[422])]
    detail: Annotated[str, Meta(examples=["the request has problems"])]
    request_id: Annotated[str, Meta(description="Search the server's log for it.")]
    errors: list[FieldErrorDocument] | None = None


class BatchAnswerDocument(ApiDocument, kw_only=True):
    """What became of one job of a batch: it was accepted, or there is a problem."""

    job: AcceptedJobDocument | None = None
    problem: ProblemDocument | None = None


class BatchAnswersDocument(ApiDocument, kw_only=True):
    """An answer for each job of a batch, in their order."""

    answers: list[BatchAnswerDocument]


class AddedTasksDocument(ApiDocument, kw_only=True):
    """Tasks that were added to a job."""

    job_id: str
    status: JobState
    total_tasks: int
    added_tasks: list[str]
    created: Annotated[bool, Meta(description="False: the same request had added them before.")]


class ResumeResultDocument(ApiDocument, kw_only=True):
    """The result of a resume; tasks by their ids in the job."""

    job_id: str
    round: int
    tasks: list[str]
    refused: Annotated[dict[str, str], Meta(description="The reason for each refused task.")]


class WhyReasonDocument(ApiDocument, kw_only=True):
    """One reason in the chain that explains why something waits."""

    code: Annotated[str, Meta(examples=["queue_paused"])]
    text: str
    since: Timestamp | None
    until: Timestamp | None
    request_id: Annotated[str | None, Meta(description="The task that the reason is about.")]
    remedy: Annotated[str | None, Meta(description="A command that would resolve it.")]


class WhyDocument(ApiDocument, kw_only=True):
    """Why something waits, from the job or task in question to the root cause."""

    reasons: list[WhyReasonDocument]


# Output, artifacts, events ----------------------------------------------------------------------


class OutputChunkDocument(ApiDocument, kw_only=True, omit_defaults=True):
    """A chunk of the output of a task."""

    id: Annotated[str, Meta(description="Its position: {attempt}.{sequence}.", examples=["1.17"])]
    job_id: str
    task_id: str
    attempt: int
    sequence: int
    at: Timestamp
    stream: Stream
    text: str
    base64: Annotated[str | None, Meta(description="The bytes, if they are not UTF-8.")] = None
    last_sequence: Annotated[
        int | None, Meta(description="Of `lost`: the last sequence that is missing.")
    ] = None

    @property
    def data(self) -> bytes:
        """The bytes that were printed."""
        return base64.b64decode(self.base64) if self.base64 else self.text.encode()

    @property
    def end(self) -> int:
        """Its sequence, or the last sequence that is missing."""
        return self.sequence if self.last_sequence is None else self.last_sequence


class OutputPage(ApiDocument, kw_only=True):
    """Chunks of output, in order; continue after the id of the last one."""

    output: list[OutputChunkDocument]


class ArtifactDocument(ApiDocument, kw_only=True):
    """A file that an attempt stored."""

    name: Annotated[str, Meta(examples=["attempt-1/artifacts/report.csv"])]
    bytes: int


class ArtifactList(ApiDocument, kw_only=True):
    """Files; continue after the name of the last one."""

    artifacts: list[ArtifactDocument]


def _event_field_name(field: str) -> str:
    if field in ("pk", "sk") or field.startswith("gsi"):
        return field.upper()
    first, *others = field.split("_")
    return first + "".join(part.capitalize() for part in others)


class EventDocument(ApiDocument, kw_only=True, rename=_event_field_name, omit_defaults=True):
    """An event in the wire format, with the keys of the event store's indexes."""

    pk: str
    sk: str
    gsi1pk: str
    gsi1sk: str
    gsi2pk: str
    gsi2sk: str
    gsi3pk: str
    gsi3sk: str
    gsi4pk: str
    gsi4sk: str
    gsi5pk: str
    gsi5sk: str
    gsi6pk: str
    gsi6sk: str
    gsi7pk: str
    gsi7sk: str
    event_id: str
    sequence: Annotated[int, Meta(description="Grows by one within the entity.")]
    app: str
    entity_id: str
    entity_type: str
    tenant_id: str
    event_type: Annotated[str, Meta(examples=["Task Completed"])]
    timestamp: Annotated[int, Meta(description="Milliseconds since 1970.")]
    context: dict[str, Any]
    properties: dict[str, Any]
    ttl: Annotated[
        int | None, Meta(description="Seconds since 1970: when the store may delete it.")
    ] = None


class TaskEventPage(ApiDocument, kw_only=True):
    """Events of a task, in order; continue after the sequence of the last one."""

    events: list[EventDocument]


class EventPage(ApiDocument, kw_only=True):
    """Events, in the order in which they were recorded."""

    events: list[EventDocument]
    cursor: NextCursor
    end: Annotated[
        str,
        Meta(
            description="Send it as `cursor` or `Last-Event-ID` to continue after this page, also "
            "when there are no more events yet."
        ),
    ]


class StreamEndDocument(ApiDocument, kw_only=True):
    """The end of a stream: the state of the job or task, null if it was deleted."""

    status: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamItem:
    """One item of a stream; the last one is of the kind ``end``."""

    kind: Literal["event", "output", "end"]
    id: str | None = None  # the position after it, for readers that continue later
    data: EventDocument | OutputChunkDocument | StreamEndDocument


# Health, queues, budgets, keys, definitions -----------------------------------------------------


class TaskHealthDocument(ApiDocument, kw_only=True):
    """The health of a task now; fields that only a running task has are null."""

    request_id: str
    status: TaskState
    health: Health | None
    elapsed_ms: Annotated[int | None, Meta(description="Since the attempt started.")]
    silent_ms: Annotated[int | None, Meta(description="Since the task's latest event.")]
    last_event_type: str | None
    worker_id: str | None


class HealthCounts(ApiDocument, kw_only=True):
    """The number of running tasks by health."""

    total_processing: int
    healthy: int
    warning: int
    critical: int
    overtime: int


class CheckedTaskDocument(ApiDocument, kw_only=True):
    """The health of one running task in a health check."""

    request_id: str
    health: Health
    elapsed: Annotated[int, Meta(description="Milliseconds since the attempt started.")]
    time_since_last_event: Annotated[int, Meta(description="Milliseconds.")]
    last_event_type: str
    worker_id: str


class HealthCheckDocument(ApiDocument, kw_only=True):
    """The result of a health check: each running task once, the least healthy first."""

    checked_at: Timestamp
    summary: HealthCounts
    tasks: list[CheckedTaskDocument]


class PrunedJobsDocument(ApiDocument, kw_only=True):
    """How many jobs were removed, or would be."""

    jobs: int
    more: Annotated[bool, Meta(description="Whether to call again: there may be more.")]


class PausedQueueDocument(ApiDocument, kw_only=True):
    """A queue whose tasks are not started: it is paused or held."""

    name: str
    by: Annotated[
        str, Meta(description="The key or user that paused it, or the worker that holds it.")
    ]
    reason: str | None
    at: Timestamp
    until: Annotated[
        Timestamp | None,
        Meta(description="When a hold ends by itself; null: it is paused until it is resumed."),
    ]


class PausedQueueList(ApiDocument, kw_only=True):
    """All pauses and holds, by queue name."""

    paused: list[PausedQueueDocument]


class BudgetDocument(ApiDocument, kw_only=True):
    """Amounts; null: no limit."""

    usd: float | None
    tokens: int | None
    minutes: float | None


class SpendDocument(ApiDocument, kw_only=True):
    """What was spent."""

    usd: float
    tokens: int
    minutes: float


class BudgetStatusDocument(ApiDocument, kw_only=True):
    """A budget and what is spent of it."""

    limit: Annotated[BudgetDocument, Meta(description="Including what operators have added.")]
    added: Annotated[BudgetDocument, Meta(description="By operators; part of the limit.")]
    spent: SpendDocument
    reserved: Annotated[SpendDocument, Meta(description="For requests that are in progress.")]


class KeyDocument(ApiDocument, kw_only=True):
    """An API key, without its secret."""

    id: str
    name: str
    scopes: list[ApiScope]
    created_at: Timestamp
    revoked_at: Timestamp | None
    expires_at: Timestamp | None = None
    definitions: Annotated[
        list[str] | None, Meta(description="The key may start tasks of these only; null: of any.")
    ] = None
    queues: Annotated[
        list[str] | None, Meta(description="The key may start tasks in these only; null: in any.")
    ] = None


class NewKeyDocument(KeyDocument, kw_only=True):
    """A new API key."""

    key: Annotated[str, Meta(description="Store it: it is not shown again.", examples=["lsk_…"])]
    warning: str | None = None


class KeyList(ApiDocument, kw_only=True):
    """All keys of the tenant."""

    keys: list[KeyDocument]


class RetryDocument(ApiDocument, kw_only=True):
    """How often and how soon an attempt is repeated."""

    max_attempts: int | None
    base: Annotated[str | None, Meta(examples=["1s"])]
    cap: Annotated[str | None, Meta(examples=["5m"])]


class ResourcesDocument(ApiDocument, kw_only=True, omit_defaults=True):
    """What an attempt may use."""

    cpu: Annotated[str | None, Meta(examples=["10m"])] = None
    memory_bytes: int | None = None
    open_files: int | None = None
    file_bytes: int | None = None
    processes: int | None = None


class HealthLimitsDocument(ApiDocument, kw_only=True, omit_defaults=True):
    """When a running task counts as unhealthy."""

    longest_run: str | None = None
    healthy_within: str | None = None
    warning_within: str | None = None


class DefinitionDocument(ApiDocument, kw_only=True):
    """A version of a definition; fields that it does not set are null."""

    name: str
    version: Annotated[int, Meta(description="0: built in.")]
    runner: RunnerKind
    options: dict[str, Any]
    overridable: Annotated[list[str], Meta(description="Options that an input may set.")]
    description: str | None
    queue: str | None
    priority: Priority
    timeout: Annotated[str | None, Meta(examples=["15m"])]
    retry: RetryDocument | None
    retry_on_timeout: bool
    retryable_exit_codes: list[int]
    requires_review: bool
    isolation: Literal["fork", "pool", "spawn"]
    resources: ResourcesDocument | None
    pty: bool
    health: HealthLimitsDocument | None


class DefinitionList(ApiDocument, kw_only=True):
    """Definitions."""

    definitions: list[DefinitionDocument]


# Dead letters -----------------------------------------------------------------------------------


class DeadLetterDocument(ApiDocument, kw_only=True):
    """A dead letter; for a message without a task, the task's fields are null."""

    id: str
    kind: Literal["task", "message"]
    at: Timestamp
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


class DeadLetterPage(ApiDocument, kw_only=True):
    """Dead letters, the latest first."""

    dead_letters: list[DeadLetterDocument]
    count: Annotated[int, Meta(description="On all pages.")]
    cursor: NextCursor


class DeadLetterKindDocument(ApiDocument, kw_only=True):
    """The number of dead letters of one kind."""

    queue: str
    category: Annotated[
        str, Meta(description="The error's category; `message`: a message without a task.")
    ]
    count: int


class DeadLetterCountsDocument(ApiDocument, kw_only=True):
    """The number of dead letters."""

    count: Annotated[int, Meta(description="All of them.")]
    tasks: Annotated[int, Meta(description="Those that a replay would run again.")]
    messages: int
    kinds: Annotated[list[DeadLetterKindDocument], Meta(description="The most frequent first.")]


class PastAttemptDocument(ApiDocument, kw_only=True):
    """An attempt that has ended."""

    attempt: int
    round: int
    worker_id: str | None
    started_at: Timestamp | None
    ended_at: Timestamp | None
    duration_ms: int | None
    outcome: str | None
    error: str | None
    category: str | None
    exit_code: int | None


class OutputLineDocument(ApiDocument, kw_only=True):
    """A line of output."""

    stream: Literal["stdout", "stderr", "log"]
    text: str


class PostMortemDocument(DeadLetterDocument, kw_only=True):
    """A dead letter with its attempts and the last lines of its output."""

    ended_by: str | None
    body: str | None
    body_bytes: int | None
    sent_at: Timestamp | None
    input_bytes: int
    task: TaskDocument | None
    attempts: list[PastAttemptDocument]
    last_lines: list[OutputLineDocument]


class ReplayedTaskDocument(ApiDocument, kw_only=True):
    """A task that runs again."""

    request_id: str
    round: int


class SkippedTaskDocument(ApiDocument, kw_only=True):
    """A task that was not replayed."""

    request_id: str
    reason: str


class ReplayResultDocument(ApiDocument, kw_only=True):
    """The result of a replay."""

    replayed: list[ReplayedTaskDocument]
    skipped: list[SkippedTaskDocument]


class ProbeDocument(ApiDocument, kw_only=True):
    """The server answers."""

    status: Literal["ok"] = "ok"


# From rows and records --------------------------------------------------------------------------


def task_exit_code(task: TaskRow) -> int | None:
    """What a shell that ran the task would exit with; None while the task has not ended."""
    if not task.state.terminal:
        return None
    if task.state is TaskState.COMPLETED:
        return task.exit_code or 0
    failure = task.failure
    if task.state is TaskState.CANCELLED or failure is None:
        return _FAILED_CODE
    if failure.category is ErrorCategory.TIMEOUT:
        return TIMED_OUT_CODE
    if failure.exit_code is not None:
        return failure.exit_code
    number = signal.Signals.__members__.get(failure.signal or "")
    return _FAILED_CODE if number is None else _SIGNAL_BASE + number


def job_exit_code(job: JobRow, tasks: Iterable[TaskRow]) -> int | None:
    """The exit code of the task of a job with one task, otherwise 0 or 1; None while it runs."""
    if not job.state.terminal:
        return None
    if job.total == 1:
        return next((task_exit_code(task) for task in tasks), None)
    return 0 if job.state is JobState.COMPLETED else _FAILED_CODE


def job_document(
    kind: type[AnyDocument], job: JobRow, rows: Iterable[TaskRow], **fields: Any
) -> AnyDocument:
    """A job as ``JobDocument`` or ``JobDetailDocument``, with the fields that only the latter has.

    Args:
        rows: Must have the task of a job with one task.
    """
    return from_record(
        kind,
        job,
        job.spec,
        job_id=job.id,
        status=job.state,
        exit_code=job_exit_code(job, rows),
        total_tasks=job.total,
        progress=JobProgressDocument(
            completed=len(job.completed),
            failed=len(job.failed),
            cancelled=len(job.cancelled),
            blocked=len(job.blocked),
            open=job.total - len(job.ended) - len(job.blocked),
        ),
        usage=_usage_document(job.usage),
        duration_ms=_milliseconds(
            job.finished_at - job.spec.created_at if job.finished_at else None
        ),
        **fields,
    )


def task_document(kind: type[AnyDocument], task: TaskRow, last_event: Event | None) -> AnyDocument:
    """A task as ``TaskDocument`` or ``RevisedTaskDocument``."""
    failure, lease, parked = task.failure, task.lease, task.parked
    return from_record(
        kind,
        task,
        task.spec,
        request_id=task.id,
        task_id=task.spec.key,
        name=task.spec.definition,
        status=task.state,
        priority=task.spec.priority.name.lower(),
        max_attempts=task.spec.retry.max_attempts,
        worker_id=lease.worker_id if lease else None,
        error=failure and from_record(ErrorDocument, failure, type=failure.error_type),
        parked=parked and from_record(ParkedDocument, parked, budget=parked.scope),
        duration_ms=_milliseconds(task.ran_for),
        usage=_usage_document(task.usage + lease.usage if lease else task.usage),
        last_event=last_event and from_record(LastEventDocument, last_event),
    )


def _usage_document(usage: Usage) -> UsageDocument:
    return UsageDocument(cost_usd=usage.cost_usd, turns=usage.turns, tokens=total_tokens(usage))


def reason_document(reason: WhyReason) -> WhyReasonDocument:
    """A reason, with the command that would resolve it."""
    remedy = None if reason.remedy is None else command_of(reason.remedy)
    return from_record(WhyReasonDocument, reason, request_id=reason.task_id, remedy=remedy)


def command_of(remedy: Remedy) -> str:
    """Returns the command that carries out a remedy."""
    amount = _AMOUNTS[remedy.unit or BudgetUnit.USD]
    command = _COMMANDS[remedy.action].format(target=remedy.target or "today", amount=amount)
    return f"longshore {command}"


def output_chunk_document(job_id: str, key: str, chunk: OutputChunk) -> OutputChunkDocument:
    """A chunk of output of the task ``key`` of a job."""
    text = chunk.data.decode(errors="replace")
    is_text = text.encode() == chunk.data
    return from_record(
        OutputChunkDocument,
        chunk,
        id=f"{chunk.attempt}.{chunk.end}",
        job_id=job_id,
        task_id=key,
        text=text,
        base64=None if is_text else base64.b64encode(chunk.data).decode(),
        last_sequence=chunk.last,
    )


def event_document(
    event: Event, properties: Mapping[str, Any], *, environment: str
) -> EventDocument:
    """An event with its whole properties."""
    fields = to_wire(event, environment=environment)
    return msgspec.convert({**fields, "properties": properties}, EventDocument)


def health_check_document(properties: Mapping[str, Any], at: datetime) -> HealthCheckDocument:
    """A health check from the properties of its event."""
    fields = {**properties, "checkedAt": format_timestamp(at)}
    return msgspec.convert(fields, HealthCheckDocument)


def task_health_document(task: TaskRow, check: CheckedTask | None) -> TaskHealthDocument:
    """The health of a task; ``check`` is None for a task that does not run."""
    return from_record(
        TaskHealthDocument,
        check,
        request_id=task.id,
        status=task.state,
        elapsed_ms=check and _milliseconds(check.elapsed),
        silent_ms=check and _milliseconds(check.time_since_last_event),
    )


def budget_status_document(status: BudgetStatus) -> BudgetStatusDocument:
    """A budget and what is spent of it."""
    return BudgetStatusDocument(
        limit=from_record(BudgetDocument, status.limit),
        added=from_record(BudgetDocument, status.added),
        spent=_spend_document(status.spent),
        reserved=_spend_document(status.reserved),
    )


def _spend_document(usage: Usage) -> SpendDocument:
    return SpendDocument(usd=usage.cost_usd, tokens=total_tokens(usage), minutes=usage.seconds / 60)


def key_document(record: KeyRecord, kind: type[AnyDocument], **fields: Any) -> AnyDocument:
    """An API key as ``KeyDocument``, or with the fields of ``NewKeyDocument``."""
    definitions, queues = record.limits.definitions, record.limits.queues
    return from_record(
        kind,
        record,
        scopes=sorted(record.scopes),
        definitions=None if definitions is None else sorted(definitions),
        queues=None if queues is None else sorted(queues),
        **fields,
    )


def definition_document(definition: Definition) -> DefinitionDocument:
    """A definition, which can be sent again."""
    retry, resources, health = definition.retry, definition.resources, definition.health
    return from_record(
        DefinitionDocument,
        definition,
        options=dict(definition.options),
        overridable=list(definition.overridable),
        priority=definition.priority.name.lower(),
        retry=from_record(RetryDocument, retry) if retry else None,
        retryable_exit_codes=list(definition.retryable_exit_codes),
        resources=from_record(ResourcesDocument, resources) if resources != UNLIMITED else None,
        health=from_record(HealthLimitsDocument, health) if health else None,
    )


def definition_request(definition: Definition) -> dict[str, Any]:
    """A definition as it is written in a file: without version and without unset fields."""
    fields = to_dict(definition_document(definition))
    del fields["version"]
    return {name: value for name, value in fields.items() if value is not None}


def dead_letter_document(kind: type[AnyDocument], letter: DeadLetter, **fields: Any) -> AnyDocument:
    """A dead letter as ``DeadLetterDocument``, or with the fields of ``PostMortemDocument``."""
    row, message = letter.row, letter.message
    return from_record(
        kind,
        letter,
        row,
        row and row.spec,
        kind="task" if message is None else "message",
        error=letter.reason,
        request_id=row and row.id,
        task_id=row and row.spec.key,
        name=row and row.spec.definition,
        max_attempts=row and row.spec.retry.max_attempts,
        receives=message and message.receive_count,
        **fields,
    )


def post_mortem_document(
    letter: DeadLetter,
    task: TaskDocument | None,
    *,
    ended_by: str | None,
    attempts: Iterable[PastAttempt],
    last_lines: list[OutputLineDocument],
) -> PostMortemDocument:
    """A dead letter with its history."""
    row, message = letter.row, letter.message
    return dead_letter_document(
        PostMortemDocument,
        letter,
        ended_by=ended_by,
        body=message and safe_excerpt(message.body, limit=_BODY_CHARACTERS),
        body_bytes=message and len(message.body.encode()),
        sent_at=message and format_timestamp(message.sent_at),
        input_bytes=row.spec.input.size if row and row.spec.input else 0,
        task=task,
        attempts=[
            from_record(
                PastAttemptDocument,
                attempt,
                attempt=attempt.number,
                duration_ms=_milliseconds(attempt.duration),
            )
            for attempt in attempts
        ],
        last_lines=last_lines,
    )


def state_counts(states: Iterable[TaskState]) -> dict[TaskState, int]:
    """The number of tasks in each state, zeros included."""
    counted = list(states)
    return {state: counted.count(state) for state in TaskState}


def format_timestamp(moment: datetime) -> str:
    """A time as documents have it."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // timedelta(milliseconds=1)
