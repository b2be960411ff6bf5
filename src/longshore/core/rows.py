"""What the ledger keeps: one row a task, one row a job.

Each row is in two parts. The ``spec`` is what was asked for: written once, never changed. The rest
is what has become of it, rewritten by every transition, so it stays small; documents stand beside.

Two counters, never mixed: ``attempt`` numbers every claim of the task's whole life and is never
reset or used twice, because output, artifacts and fences hang on it; ``attempts_used`` counts,
within a round, only those outcomes that should count against the limit.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum

from longshore.core.backoff import RetryPolicy
from longshore.core.budgets import NO_BUDGET, Allowance, Budget, Scope
from longshore.core.events.types import Usage
from longshore.core.failures import Failure
from longshore.core.lease import Lease
from longshore.core.numbers import NO_NUMBERS, NumberSet
from longshore.core.states import JobState, Priority, TaskState
from longshore.core.values import Document
from longshore.core.valuing import row, value


@value
class TaskSpec:
    """A task as it was submitted."""

    id: str  # global: {job_id}_{key}
    tenant: str
    app: str
    job_id: str
    key: str  # the task's name inside its job
    number: int  # its place in the job, from 0
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
    """Somebody asked for the end of a task or job that could not be ended at once."""

    by: str
    reason: str | None
    at: datetime


@value
class Parked:
    """Why a task rests: a budget is used up."""

    scope: Scope  # whose
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
    fence: int = 0  # the highest ever issued
    lease: Lease | None = None
    awaits: NumberSet = NO_NUMBERS  # numbers of the parents that have not completed
    due_at: datetime | None = None  # pending: not before; parked: until then, if not for ever
    rung_at: datetime | None = None  # pending: when the doorbell was last rung
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
    usage: Usage = field(default_factory=Usage)
    parked: Parked | None = None
    allowance: Allowance | None = None  # what operators have added to its budget
    last_sequence: int = 0
    last_event_at: datetime | None = None

    @property
    def id(self) -> str:
        """The task's global id."""
        return self.spec.id


class IntentKind(StrEnum):
    """What is being done to many tasks of a job."""

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
    body_hash: str  # of what the client sent: the same request id with another body is refused
    created_at: datetime
    name: str | None = None
    budget: Budget = NO_BUDGET  # of all its tasks together


@row
class JobRow:
    """A job as it is now. Its state is not stored: it is what the four sets add up to."""

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
    blocked: NumberSet = NO_NUMBERS  # behind a failed or cancelled task
    grown: NumberSet = NO_NUMBERS  # got dependents later, which their specs do not name
    failure_told_in: int = 0  # the last round in which Job Failure Detected was told
    end_told_in: int = 0  # the last round in which Job Completed or Job Cancelled was told
    intents: tuple[Intent, ...] = ()
    cancel: CancelRequest | None = None
    allowance: Allowance | None = None  # what operators have added to its budget
    usage: Usage = field(default_factory=Usage)  # of the tasks that have ended
    finished_at: datetime | None = None
    last_sequence: int = 0
    last_event_at: datetime | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.spec.id

    @property
    def ended(self) -> NumberSet:
        """The tasks that are over, whichever way."""
        return self.completed | self.failed | self.cancelled

    @property
    def state(self) -> JobState:
        """Running while anything can still run by itself, or is still to be cancelled."""
        over = self.ended if self.cancel else self.ended | self.blocked
        if len(over) < self.total:
            return JobState.RUNNING
        if self.failed and not (self.cancel and self.cancelled):
            return JobState.FAILED
        return JobState.CANCELLED if self.cancelled else JobState.COMPLETED

    @property
    def untold(self) -> bool:
        """Whether it is over, and this round's Job Completed or Job Cancelled is still to come."""
        if self.end_told_in >= self.round:
            return False
        return self.state in (JobState.COMPLETED, JobState.CANCELLED)
