"""The ledger: the rows of tasks and jobs, changed by compare-and-swap only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from longshore.core.pages import Page
from longshore.core.tasks.changes import Change, Effect
from longshore.core.tasks.error_categories import ErrorCategory
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState

AnyChange = Change[TaskRow] | Change[JobRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedTask:
    """A task that is processing, as an index knows it: a hint before a consistent read."""

    task_id: str
    worker_id: str
    fence: int
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTask:
    """A task that failed for good, as an index knows it."""

    task_id: str
    queue: str
    category: ErrorCategory | None  # None: it is not known
    failed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedTask:
    """A task that rests because a budget is used up, as an index knows it."""

    task_id: str
    due_at: datetime | None  # when it goes on by itself


class Ledger(Protocol):
    """The store of rows. It knows nothing of rules: it reads, and it commits decisions.

    Reads of single rows are consistent: they see every commit that was answered before the read
    began, by any process. Listings may lag and are only hints.
    """

    @property
    def epoch(self) -> int:
        """Grows whenever commits that were not ``promised`` may have been lost."""
        ...

    @property
    def atomic(self) -> bool:
        """Whether ``commit`` takes several changes in one step."""
        ...

    async def get_task(self, task_id: str) -> TaskRow | None:
        """The task's row, or None."""
        ...

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        """The rows that exist, in the order asked for; those that do not are left out."""
        ...

    async def get_job(self, job_id: str) -> JobRow | None:
        """The job's row, or None."""
        ...

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        """Write every change's row together with its events: all of it or nothing.

        Returns the effects that are still to be carried out by the caller; a ledger that can ring
        within its own commit does so and leaves them out, and nudges are always its own. A change
        whose ``change_id`` is the row's already has been committed before (its answer was lost):
        that is success, nothing is written again, and the caller's effects are returned once more.
        What is ``promised`` is on disk when this returns; nothing of a change is visible to anybody
        before it is committed.

        Raises:
            VersionConflict: a row is not at its ``expected_version``; nothing was written.
            OutcomeUnknown: it may or may not have happened; commit the same changes again.
            BackendUnavailable: it did not happen; worth another try.
            UsageError: several changes, and the ledger is not ``atomic``; two changes of one row.
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
        """Tasks of a tenant: of one job by number, else the newest first.

        Raises:
            UsageError: the cursor was not made by this listing.
        """
        ...

    async def list_jobs(
        self,
        tenant: str,
        *,
        state: JobState | None = None,
        name: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[JobRow]:
        """Jobs of a tenant, the newest first; only those to which everything applies that is asked.

        A ``name`` is the whole name, letter by letter. A job created at ``created_from`` is listed,
        one created at ``created_before`` is not, so that two spans that meet share no job. How long
        a page takes depends on its own size, not on how many jobs are passed over.

        Raises:
            UsageError: the cursor was not made by this listing.
        """
        ...

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        """The state of every task of a job, by key."""
        ...

    async def find_ids(self, tenant: str, prefix: str, *, limit: int = 10) -> list[str]:
        """Ids of a tenant's jobs and tasks that begin with ``prefix``, in order."""
        ...

    async def unqueued_tasks(
        self, *, due_by: datetime, enqueued_before: datetime, limit: int
    ) -> list[str]:
        """Ids of pending tasks due at or before ``due_by`` and last rung before ``rung_before``.

        A ledger that knows the task's message is still on its queue leaves the task out. Not every
        ledger can know, so the pauses between two rings double: a task is also left out if, by
        ``due_by``, its last ring is less long ago than it had been due when it was rung.
        """
        ...

    async def leased_tasks(
        self, *, limit: int, expired_by: datetime | None = None
    ) -> list[LeasedTask]:
        """Tasks that are processing, the earliest end of lease first; with ``expired_by`` only
        those whose lease ends at or before it."""
        ...

    async def parked_tasks(self, *, limit: int, due_by: datetime | None = None) -> list[ParkedTask]:
        """Tasks that are parked, those first that go on soonest by themselves, and last those that
        never do; with ``due_by`` only those that are to go on at or before it."""
        ...

    async def failed_tasks(self, tenant: str, *, limit: int) -> list[FailedTask]:
        """A tenant's tasks that have failed and have no other round, the last to fail first.

        How long this takes depends on ``limit``, not on how many there are.
        """
        ...

    async def failed_tenants(self, *, limit: int, after: str = "") -> list[str]:
        """Tenants that have such tasks: those after ``after``, in order.

        How long this takes depends on how many tenants there are, not on how many tasks.
        """
        ...

    async def open_intents(self, *, limit: int, after: str = "") -> list[str]:
        """Ids of jobs with an intent that is not carried out: those after ``after``, in order."""
        ...

    async def unrecorded_ends(
        self, *, ended_by: datetime, limit: int, after: str = ""
    ) -> list[str]:
        """Ids of tasks that ended at or before ``ended_by`` and of whose end their job, which is
        running, does not know; by job and then by id, those after the task ``after``."""
        ...

    async def unnotified_dependents(self, *, limit: int, after: str = "") -> list[str]:
        """Ids of waiting tasks that await a task which their job, which is running, knows to have
        completed; by job and then by id, those after the task ``after``."""
        ...

    async def unreported_ends(self, *, limit: int, after: str = "") -> list[str]:
        """Ids of jobs that are ``untold``: those after ``after``, in order."""
        ...

    async def wait_for_wake(self, worker_id: str) -> None:
        """Return when some task held by this worker may have been changed by somebody else.

        What happened since the last call returned counts, so nothing is missed between two calls.
        """
        ...
