"""Read, decide, commit; on a conflict read again. The only way in which services change a row.

Each call uses one change id for all its tries, so that a commit whose answer was lost is recognised
as the caller's own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from longshore.core.jobs import job as jobs
from longshore.core.queues import message_body
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Effect, Enqueue, Refusal, RefusalReason
from longshore.core.tasks.commands import Command
from longshore.core.tasks.rows import Intent, JobRow, TaskRow
from longshore.errors import (
    BackendUnavailable,
    CommandRefused,
    LeaseHeld,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    VersionConflict,
)
from longshore.ports.backend import Backend
from longshore.ports.ledger import AnyChange, JobCreation
from longshore.ports.task_queue import OutgoingMessage
from longshore.services.reads import get_job_of, get_task_of
from longshore.services.resilience import retry_unavailable
from longshore.services.spill import DocumentStore

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

IntentFinisher = Callable[[JobRow, Intent], Awaitable[bool]]
"""Carries out the rest of an intent. Returns False if another process was faster."""


def refusal_error(row_id: str, refusal: Refusal) -> CommandRefused | NotFound:
    """Returns a refusal as the error that callers catch."""
    if refusal.reason is RefusalReason.UNKNOWN:
        return NotFound("task", row_id)
    kinds = {RefusalReason.LEASE_HELD: LeaseHeld, RefusalReason.LEASE_LOST: LeaseLost}
    return kinds.get(refusal.reason, CommandRefused)(row_id, refusal.detail, refusal.until)


@dataclass(kw_only=True)
class Transitions:
    """Applies commands to rows."""

    backend: Backend
    documents: DocumentStore
    new_id: Callable[[], str]
    stale_refusals: int = 0  # commands under a fence that was no longer current

    async def read(self, task_id: str) -> TaskRow | None:
        """Returns a task's row as it is now."""
        return await self.retry_unavailable(lambda: self.backend.ledger.get_task(task_id))

    async def get_task(self, tenant: str, task_id: str) -> TaskRow:
        """Returns the row of a tenant's task as it is now.

        Raises:
            NotFound: there is no such task, or it is another tenant's.
        """
        return await self.retry_unavailable(
            lambda: get_task_of(self.backend.ledger, tenant, task_id)
        )

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        """Returns the rows of the tasks that exist, as they are now."""
        return await self.retry_unavailable(lambda: self.backend.ledger.get_tasks(task_ids))

    async def get_job(self, tenant: str | None, job_id: str) -> JobRow:
        """Returns the row of a tenant's job as it is now; ``tenant`` None: of any tenant.

        Raises:
            NotFound: there is no such job, or it is another tenant's.
        """
        return await self.retry_unavailable(lambda: get_job_of(self.backend.ledger, tenant, job_id))

    async def apply_to_task(
        self, task_id: str, command: Command, *, row: TaskRow | None = None
    ) -> TaskRow:
        """Apply a command to a task and return its new row.

        Args:
            row: The row as the caller last read it, which saves the first read. If the row has
                changed since, the commit conflicts.

        Raises:
            NotFound: there is no such task.
            CommandRefused: the row does not allow it; nothing was changed.
            BackendUnavailable: the ledger could not be reached, after several tries.
        """
        applied = await self.try_command(task_id, command, row=row)
        if isinstance(applied, Refusal):
            raise refusal_error(task_id, applied)
        return applied

    async def try_command(
        self,
        task_id: str,
        command: Command,
        *,
        row: TaskRow | None = None,
        change_id: str | None = None,
    ) -> TaskRow | Refusal:
        """Apply a command to a task like ``apply_to_task``, and return its new row or the refusal.

        Args:
            change_id: The id of an earlier call, which may have been committed.

        Raises:
            BackendUnavailable: the ledger could not be reached, after several tries.
        """
        change_id, cached = change_id or self.new_id(), row
        while True:
            row = cached or await self.read(task_id)
            if row is None:
                return Refusal(RefusalReason.UNKNOWN, "there is no such task")
            if row.change_id == change_id:
                return row
            decision = tasks.apply(row, command, now=self.backend.clock.now(), change_id=change_id)
            if not isinstance(decision, Refusal):
                if await self._try_commit(decision):
                    return decision.row
            elif row.lease is not None and row.lease.claim_id == change_id:
                # Our claim was committed, its answer lost, and the row changed again since.
                return row
            elif cached is None:
                self.stale_refusals += decision.reason is RefusalReason.LEASE_LOST
                return decision
            cached = None  # it may be stale: a refusal counts only if the row was just read

    async def _try_commit(self, change: AnyChange) -> bool:
        try:
            await self.commit(change)
        except VersionConflict:
            return False
        return True

    async def apply_to_job(self, job_id: str, command: jobs.JobCommand) -> JobRow:
        """Apply a command to a job and return its new row.

        Raises:
            NotFound: there is no such job.
            CommandRefused: the row does not allow it; nothing was changed.
        """
        change_id = self.new_id()
        while True:
            row = await self.get_job(None, job_id)
            decision = jobs.apply(row, command, now=self.backend.clock.now(), change_id=change_id)
            if isinstance(decision, Refusal):
                raise refusal_error(job_id, decision)
            if await self.try_commit_job(decision):
                return decision.row

    async def try_commit_job(self, change: jobs.JobChange) -> bool:
        """Commit a change of a job. Returns False on a conflict; nothing was written then."""
        return await self._try_commit(await self.documents.spill(change))

    async def close_intent(self, job_id: str, intent: Intent) -> JobRow | None:
        """Remove a finished intent from the job's row; None if another process has removed it."""
        try:
            return await self.apply_to_job(job_id, jobs.IntentDone(intent_id=intent.id))
        except CommandRefused:
            return None

    async def commit(self, *changes: AnyChange) -> None:
        """Commit changes and carry out the effects that the ledger did not.

        Raises:
            VersionConflict: a row has changed meanwhile; nothing was written.
            BackendUnavailable: after several tries.
        """
        unconfirmed = False

        async def commit() -> tuple[Effect, ...]:
            nonlocal unconfirmed
            try:
                return await self.backend.ledger.commit(*changes)
            except OutcomeUnknown:
                unconfirmed = True
                raise
            except VersionConflict as conflict:
                conflict.maybe_committed |= unconfirmed
                raise

        await self.enqueue(await retry_unavailable(self.backend.clock, commit))

    async def create_jobs(self, creations: Sequence[JobCreation]) -> list[VersionConflict | None]:
        """Create jobs and carry out the effects that the ledger did not.

        Returns for each job None, or the conflict with another job that has its id.

        Raises:
            BackendUnavailable: after several tries.
        """
        answers = await retry_unavailable(
            self.backend.clock, lambda: self.backend.ledger.create_jobs(creations)
        )
        for answer in answers:
            if isinstance(answer, tuple):
                await self.enqueue(answer)
        return [None if isinstance(answer, tuple) else answer for answer in answers]

    async def enqueue(self, effects: Sequence[Effect]) -> bool:
        """Send the messages of these effects. Returns whether all were sent."""
        messages = [
            OutgoingMessage(
                queue=effect.queue,
                body=message_body(effect.task_id),
                priority=effect.priority,
                visible_at=effect.at,
                merge_key=effect.task_id,
            )
            for effect in effects
            if isinstance(effect, Enqueue)
        ]
        if not messages or self.backend.queue is None:
            return True
        try:
            unsent = await self.backend.queue.send(messages)
        except BackendUnavailable as error:
            unsent = messages
            logger.warning("enqueue.failed", extra={"error": str(error)})
        if unsent:
            # The row says that the task is due, so the sweeper enqueues it.
            logger.warning(
                "enqueue.deferred",
                extra={"tasks": [message.merge_key for message in unsent]},
            )
        return not unsent

    async def retry_unavailable(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Repeat a call that is safe to repeat while the backend is unavailable."""
        return await retry_unavailable(self.backend.clock, call)
