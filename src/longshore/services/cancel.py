"""Cancels a job with all its open tasks, or one task.

The job's row is changed first, or in the same commit as its tasks, so that any process that finds
an open task afterwards can finish the cancellation. A running task ends when its worker has stopped
it; an outcome that is committed before stays.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from longshore.core.ids import task_id_of
from longshore.core.jobs import job as jobs
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NumberSet
from longshore.core.maximums import REASON_LIMIT_CHARACTERS, comment_problem
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal, RefusalReason
from longshore.core.tasks.commands import RequestCancel
from longshore.core.tasks.rows import CancelRequest, Intent, IntentKind, JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import CommandRefused, NotFound, UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.dispatcher import Dispatcher
from longshore.services.spill import DocumentStore
from longshore.services.transitions import Transitions, refusal_error

logger = logging.getLogger(__name__)

# A large running job changes faster than it can be read and written in one step; after so many
# conflicts its tasks are cancelled one by one.
_ATOMIC_TRIES = 3


class Canceller:
    """Cancels jobs and tasks."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        documents: DocumentStore,
        dispatcher: Dispatcher,
        finishers: Mapping[IntentKind, Callable[[JobRow, Intent], Awaitable[bool]]],
    ) -> None:
        self._finishers = finishers
        self._ledger = backend.ledger
        self._clock = backend.clock
        self._transitions = transitions
        self._documents = documents
        self._dispatcher = dispatcher

    async def cancel_job(
        self, job_id: str, *, by: str, reason: str | None = None, tenant: str | None = None
    ) -> None:
        """Cancel a job; when this returns, no task of it starts any more.

        A job that is already being cancelled is left as it is.

        Args:
            tenant: The tenant that the job must belong to; None: any tenant.

        Raises:
            NotFound: there is no such job, or it is another tenant's.
            CommandRefused: it has ended.
            UsageError: the reason is too long or not valid text.
        """
        reason = _checked_reason(reason)
        if tenant is not None and (await self._job(job_id)).spec.tenant != tenant:
            raise NotFound("job", job_id)
        change_id = self._transitions.new_id()
        command = jobs.CancelJob(by=by, reason=reason)
        asked: list[CancelRequest | None] = []  # what the row says if a try of ours was committed
        begun, tries = None, 0
        while begun is None:
            at_once = self._ledger.atomic and tries < _ATOMIC_TRIES
            begun = await self._request_cancel(job_id, command, change_id, asked, atomic=at_once)
            tries += 1
        await self._finish_intents(begun)
        await self._dispatcher.settle(await self._open_tasks(begun))

    async def cancel_task(
        self, tenant: str, task_id: str, *, by: str, reason: str | None = None
    ) -> TaskRow:
        """Cancel one task and return its row; its dependents wait until it is resumed.

        A task that was not running is cancelled at once. A running task is still processing: its
        worker is asked to stop it, and it is cancelled when the worker confirms or the lease
        expires; an outcome that is committed before stays. A task that is already being cancelled
        is left as it is.

        Raises:
            NotFound: the tenant has no such task.
            CommandRefused: it has ended.
            UsageError: the reason is too long or not valid text.
        """
        reason = _checked_reason(reason)
        row = await self._task(tenant, task_id)
        # Only in the current round: a resume that comes meanwhile is newer.
        command = RequestCancel(by=by, reason=reason, round=row.round)
        try:
            row = await self._transitions.apply_to_task(task_id, command, row=row)
        except CommandRefused:
            meant, row = row.round, await self._task(tenant, task_id)
            if not _in_progress(row, command) or row.round != meant:
                raise
        else:
            logger.info("task.cancelled", extra={"task_id": task_id, "by": by})
        await self._dispatcher.settle([task_id])
        return row

    async def _task(self, tenant: str, task_id: str) -> TaskRow:
        row = await self._transitions.retry_unavailable(lambda: self._ledger.get_task(task_id))
        if row is None or row.spec.tenant != tenant:
            raise NotFound("task", task_id)
        return row

    async def _request_cancel(
        self,
        job_id: str,
        command: jobs.CancelJob,
        change_id: str,
        requests: list[CancelRequest | None],
        *,
        atomic: bool,
    ) -> JobRow | None:
        """Returns the job's row with the cancellation; None if it has changed meanwhile."""
        job = await self._job(job_id)
        if not atomic:
            command = replace(command, intent=_intent(job, change_id, command.by))
        change = jobs.apply(job, command, now=self._clock.now(), change_id=change_id)
        if isinstance(change, Refusal):
            # It was ours, if its answer was lost and the row has changed again since.
            if change.reason is RefusalReason.NOTHING_TO_DO or job.cancel in requests:
                return job
            raise refusal_error(job_id, change)
        requests.append(change.row.cancel)
        others = await self._task_changes(job, command, change_id) if atomic else ()
        try:
            await self._transitions.commit(await self._documents.spill(change), *others)
        except VersionConflict:
            return None
        logger.info("job.cancelled", extra={"job_id": job_id, "by": command.by})
        return change.row

    async def _job(self, job_id: str) -> JobRow:
        job = await self._transitions.retry_unavailable(lambda: self._ledger.get_job(job_id))
        if job is None:
            raise NotFound("job", job_id)
        return job

    async def _open_tasks(self, job: JobRow, numbers: NumberSet | None = None) -> list[str]:
        graph = Graph.from_json(await self._documents.load(job.graph))
        open_ = NumberSet.below(job.total) - job.ended if numbers is None else numbers
        return [task_id_of(job.id, graph.keys[number]) for number in open_]

    async def _task_changes(
        self, job: JobRow, command: jobs.CancelJob, change_id: str
    ) -> Sequence[tasks.TaskChange]:
        ids = await self._open_tasks(job)
        rows = await self._transitions.retry_unavailable(lambda: self._ledger.get_tasks(ids))
        request = RequestCancel(by=command.by, reason=command.reason, round=job.round)
        now = self._clock.now()
        decisions = [tasks.apply(row, request, now=now, change_id=change_id) for row in rows]
        return [item for item in decisions if not isinstance(item, Refusal)]

    async def _finish_intents(self, job: JobRow) -> None:
        for intent in job.intents:
            if (finish := self._finishers.get(intent.kind)) is not None:
                # Tasks are still being created or resumed, or that process died. Only existing
                # tasks can be cancelled, and one resumed after this would stay open for ever.
                await finish(job, intent)
            if intent.kind is IntentKind.CANCEL:
                await self.finish_intent(job, intent)

    async def finish_intent(self, job: JobRow, intent: Intent) -> bool:
        """Finish a cancellation. Returns False if another process closed the intent first."""
        reason = job.cancel.reason if job.cancel else None
        command = RequestCancel(by=intent.by, reason=reason, round=intent.round)
        for task_id in await self._open_tasks(job, intent.numbers):
            try:
                await self._transitions.apply_to_task(task_id, command)
            except CommandRefused:
                logger.debug("task.already_ended", extra={"task_id": task_id})
        return await self._transitions.close_intent(job.id, intent) is not None


def _checked_reason(reason: str | None) -> str | None:
    if reason is None or not reason.strip():
        return None
    if (problem := comment_problem(reason, limit=REASON_LIMIT_CHARACTERS)) is not None:
        message = f"the reason {problem}"
        raise UsageError(message)
    return reason


def _in_progress(row: TaskRow, command: RequestCancel) -> bool:
    """Whether the task is being cancelled, or was by this command, whose answer was lost."""
    if row.cancel is None:
        return False
    ours = (row.cancel.by, row.cancel.reason) == (command.by, command.reason)
    return ours or row.state is not TaskState.CANCELLED


def _intent(job: JobRow, change_id: str, by: str) -> Intent:
    numbers = NumberSet.below(job.total) - job.ended
    return Intent(id=change_id, kind=IntentKind.CANCEL, numbers=numbers, round=job.round, by=by)
