"""The events of tasks, jobs, queues and the system.

Each event type is a dataclass; its ``TYPE`` is its name on the wire. Times are ``datetime``,
durations ``timedelta``, and a ``Document`` may be stored in a blob. ``codec`` has the
wire format. ``None`` means that the property is omitted.
"""

from __future__ import annotations

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
    """What an attempt used; a figure that does not apply is zero."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    turns: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0  # in which an agent ran

    def __add__(self, other: Usage) -> Usage:
        return self._plus(other, 1)

    def __sub__(self, other: Usage) -> Usage:
        return self._plus(other, -1)

    def _plus(self, other: Usage, sign: int) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + sign * other.input_tokens,
            output_tokens=self.output_tokens + sign * other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + sign * other.cache_read_tokens,
            turns=self.turns + sign * other.turns,
            cost_usd=self.cost_usd + sign * other.cost_usd,
            seconds=self.seconds + sign * other.seconds,
        )


NO_USAGE = Usage()


@value
class Activity:
    """The last reported activity of a running attempt."""

    type: str = "waiting"  # step_running, sdk_query or waiting
    step_name: str | None = None
    timestamp: datetime | None = None


@value
class EventBody:
    """Base of the events."""

    TYPE: ClassVar[str]
    ENTITY: ClassVar[EntityType] = EntityType.SYSTEM


@value
class TaskEvent(EventBody):
    """Base of the events of a task."""

    ENTITY = EntityType.TASK

    task_id: str
    job_id: str


@value
class AttemptEvent(TaskEvent):
    """Base of the events that may end an attempt."""

    last_output: int | None = None  # sequence of the attempt's last output
    usage: Usage | None = None


@value
class FailureEvent(AttemptEvent):
    """Base of the events of a failure."""

    error: str
    error_category: str
    exit_code: int | None = None
    duration: timedelta | None = None  # from the start of its process or call to the end
    peak_rss_bytes: int | None = None  # peak memory of the attempt
    retry_after: timedelta | None = None  # the wait that a rate limit named


@value
class JobEvent(EventBody):
    """Base of the events of a job."""

    ENTITY = EntityType.JOB

    job_id: str


@value
class TaskPending(TaskEvent):
    """The task may run: its message is sent with this commit or by the sweeper."""

    TYPE = "Task Pending"

    name: str  # of the definition
    depends_on: Document | None = None  # a list of keys
    round: int = 1
    due_at: datetime | None = None  # only when later than the event


@value
class TaskWaiting(TaskEvent):
    """The task has another round and waits for its parents to complete."""

    TYPE = "Task Waiting"

    round: int


@value
class TaskProcessingStarted(TaskEvent):
    """A worker has claimed the task and holds its lease.

    `processId` is the process id of the worker: no process of the attempt exists yet. Heartbeats
    have that of the attempt's own process.
    """

    TYPE = "Task Processing Started"

    started_at: datetime
    effective_until: datetime  # the end of the lease
    worker_id: str
    process_id: int
    attempt_number: int
    fence: int


@value
class TaskHeartbeat(TaskEvent):
    """The worker renewed its lease of the task.

    `processId` is the process id of the attempt's own process; 0 if it does not exist yet, or has
    ended.
    """

    TYPE = "Task Heartbeat"

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
class TaskProcessingFailed(FailureEvent):
    """An attempt failed; the task is pending again and due later."""

    TYPE = "Task Processing Failed"

    attempt_number: int
    due_at: datetime


@value
class TaskReleased(AttemptEvent):
    """A worker released the task unfinished; this uses up no attempt."""

    TYPE = "Task Released"

    reason: str
    attempt_number: int
    due_at: datetime | None = None  # its place in the queue; only when earlier than the event


@value
class TaskParked(AttemptEvent):
    """A budget is used up; the task continues when the budget is raised or a new day begins."""

    TYPE = "Task Parked"

    attempt_number: int
    scope: str  # whose budget: "step", "task", "job" or "day"
    reason: str
    due_at: datetime | None = None  # when it continues by itself
    duration: timedelta | None = None


@value
class TaskUnparked(TaskEvent):
    """The budget was raised, or a new day has begun; the task is pending again."""

    TYPE = "Task Unparked"

    by: str


@value
class TaskBudgetAdded(TaskEvent):
    """An operator raised the budget of the task."""

    TYPE = "Task Budget Added"

    by: str
    usd: float | None = None
    tokens: int | None = None
    minutes: float | None = None


@value
class TaskCompleted(TaskEvent):
    """The task completed; its dependents receive its result."""

    TYPE = "Task Completed"

    attempt_number: int
    output: Document | None
    duration: timedelta  # from the start of its process or call to the end
    exit_code: int = 0
    last_output: int | None = None
    usage: Usage = NO_USAGE


@value
class TaskFailed(FailureEvent):
    """The task ended without a result."""

    TYPE = "Task Failed"

    retry_count: int  # attempts used in this round
    source: str  # "worker", "dlq" or "sweeper"
    attempt_number: int | None = None


@value
class TaskTimeout(AttemptEvent):
    """The worker stopped the attempt because it timed out; the task ended without a result."""

    TYPE = "Task Timeout"

    attempt_number: int
    timeout: timedelta
    elapsed: timedelta
    signal: str


@value
class TaskCancelled(AttemptEvent):
    """A user cancelled the task."""

    TYPE = "Task Cancelled"

    by: str
    reason: str | None = None
    attempt_number: int | None = None


@value
class TaskSubmittedForReview(AttemptEvent):
    """The attempt has a result, which waits for a reviewer."""

    TYPE = "Task Submitted For Review"

    attempt_number: int
    output: Document | None
    duration: timedelta


@value
class TaskRevisionRequested(TaskEvent):
    """A reviewer requested a revision; the next attempt receives the feedback."""

    TYPE = "Task Revision Requested"

    feedback: str
    revision: int
    by: str


@value
class TaskApproved(TaskEvent):
    """A reviewer approved the result; ``TaskCompleted`` follows in the same commit."""

    TYPE = "Task Approved"

    by: str


@value
class TaskSummary:
    """A task as the events of its job list it."""

    key: str
    name: str
    depends_on: tuple[str, ...] = ()
    input: Document | None = None


@value
class JobCreated(JobEvent):
    """A job was accepted."""

    TYPE = "Job Created"

    request_id: str
    tasks: tuple[TaskSummary, ...]
    total_tasks: int


@value
class JobTasksAdded(JobEvent):
    """Tasks were added to the job."""

    TYPE = "Job Tasks Added"

    new_tasks: tuple[TaskSummary, ...]
    previous_total_tasks: int
    total_tasks_now: int


@value
class JobCompleted(JobEvent):
    """Every task of the job completed."""

    TYPE = "Job Completed"

    total_tasks: int
    task_statuses: dict[str, str | None]
    round: int = 1


@value
class JobFailureDetected(JobEvent):
    """A task failed; tasks that do not depend on it continue."""

    TYPE = "Job Failure Detected"

    failed_key: str
    task_statuses: dict[str, str | None]
    round: int = 1


@value
class JobCancelled(JobEvent):
    """A user cancelled the job, and none of its tasks runs any more."""

    TYPE = "Job Cancelled"

    by: str
    reason: str | None = None
    round: int = 1


@value
class JobResumed(JobEvent):
    """An operator resumed failed or cancelled tasks in another round."""

    TYPE = "Job Resumed"

    round: int
    tasks: tuple[str, ...]  # keys
    by: str


@value
class JobBudgetAdded(JobEvent):
    """An operator raised the budget of the job."""

    TYPE = "Job Budget Added"

    by: str
    usd: float | None = None
    tokens: int | None = None
    minutes: float | None = None


@value
class MessageRejected(EventBody):
    """A message of a queue cannot be read or names no existing task, and was deleted."""

    TYPE = "Message Rejected"
    ENTITY = EntityType.QUEUE

    queue: str
    message_id: str
    reason: str
    excerpt: str | None = None


@value
class TaskHealth:
    """The health of one running task."""

    task_id: str
    health: str
    elapsed: timedelta
    time_since_last_event: timedelta
    last_event_type: str
    worker_id: str


@value
class HealthSummary:
    """The number of running tasks by health."""

    total_processing: int
    healthy: int
    warning: int
    critical: int
    overtime: int


@value
class TaskHealthCheck(EventBody):
    """The health of all running tasks of a tenant at one time.

    A check of many tasks is several events with the same summary.
    """

    TYPE = "Task Health Check"

    summary: HealthSummary
    tasks: tuple[TaskHealth, ...]
    part: int | None = None  # from 1; None: the only one
    parts: int | None = None


@value
class OperatorActed(EventBody):
    """An operator acted on something other than a task or job: created a key, paused a queue.

    Also the repairs of a sweep, by the sweeper: of what crashes and lost messages left behind.
    """

    TYPE = "Operator Acted"

    by: str
    action: str  # such as "key.created"
    subject: str  # the key, queue or other object
    detail: str | None = None


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
    # Task Completed follows in the same commit and ends the task.
    TaskApproved.TYPE: TaskState.IN_REVIEW,
    TaskCompleted.TYPE: TaskState.COMPLETED,
    TaskFailed.TYPE: TaskState.FAILED,
    TaskTimeout.TYPE: TaskState.FAILED,
    TaskCancelled.TYPE: TaskState.CANCELLED,
}
"""The state of a task after each event; an event that is not listed does not change it."""
