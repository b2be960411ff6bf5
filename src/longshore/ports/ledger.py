"""The ledger: the rows of tasks and jobs, changed by compare-and-swap only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypedDict, Unpack

from longshore.core.documents import Document
from longshore.core.jobs import job as jobs
from longshore.core.jobs.planning import SubmissionPlan
from longshore.core.pages import Page
from longshore.core.records import value
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Change, Effect
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import JobRow, JobSpec, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import VersionConflict

AnyChange = Change[TaskRow] | Change[JobRow]


@value
class JobCreation:
    """A planned job, which is created with all of its tasks."""

    spec: JobSpec
    plan: SubmissionPlan
    graph: Document
    change_id: str

    def changes(self) -> tuple[Change[JobRow], list[Change[TaskRow]]]:
        """The first version of the job and of its tasks, by number."""
        spec, plan, change_id = self.spec, self.plan, self.change_id
        now = spec.created_at
        job = jobs.create(spec, plan.summaries, self.graph, now=now, change_id=change_id)
        return job, [
            tasks.create(task.spec, task.awaits, now=now, change_id=change_id)
            for task in plan.tasks
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTask:
    """A failed task according to an index."""

    task_id: str
    queue: str
    category: ErrorCategory | None  # None: unknown
    failed_at: datetime


class JobConditions(TypedDict, total=False):
    """Conditions of a listing of jobs; one that is missing or None matches every job."""

    state: JobState | None
    name: str | None  # the whole name
    created_from: datetime | None
    created_before: datetime | None


class Ledger(Protocol):
    """The store of rows. It contains no rules: it reads rows and commits decisions.

    Reads of single rows are consistent: they see every commit of any process that was answered
    before the read began. Listings may lag behind and are only hints.
    """

    @property
    def epoch(self) -> int:
        """Grows whenever commits that were not ``durable`` may have been lost."""
        ...

    @property
    def atomic(self) -> bool:
        """Whether ``commit`` accepts several changes in one step."""
        ...

    async def get_task(self, task_id: str) -> TaskRow | None:
        """Returns the task's row, or None."""
        ...

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        """Returns the rows that exist, in the order of ``task_ids``."""
        ...

    async def get_job(self, job_id: str) -> JobRow | None:
        """Returns the job's row, or None."""
        ...

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        """Write the rows and events of all changes, or nothing.

        Returns the effects that the caller must carry out: a ledger that enqueues within its commit
        omits those, and wakes workers itself. If the row already has the ``change_id`` of a change,
        that change was committed before and its answer was lost: the call succeeds, writes nothing,
        and returns the effects again. A ``durable`` change is on disk when this returns; a change
        is not visible before it is committed.

        Raises:
            VersionConflict: a row is not at its ``expected_version``; nothing was written.
            OutcomeUnknown: the commit may or may not have happened; repeat it.
            BackendUnavailable: the commit did not happen; a retry may succeed.
            UsageError: several changes, and the ledger is not ``atomic``; two changes of one row.
        """
        ...

    async def create_jobs(
        self, creations: Sequence[JobCreation]
    ) -> list[tuple[Effect, ...] | VersionConflict]:
        """Create jobs, each with all of its tasks or not at all; durable when this returns.

        Rows, events and effects are those of ``JobCreation.changes``.

        Returns an answer for each job, in order: the effects as ``commit`` returns them, or a
        conflict if another job has the id. The jobs are independent of each other. A job that was
        created by the same change before is created again without effect.

        Raises:
            OutcomeUnknown: each job may or may not have been created; repeat the call.
            BackendUnavailable: no job was created; a retry may succeed.
            UsageError: the ledger is not ``atomic``.
        """
        ...

    async def list_tasks(
        self,
        tenant: str,
        *,
        job_id: str | None = None,
        state: TaskState | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TaskRow]:
        """Returns tasks of a tenant: of one job by number, else the newest first.

        Raises:
            UsageError: the cursor belongs to another listing.
        """
        ...

    async def list_jobs(
        self,
        tenant: str,
        *,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: Unpack[JobConditions],
    ) -> Page[JobRow]:
        """Returns jobs of a tenant that match every condition, the newest first.

        A job created at ``created_from`` is listed, and a job created
        at ``created_before`` is not, so that adjacent ranges share no job. The time for a page
        depends on its size and not on the number of jobs that do not match.

        Raises:
            UsageError: the cursor belongs to another listing.
        """
        ...

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        """Returns the state of every task of a job, by key."""
        ...

    async def find_ids(self, tenant: str, prefix: str, *, limit: int = 10) -> list[str]:
        """Returns ids of a tenant's jobs and tasks that begin with ``prefix``, in order."""
        ...

    async def unqueued_tasks(
        self, *, due_by: datetime, enqueued_before: datetime, limit: int
    ) -> list[str]:
        """Returns ids of pending tasks that are due and may have no message.

        They are due at or before ``due_by`` and were last enqueued before ``enqueued_before``. A
        ledger that knows that the message is still in its queue omits the task. Other ledgers
        double the pause between two messages: a task is also omitted if, at ``due_by``, less time
        has passed since it was last enqueued than it was overdue then.
        """
        ...

    async def leased_tasks(
        self, *, limit: int, expired_by: datetime | None = None
    ) -> list[tuple[str, Lease]]:
        """Returns ids and leases of processing tasks, the earliest end of lease first; with
        ``expired_by`` only those whose lease ends at or before it."""
        ...

    async def parked_tasks(self, *, limit: int) -> list[str]:
        """Returns ids of parked tasks: first by the time at which they resume by themselves, then
        those that do not."""
        ...

    async def failed_tasks(self, tenant: str, *, limit: int) -> list[FailedTask]:
        """Returns failed tasks of a tenant, the most recent failure first.

        The time depends on ``limit`` and not on the number of failed tasks.
        """
        ...

    async def failed_tenants(self, *, limit: int, after: str = "") -> list[str]:
        """Returns tenants with failed tasks that come after ``after``, in order.

        The time depends on the number of tenants and not on the number of tasks.
        """
        ...

    async def open_intents(self, *, limit: int, after: str = "") -> list[str]:
        """Returns ids of jobs with an open intent that come after ``after``, in order."""
        ...

    async def unrecorded_ends(
        self, *, ended_by: datetime, limit: int, after: str = ""
    ) -> list[str]:
        """Returns ids of tasks whose end a running job has not recorded.

        Without a bus, jobs that are over count too: a task that waited for a failed one may be
        cancelled later, and nothing else would record it.

        They ended at or before ``ended_by``; by job and then by id, after the task ``after``.
        """
        ...

    async def unnotified_dependents(self, *, limit: int, after: str = "") -> list[str]:
        """Returns ids of waiting tasks that await a task which their running job has recorded as
        completed; by job and then by id, after the task ``after``."""
        ...

    async def unreported_ends(self, *, limit: int, after: str = "") -> list[str]:
        """Returns ids of jobs with ``end_unreported`` that come after ``after``, in order."""
        ...

    async def wait_for_wake(self, worker_id: str) -> None:
        """Return when another process may have changed a task that this worker holds.

        Changes since the last call returned count, so none is missed between two calls.
        """
        ...
