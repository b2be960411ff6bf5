"""Cancelling: a job ends now, with everything of it that runs or would run; or one task does.

The job's row says so first, or in the same commit as its tasks: whoever finds a task still open
afterwards knows what to do with it. A task that runs ends when its holder has killed it, and an
outcome that was faster stands.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from longshore.core import job as jobs
from longshore.core import task as tasks
from longshore.core.changes import Reason, Refusal
from longshore.core.commands import RequestCancel
from longshore.core.graph import Graph
from longshore.core.ids import task_id_of
from longshore.core.limits import REASON_LIMIT_CHARACTERS
from longshore.core.numbers import NumberSet
from longshore.core.remarks import problem_of_remark
from longshore.core.rows import CancelRequest, Intent, IntentKind, JobRow, TaskRow
from longshore.core.states import TaskState
from longshore.errors import CommandRefused, NotFound, UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.dispatcher import Dispatcher
from longshore.services.documents import Documents
from longshore.services.transitions import Transitions, refused

logger = logging.getLogger(__name__)

# A large job at full speed changes faster than all of it can be read and written in one step; then
# its tasks are cancelled one by one.
_TRIES_AT_ONCE = 3


class Cancelling:
    """Ends jobs and tasks on request."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        documents: Documents,
        dispatcher: Dispatcher,
        others: Mapping[IntentKind, Callable[[JobRow, Intent], Awaitable[bool]]],
    ) -> None:
        self._others = others
        self._ledger = backend.ledger
        self._clock = backend.clock
        self._transitions = transitions
        self._documents = documents
        self._dispatcher = dispatcher

    async def cancel(
        self, job_id: str, *, by: str, reason: str | None = None, tenant: str | None = None
    ) -> None:
        """Cancel a job; once this returns, nothing new of it begins.

        One that is being cancelled already is left to it.

        Args:
            tenant: Whose job it must be; None: anybody's.

        Raises:
            NotFound: there is no such job, or it is another tenant's.
            CommandRefused: it has ended.
            UsageError: the reason is too long, or no text.
        """
        reason = _said(reason)
        if tenant is not None and (await self._job(job_id)).spec.tenant != tenant:
            raise NotFound("job", job_id)
        change_id = self._transitions.new_id()
        command = jobs.CancelJob(by=by, reason=reason)
        asked: list[CancelRequest | None] = []  # what the row says if a try of ours was committed
        begun, tries = None, 0
        while begun is None:
            at_once = self._ledger.atomic and tries < _TRIES_AT_ONCE
            begun = await self._begin(job_id, command, change_id, asked, at_once=at_once)
            tries += 1
        await self._finish_all(begun)
        await self._dispatcher.settle(await self._open_tasks(begun))

    async def cancel_task(
        self, tenant: str, task_id: str, *, by: str, reason: str | None = None
    ) -> TaskRow:
        """Cancel one task; what is behind it waits until somebody resumes it.

        The row that is returned says how far this has come. It is cancelled, if nobody ran it.
        Else it is still processing and its holder has been asked to end it: it is cancelled when
        that is confirmed or the lease is over, and an outcome that is faster stands. One that is
        being cancelled already is left to it.

        Raises:
            NotFound: the tenant has no such task.
            CommandRefused: it has ended: its outcome was faster, and stands.
            UsageError: the reason is too long, or no text.
        """
        reason = _said(reason)
        row = await self._task(tenant, task_id)
        # Of the round that was meant: one that is resumed meanwhile is somebody's newer wish.
        wish = RequestCancel(by=by, reason=reason, round=row.round)
        try:
            row = await self._transitions.task(task_id, wish, row=row)
        except CommandRefused:
            meant, row = row.round, await self._task(tenant, task_id)
            if not _under_way(row, wish) or row.round != meant:
                raise
        else:
            logger.info("task.cancelled", extra={"task_id": task_id, "by": by})
        await self._dispatcher.settle([task_id])
        return row

    async def _task(self, tenant: str, task_id: str) -> TaskRow:
        row = await self._transitions.persistently(lambda: self._ledger.task(task_id))
        if row is None or row.spec.tenant != tenant:
            raise NotFound("task", task_id)
        return row

    async def _begin(
        self,
        job_id: str,
        command: jobs.CancelJob,
        change_id: str,
        asked: list[CancelRequest | None],
        *,
        at_once: bool,
    ) -> JobRow | None:
        """The job's row when it says that it is being cancelled; None: it changed meanwhile."""
        job = await self._job(job_id)
        if not at_once:
            command = replace(command, intent=_intent(job, change_id, command.by))
        change = jobs.apply(job, command, now=self._clock.now(), change_id=change_id)
        if isinstance(change, Refusal):
            # Ours all the same, if its answer was lost and somebody has gone on from there.
            if change.reason is Reason.NOTHING_TO_DO or job.cancel in asked:
                return job
            raise refused(job_id, change)
        asked.append(change.row.cancel)
        others = await self._of_tasks(job, command, change_id) if at_once else ()
        try:
            await self._transitions.commit(await self._documents.spill(change), *others)
        except VersionConflict:
            return None
        logger.info("job.cancelled", extra={"job_id": job_id, "by": command.by})
        return change.row

    async def _job(self, job_id: str) -> JobRow:
        job = await self._transitions.persistently(lambda: self._ledger.job(job_id))
        if job is None:
            raise NotFound("job", job_id)
        return job

    async def _open_tasks(self, job: JobRow, numbers: NumberSet | None = None) -> list[str]:
        graph = Graph.from_json(await self._documents.load(job.graph))
        wanted = NumberSet.up_to(job.total) - job.ended if numbers is None else numbers
        return [task_id_of(job.id, graph.keys[number]) for number in wanted]

    async def _of_tasks(
        self, job: JobRow, command: jobs.CancelJob, change_id: str
    ) -> Sequence[tasks.TaskChange]:
        ids = await self._open_tasks(job)
        rows = await self._transitions.persistently(lambda: self._ledger.tasks(ids))
        wish = RequestCancel(by=command.by, reason=command.reason, round=job.round)
        now = self._clock.now()
        decisions = [tasks.apply(row, wish, now=now, change_id=change_id) for row in rows]
        return [one for one in decisions if not isinstance(one, Refusal)]

    async def _finish_all(self, job: JobRow) -> None:
        for intent in job.intents:
            if (finish := self._others.get(intent.kind)) is not None:
                # Whoever creates or resumes tasks is still at it, or died: only what is there can
                # be cancelled, and a task that is resumed after this would be open for ever.
                await finish(job, intent)
            if intent.kind is IntentKind.CANCEL:
                await self.finish(job, intent)

    async def finish(self, job: JobRow, intent: Intent) -> bool:
        """Carry out what a cancellation began and did not end; False: somebody was faster."""
        reason = job.cancel.reason if job.cancel else None
        wish = RequestCancel(by=intent.by, reason=reason, round=intent.round)
        for task_id in await self._open_tasks(job, intent.numbers):
            try:
                await self._transitions.task(task_id, wish)
            except CommandRefused:
                logger.debug("task.ended_before", extra={"task_id": task_id})
        return await self._transitions.close(job.id, intent) is not None


def _said(reason: str | None) -> str | None:
    if reason is None or not reason.strip():
        return None
    if (problem := problem_of_remark(reason, limit=REASON_LIMIT_CHARACTERS)) is not None:
        message = f"the reason {problem}"
        raise UsageError(message)
    return reason


def _under_way(row: TaskRow, wish: RequestCancel) -> bool:
    """Whether the task is being cancelled, or has been by this very wish, its answer lost."""
    if row.cancel is None:
        return False
    ours = (row.cancel.by, row.cancel.reason) == (wish.by, wish.reason)
    return ours or row.state is not TaskState.CANCELLED


def _intent(job: JobRow, change_id: str, by: str) -> Intent:
    numbers = NumberSet.up_to(job.total) - job.ended
    return Intent(id=change_id, kind=IntentKind.CANCEL, numbers=numbers, round=job.round, by=by)
