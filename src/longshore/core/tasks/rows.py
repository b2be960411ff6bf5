"""The rows of the ledger: one per task, one per job.

Each row has two parts. The ``spec`` is what was requested: written once, never changed. The rest is
the current state, which every transition rewrites, so it is small; documents are stored beside it.

Two counters, never mixed: ``attempt`` numbers every claim of the task and is never reset or reused,
because output, artifacts and fences are keyed by it; ``attempts_used`` counts, within a round, only
the outcomes that count against the limit. A rate limit that names a wait does not, and the sum of
these waits is limited instead.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any

from longshore.core.budgets import NO_BUDGET, Allowance, Budget, BudgetScope, BudgetUnit
from longshore.core.documents import Document
from longshore.core.events.types import NO_USAGE, Usage
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.records import row, value
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.failures import Failure
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.states import JobState, Priority, TaskState


@row
class TaskKind:
    """What tasks of the same definition and options have in common."""

    app: str
    definition: str
    definition_version: int
    queue: str
    priority: Priority
    retry: RetryPolicy
    retry_on_timeout: bool
    requires_review: bool

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields by name."""
        return dict(self.__dict__)


@value
class TaskSpec:
    """A task as it was submitted."""

    id: str  # global: {job_id}_{key}
    tenant: str
    app: str
    job_id: str
    key: str  # the task's name inside its job
    number: int  # its position in the job, from 0
    definition: str
    definition_version: int
    created_at: datetime
    queue: str = "default"
    priority: Priority = Priority.NORMAL
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    retry_on_timeout: bool = False
    requires_review: bool = False
    not_before: datetime | None = None
    input: Document | None = None
    parents: Document | None = None  # list of keys; None: no parents
    dependents: Document | None = None  # list of keys; None: no dependents


@value
class CancelRequest:
    """A requested cancellation of a task or job."""

    by: str
    reason: str | None
    at: datetime


@value
class ParkRecord:
    """Why a task is parked: a budget is used up."""

    scope: BudgetScope
    unit: BudgetUnit
    reason: str
    at: datetime


@row
class TaskRow:
    """A task as it is now."""

    spec: TaskSpec
    state: TaskState
    version: int
    change_id: str  # of the commit that made this version
    updated_at: datetime
    round: int = 1
    attempt: int = 0
    attempts_used: int = 0
    rate_limit_waits: timedelta = timedelta(0)  # all of this round
    fence: int = 0  # the highest ever issued
    lease: Lease | None = None
    awaits: NumberSet = NO_NUMBERS  # numbers of the parents that have not completed
    # Pending: the earliest start; parked: when it resumes by itself, if ever.
    due_at: datetime | None = None
    enqueued_at: datetime | None = None  # pending: when its message was last sent
    started_at: datetime | None = None  # of the latest attempt
    finished_at: datetime | None = None
    ran_for: timedelta | None = None  # of the latest attempt
    result: Document | None = None
    exit_code: int | None = None  # of the latest attempt
    failure: Failure | None = None  # of the latest attempt that failed
    last_output: int | None = None  # sequence of the latest attempt's last output
    checkpoint: str | None = None  # blob key of the newest saved step
    revision: int = 0
    feedback: str | None = None
    previous_result: Document | None = None  # what the reviewer saw
    cancel: CancelRequest | None = None
    usage: Usage = NO_USAGE
    parked: ParkRecord | None = None
    allowance: Allowance | None = None  # what operators added to its budget
    last_sequence: int = 0
    last_event_at: datetime | None = None

    @property
    def id(self) -> str:
        """The task's global id."""
        return self.spec.id


class IntentKind(StrEnum):
    """The kind of an operation on many tasks of a job."""

    CREATE = "create"
    CANCEL = "cancel"
    RESUME = "resume"
    ADD = "add"
    UNPARK = "unpark"


@value
class Intent:
    """An accepted operation on many rows that is being carried out."""

    id: str
    kind: IntentKind
    numbers: NumberSet
    round: int
    by: str
    body: Document | None = None


@value
class JobSpec:
    """A job as it was submitted."""

    id: str
    tenant: str
    app: str
    request_id: str
    body_hash: str  # a request id that is used again with another document is refused
    created_at: datetime
    name: str | None = None
    budget: Budget = NO_BUDGET  # of all its tasks together


@row
class JobRow:
    """A job as it is now. Its state is not stored: it follows from the four sets."""

    spec: JobSpec
    version: int
    change_id: str
    updated_at: datetime
    graph: Document  # see ``graph.py``: keys, definitions and parents by number
    total: int
    round: int = 1
    completed: NumberSet = NO_NUMBERS
    failed: NumberSet = NO_NUMBERS
    cancelled: NumberSet = NO_NUMBERS
    blocked: NumberSet = NO_NUMBERS  # depend on a failed or cancelled task
    with_added_dependents: NumberSet = NO_NUMBERS  # added later, so they are not in the specs
    failure_emitted_round: int = 0  # the last round with a Job Failure Detected
    end_emitted_round: int = 0  # the last round with a Job Completed or Job Cancelled
    intents: tuple[Intent, ...] = ()
    cancel: CancelRequest | None = None
    allowance: Allowance | None = None  # what operators added to its budget
    usage: Usage = NO_USAGE  # of the tasks that have ended
    finished_at: datetime | None = None
    last_sequence: int = 0
    last_event_at: datetime | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.spec.id

    @property
    def ended(self) -> NumberSet:
        """The tasks that have ended."""
        return self.completed | self.failed | self.cancelled

    @property
    def state(self) -> JobState:
        """Running while a task can still run by itself, or is being cancelled."""
        over = self.ended if self.cancel else self.ended | self.blocked
        if len(over) < self.total:
            return JobState.RUNNING
        if self.failed and not (self.cancel and self.cancelled):
            return JobState.FAILED
        return JobState.CANCELLED if self.cancelled else JobState.COMPLETED

    @property
    def end_unreported(self) -> bool:
        """Whether the job has ended and this round's final event was not emitted yet."""
        if self.end_emitted_round >= self.round:
            return False
        return self.state in (JobState.COMPLETED, JobState.CANCELLED)
