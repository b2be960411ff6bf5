"""Read, decide, commit; on conflict read again. The only way services change a row.

Each call carries one change id through all its tries, so that a commit whose answer was lost is
recognised as one's own when it is met again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from longshore.core import job as jobs
from longshore.core import task as tasks
from longshore.core.changes import Effect, Reason, Refusal, Ring
from longshore.core.commands import Command
from longshore.core.messages import body_for
from longshore.core.rows import Intent, JobRow, TaskRow
from longshore.errors import (
    BackendUnavailable,
    CommandRefused,
    LeaseHeld,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    VersionConflict,
)
from longshore.ports.clock import Clock
from longshore.ports.ledger import AnyChange, Ledger
from longshore.ports.queue import Outgoing, TaskQueue
from longshore.services.documents import Documents

logger = logging.getLogger(__name__)

_TRIES = 6
_PAUSE = timedelta(milliseconds=50)

ResultT = TypeVar("ResultT")


def refused(row_id: str, refusal: Refusal) -> CommandRefused:
    """A refusal as the error that callers catch."""
    kinds = {Reason.LEASE_HELD: LeaseHeld, Reason.LEASE_LOST: LeaseLost}
    return kinds.get(refusal.reason, CommandRefused)(row_id, refusal.detail, refusal.until)


class Transitions:
    """Carries commands to rows."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        queue: TaskQueue,
        documents: Documents,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._documents = documents
        self._clock = clock
        self.new_id = new_id
        self.refused_stale = 0  # reports that came under a fence that was no longer current

    async def read(self, task_id: str) -> TaskRow | None:
        """A task's row as it is now."""
        return await self.persistently(lambda: self._ledger.task(task_id))

    async def task(self, task_id: str, command: Command, *, row: TaskRow | None = None) -> TaskRow:
        """Apply a command to a task and return its new row.

        ``row`` saves the first read for a caller that knows the row as it last was: if it has
        changed since, the commit notices.

        Raises:
            NotFound: there is no such task.
            CommandRefused: the row does not allow it; nothing was changed.
            BackendUnavailable: the ledger could not be reached, after several tries.
        """
        change_id = self.new_id()
        if row is not None:
            decision = tasks.apply(row, command, now=self._clock.now(), change_id=change_id)
            # A refusal may be as old as the row: only a fresh one counts.
            if not isinstance(decision, Refusal) and await self._committed(decision):
                return decision.row
        while True:
            row = await self.read(task_id)
            if row is None:
                raise NotFound("task", task_id)
            decision = tasks.apply(row, command, now=self._clock.now(), change_id=change_id)
            if isinstance(decision, Refusal):
                if row.lease is not None and row.lease.claim_id == change_id:
                    # Our claim was committed, its answer lost, and the row changed again since.
                    return row
                self.refused_stale += decision.reason is Reason.LEASE_LOST
                raise refused(task_id, decision)
            if await self._committed(decision):
                return decision.row

    async def _committed(self, change: AnyChange) -> bool:
        try:
            await self.commit(change)
        except VersionConflict:
            return False
        return True

    async def job(
        self, job_id: str, decide: Callable[[JobRow, datetime, str], Awaitable[jobs.JobDecision]]
    ) -> JobRow:
        """Decide from a job's row and commit; ``decide`` is asked again on a conflict.

        Raises:
            NotFound: there is no such job.
            CommandRefused: the row does not allow it; nothing was changed.
        """
        change_id = self.new_id()
        while True:
            row = await self.persistently(lambda: self._ledger.job(job_id))
            if row is None:
                raise NotFound("job", job_id)
            decision = await decide(row, self._clock.now(), change_id)
            if isinstance(decision, Refusal):
                raise refused(job_id, decision)
            try:
                await self.commit(await self._documents.spill(decision))
            except VersionConflict:
                continue
            return decision.row

    async def close(self, job_id: str, intent: Intent) -> JobRow | None:
        """Say in the job's row that an intent is carried out; None: somebody else has said so."""

        async def decide(row: JobRow, now: datetime, change_id: str) -> jobs.JobDecision:
            done = jobs.IntentDone(intent_id=intent.id)
            return jobs.apply(row, done, now=now, change_id=change_id)

        try:
            return await self.job(job_id, decide)
        except CommandRefused:
            return None

    async def commit(self, *changes: AnyChange) -> None:
        """Commit and carry out what is left of the effects.

        Raises:
            VersionConflict: somebody was faster; nothing was written.
            BackendUnavailable: after several tries.
        """
        unheard = False

        async def commit() -> tuple[Effect, ...]:
            nonlocal unheard
            try:
                return await self._ledger.commit(*changes)
            except OutcomeUnknown:
                unheard = True
                raise
            except VersionConflict as conflict:
                conflict.perhaps_ours |= unheard
                raise

        await self._ring(await self.persistently(commit))

    async def _ring(self, effects: Sequence[Effect]) -> None:
        rings = [
            Outgoing(
                queue=effect.queue,
                body=body_for(effect.task_id),
                priority=effect.priority,
                visible_at=effect.at,
                key=effect.task_id,
            )
            for effect in effects
            if isinstance(effect, Ring)
        ]
        if not rings:
            return
        try:
            unsent = await self._queue.send(rings)
        except BackendUnavailable as error:
            unsent = rings
            logger.warning("ring.failed", extra={"error": str(error)})
        if unsent:
            # The row says that the task is due: the sweeper rings for it.
            logger.warning("ring.left_to_sweeper", extra={"tasks": [one.key for one in unsent]})

    async def persistently(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Repeat a call that is safe to repeat while the backend is out of reach."""
        pause = _PAUSE
        for _ in range(_TRIES - 1):
            try:
                return await call()
            except BackendUnavailable as error:
                logger.warning("backend.unavailable", extra={"error": str(error)})
                await self._clock.sleep(pause)
                pause *= 2
        return await call()
