"""Every fact that is told about a task, a job, a queue or the system.

One frozen dataclass an event type; its ``TYPE`` is the name on the wire. Times are moments, spans
are durations, documents may stand elsewhere (``Document``): camel case, milliseconds and the
index keys belong to ``codec`` alone. ``None`` means that the property is left out.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

from longshore.core.documents import Document
from longshore.core.records import value
from longshore.core.tasks.states import TaskState


class EntityType(StrEnum):
    """What an event is about."""

    TASK = "TASK"
    JOB = "JOB"
    QUEUE = "QUEUE"
    SYSTEM = "SYSTEM"


@value
class Usage:
    """What an attempt consumed; figures that do not apply are zero."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    turns: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0  # of an agent at work

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            turns=self.turns + other.turns,
            cost_usd=self.cost_usd + other.cost_usd,
            seconds=self.seconds + other.seconds,
        )

    def __sub__(self, other: Usage) -> Usage:
        """What came since."""
        return Usage(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            cache_read_tokens=self.cache_read_tokens - other.cache_read_tokens,
            turns=self.turns - other.turns,
            cost_usd=self.cost_usd - other.cost_usd,
            seconds=self.seconds - other.seconds,
        )


@value
class Activity:
    """What a running attempt was last seen doing."""

    type: str = "waiting"  # step_running, sdk_query or waiting
    step_name: str | None = None
    timestamp: datetime | None = None


@value
class TaskPending:
    """The task may run, and a doorbell has been rung or will be."""

    TYPE: ClassVar[str] = "Task Pending"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    name: str  # of the definition
    depends_on: Document | None = None  # a list of keys
    round: int = 1
    due_at: datetime | None = None  # only when later than the event


@value
class TaskWaiting:
    """The task was given another round, and its parents have to complete first."""

    TYPE: ClassVar[str] = "Task Waiting"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    round: int


@value
class TaskProcessingStarted:
    """A worker has claimed the task and holds its lease."""

    TYPE: ClassVar[str] = "Task Processing Started"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    started_at: datetime
    effective_until: datetime  # the end of the lease
    worker_id: str
    process_id: int
    attempt_number: int
    fence: int


@value
class TaskHeartbeat:
    """The worker is alive and still has the task."""

    TYPE: ClassVar[str] = "Task Heartbeat"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    effective_until: datetime
    number: int
    elapsed: timedelta
    worker_id: str
    process_id: int
    attempt_number: int
    rss_bytes: int = 0
    last_activity: Activity | None = None
    usage: Usage | None = None  # so far in this attempt


@value
class TaskProcessingFailed:
    """An attempt failed; the task is pending again and due at a later moment."""

    TYPE: ClassVar[str] = "Task Processing Failed"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    attempt_number: int
    error: str
    error_category: str
    due_at: datetime
    duration: timedelta | None = None
    exit_code: int | None = None
    last_output: int | None = None  # sequence of the attempt's last output
    usage: Usage | None = None
    peak_rss_bytes: int | None = None  # the most memory that the attempt had


@value
class TaskReleased:
    """A worker gave the task back unfinished; no attempt was used up."""

    TYPE: ClassVar[str] = "Task Released"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    reason: str
    attempt_number: int
    last_output: int | None = None
    usage: Usage | None = None


@value
class TaskParked:
    """A budget is used up; the task rests until more is allowed, and goes on where it was."""

    TYPE: ClassVar[str] = "Task Parked"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    attempt_number: int
    scope: str  # whose budget: "step", "task", "job" or "day"
    reason: str
    due_at: datetime | None = None  # when it goes on by itself
    duration: timedelta | None = None
    last_output: int | None = None
    usage: Usage | None = None


@value
class TaskUnparked:
    """More is allowed, or a new day has begun; the task is pending again."""

    TYPE: ClassVar[str] = "Task Unparked"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    by: str


@value
class TaskBudgetAdded:
    """An operator allows more to be spent on the task."""

    TYPE: ClassVar[str] = "Task Budget Added"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    by: str
    usd: float | None = None
    tokens: int | None = None
    minutes: float | None = None


@value
class TaskCompleted:
    """The task is done; its result goes to its dependents."""

    TYPE: ClassVar[str] = "Task Completed"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    attempt_number: int
    output: Document | None
    duration: timedelta
    exit_code: int = 0
    last_output: int | None = None
    usage: Usage = field(default_factory=Usage)


@value
class TaskFailed:
    """The task is over without a result."""

    TYPE: ClassVar[str] = "Task Failed"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    error: str
    error_category: str
    retry_count: int  # attempts used in this round
    source: str  # "worker", "dlq" or "sweeper"
    attempt_number: int | None = None
    exit_code: int | None = None
    duration: timedelta | None = None
    last_output: int | None = None
    usage: Usage | None = None
    peak_rss_bytes: int | None = None


@value
class TaskTimeout:
    """The worker ended the attempt because its time was up; the task is over."""

    TYPE: ClassVar[str] = "Task Timeout"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    attempt_number: int
    timeout: timedelta
    elapsed: timedelta
    signal: str
    last_output: int | None = None
    usage: Usage | None = None


@value
class TaskCancelled:
    """A user ended the task."""

    TYPE: ClassVar[str] = "Task Cancelled"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    by: str
    reason: str | None = None
    attempt_number: int | None = None
    last_output: int | None = None
    usage: Usage | None = None


@value
class TaskSubmittedForReview:
    """The work is done and waits for a person's word."""

    TYPE: ClassVar[str] = "Task Submitted For Review"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    attempt_number: int
    output: Document | None
    duration: timedelta
    last_output: int | None = None
    usage: Usage | None = None


@value
class TaskRevisionRequested:
    """A reviewer wants the work done again with their feedback."""

    TYPE: ClassVar[str] = "Task Revision Requested"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    feedback: str
    revision: int
    by: str


@value
class TaskApproved:
    """A reviewer accepted the work; ``TaskCompleted`` follows in the same commit."""

    TYPE: ClassVar[str] = "Task Approved"
    ENTITY: ClassVar[EntityType] = EntityType.TASK

    task_id: str
    job_id: str
    by: str


@value
class TaskSummary:
    """A task as the job's own events list it."""

    key: str
    name: str
    depends_on: tuple[str, ...] = ()
    input: Document | None = None


@value
class JobCreated:
    """A job was accepted."""

    TYPE: ClassVar[str] = "Job Created"
    ENTITY: ClassVar[EntityType] = EntityType.JOB

    job_id: str
    request_id: str
    tasks: tuple[TaskSummary, ...]
    total_tasks: int


@value
class JobTasksAdded:
    """More tasks were added to a running job."""

    TYPE: ClassVar[str] = "Job Tasks Added"
    ENTITY: ClassVar[EntityType] = EntityType.JOB

    job_id: str
    new_tasks: tuple[TaskSummary, ...]
    previous_total_tasks: int
    total_tasks_now: int


@value
class JobCompleted:
    """Every task of the job completed."""

    TYPE: ClassVar[str] = "Job Completed"
    ENTITY: ClassVar[EntityType] = EntityType.JOB

    job_id: str
    total_tasks: int
    task_statuses: dict[str, str | None]
    round: int = 1


@value
class JobFailureDetected:
    """A task failed for good; what does not depend on it goes on."""

    TYPE: ClassVar[str] = "Job Failure Detected"
    ENTITY: ClassVar[EntityType] = EntityType.JOB

    job_id: str
    failed_key: str
    task_statuses: dict[str, str | None]
    round: int = 1


@value
class JobCancelled:
    """A user ended the job, and nothing of it runs any more."""

    TYPE: ClassVar[str] = "Job Cancelled"
    ENTITY: ClassVar[EntityType] = EntityType.JOB

    job_id: str
    by: str
    reason: str | None = None
    round: int = 1


@value
class JobResumed:
    """An operator gave failed tasks another round."""

    TYPE: ClassVar[str] = "Job Resumed"
    ENTITY: ClassVar[EntityType] = EntityType.JOB

    job_id: str
    round: int
    tasks: tuple[str, ...]  # keys
    by: str


@value
class JobBudgetAdded:
    """An operator allows more to be spent on the job."""

    TYPE: ClassVar[str] = "Job Budget Added"
    ENTITY: ClassVar[EntityType] = EntityType.JOB

    job_id: str
    by: str
    usd: float | None = None
    tokens: int | None = None
    minutes: float | None = None


@value
class MessageRejected:
    """A message on a queue could not be understood and was removed."""

    TYPE: ClassVar[str] = "Message Rejected"
    ENTITY: ClassVar[EntityType] = EntityType.QUEUE

    queue: str
    message_id: str
    reason: str
    excerpt: str | None = None


@value
class TaskHealth:
    """One running task as a health check found it."""

    task_id: str
    health: str
    elapsed: timedelta
    time_since_last_event: timedelta
    last_event_type: str
    worker_id: str


@value
class HealthSummary:
    """How many running tasks are in which health."""

    total_processing: int
    healthy: int
    warning: int
    critical: int
    overtime: int


@value
class TaskHealthCheck:
    """The health of everything that runs, at one moment, for one tenant."""

    TYPE: ClassVar[str] = "Task Health Check"
    ENTITY: ClassVar[EntityType] = EntityType.SYSTEM

    summary: HealthSummary
    tasks: tuple[TaskHealth, ...]


@value
class OperatorActed:
    """Somebody did what is not done to a task or job: made a key, paused a queue and the like."""

    TYPE: ClassVar[str] = "Operator Acted"
    ENTITY: ClassVar[EntityType] = EntityType.SYSTEM

    by: str
    action: str  # such as "key.created"
    subject: str  # what it was done to
    detail: str | None = None


EventBody = (
    TaskPending
    | TaskWaiting
    | TaskProcessingStarted
    | TaskHeartbeat
    | TaskProcessingFailed
    | TaskReleased
    | TaskParked
    | TaskUnparked
    | TaskBudgetAdded
    | TaskCompleted
    | TaskFailed
    | TaskTimeout
    | TaskCancelled
    | TaskSubmittedForReview
    | TaskRevisionRequested
    | TaskApproved
    | JobCreated
    | JobTasksAdded
    | JobCompleted
    | JobFailureDetected
    | JobCancelled
    | JobResumed
    | JobBudgetAdded
    | MessageRejected
    | TaskHealthCheck
    | OperatorActed
)

EVENT_TO_STATE: dict[str, TaskState] = {
    TaskPending.TYPE: TaskState.PENDING,
    TaskWaiting.TYPE: TaskState.WAITING,
    TaskProcessingStarted.TYPE: TaskState.PROCESSING,
    TaskHeartbeat.TYPE: TaskState.PROCESSING,
    TaskProcessingFailed.TYPE: TaskState.PENDING,
    TaskReleased.TYPE: TaskState.PENDING,
    TaskParked.TYPE: TaskState.PARKED,
    TaskUnparked.TYPE: TaskState.PENDING,
    TaskSubmittedForReview.TYPE: TaskState.IN_REVIEW,
    TaskRevisionRequested.TYPE: TaskState.PENDING,
    # Task Completed follows in the same commit, and that is what ends the task.
    TaskApproved.TYPE: TaskState.IN_REVIEW,
    TaskCompleted.TYPE: TaskState.COMPLETED,
    TaskFailed.TYPE: TaskState.FAILED,
    TaskTimeout.TYPE: TaskState.FAILED,
    TaskCancelled.TYPE: TaskState.CANCELLED,
}
"""The state of a task after each event; an event that is not listed does not change it."""
