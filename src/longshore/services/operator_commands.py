"""What operators do with jobs, tasks and queues: cancel, resume, review, pause.

Cancel and resume change the job's row first, or in the same commit as its tasks. Where a ledger
commits one row at a time, the job's row carries an intent, and the process that finds it open (this
one, or the sweeper after a crash) changes the tasks that are left. A request that is repeated
because its answer was lost succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from longshore.core.events.event import Event
from longshore.core.events.types import (
    JobCancelled,
    TaskApproved,
    TaskProcessingStarted,
    TaskRevisionRequested,
    Usage,
)
from longshore.core.ids import NAME_PATTERN, is_name, split_task_id, task_id_of
from longshore.core.jobs import job as jobs
from longshore.core.jobs.numbers import NumberSet
from longshore.core.maximums import REASON_LIMIT_CHARACTERS, comment_problem
from longshore.core.queues import QueuePause
from longshore.core.tasks import commands as c
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal, RefusalReason
from longshore.core.tasks.commands import Approve, RequestCancel, RequestRevision
from longshore.core.tasks.rows import Intent, JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import CommandRefused, OutcomeUnknown, UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.dispatcher import Dispatcher
from longshore.services.reads import iter_history
from longshore.services.spill import DocumentStore
from longshore.services.transitions import IntentFinisher, Transitions, refusal_error

logger = logging.getLogger(__name__)

# A large running job changes faster than it can be read and written in one step; after so many
# conflicts its tasks are cancelled one by one.
_ATOMIC_TRIES = 3
_NO_SUCH_TASK = "there is no such task"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeResult:
    """The result of a resume, by task id."""

    round: int  # the job's
    tasks: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)  # why


@dataclass(frozen=True, kw_only=True)
class OperatorCommands:
    """Carries out what operators and reviewers decide.

    Cancel: a running task ends when its worker has stopped it; an outcome that is committed before
    stays. Resume: failed and cancelled tasks run in another round; completed tasks do not run
    again. The job's row decides: if two callers resume one task at once, one changes the row and
    the other finds nothing left to resume.

    Review: a decision is about the result that the reviewer saw. An attempt's result never changes,
    so a caller that passes the attempt's number cannot decide about a newer result by mistake. A
    request that is repeated because its answer was lost succeeds: the history shows the decision.

    Pause: a pause affects all tenants (see ``ports.configuration``), so interfaces allow it only to
    operators of the installation. Workers notice it by themselves.
    """

    backend: Backend
    transitions: Transitions
    documents: DocumentStore
    dispatcher: Dispatcher
    finish_intent: IntentFinisher

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
        command = jobs.CancelJob(by=by, reason=_checked_reason(reason))
        change_id = self.transitions.new_id()
        tried: list[JobRow] = []  # the rows of tries whose answers were lost
        row, tries = None, 0
        while row is None:
            job = await self.transitions.get_job(tenant, job_id)
            later = not self.backend.ledger.atomic or tries >= _ATOMIC_TRIES
            command = replace(command, later=later)
            row = await self._request_cancel(job, command, change_id, tried)
            tries += 1
        for intent in row.intents:
            # Tasks are still being created or resumed, or that process died. Only existing tasks
            # can be cancelled, and one resumed after this would stay open for ever.
            await self.finish_intent(row, intent)
        await self.dispatcher.settle(await self._open_tasks(row))

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
        row = await self.transitions.get_task(tenant, task_id)
        # Only in the current round: a resume that comes meanwhile is newer.
        command = RequestCancel(by=by, reason=reason, round=row.round)
        try:
            row = await self.transitions.apply_to_task(task_id, command, row=row)
        except CommandRefused:
            row = await self.transitions.get_task(tenant, task_id)
            if not _in_progress(row, command) or row.round != command.round:
                raise
        else:
            logger.info("task.cancelled", extra={"task_id": task_id, "by": by})
        await self.dispatcher.settle([task_id])
        return row

    async def _request_cancel(
        self,
        job: JobRow,
        command: jobs.CancelJob,
        change_id: str,
        tried: list[JobRow],
    ) -> JobRow | None:
        """Returns the job's row with the cancellation; None if it has changed meanwhile."""
        if tried and job.round > tried[0].round and await self._has_cancelled(tried[0], job):
            return job  # which was resumed since
        change = jobs.apply(job, command, now=self.backend.clock.now(), change_id=change_id)
        if isinstance(change, Refusal):
            # It was ours, if its answer was lost and the row has changed again since.
            requests = [row.cancel for row in tried]
            if change.reason is RefusalReason.NOTHING_TO_DO or job.cancel in requests:
                return job
            raise refusal_error(job.id, change)
        tried.append(change.row)
        others = () if command.later else await self._task_changes(job, command, change_id)
        try:
            await self.transitions.commit(await self.documents.spill(change), *others)
        except VersionConflict:
            return None
        logger.info("job.cancelled", extra={"job_id": job.id, "by": command.by})
        return change.row

    async def _has_cancelled(self, tried: JobRow, job: JobRow) -> bool:
        """Whether the round of a cancellation has ended by it."""
        history = await self._history(f"JOB#{job.id}", job, after=tried.last_sequence)
        ends = [event.body for event in history if isinstance(event.body, JobCancelled)]
        by = tried.cancel and tried.cancel.by
        return any((end.by, end.round) == (by, tried.round) for end in ends)

    async def _open_tasks(self, job: JobRow, numbers: NumberSet | None = None) -> list[str]:
        graph = await self.documents.load_graph(job)
        open_ = NumberSet.below(job.total) - job.ended if numbers is None else numbers
        return [task_id_of(job.id, graph.keys[number]) for number in open_]

    async def _task_changes(
        self, job: JobRow, command: jobs.CancelJob, change_id: str
    ) -> Sequence[tasks.TaskChange]:
        rows = await self.transitions.get_tasks(await self._open_tasks(job))
        request = RequestCancel(by=command.by, reason=command.reason, round=job.round)
        now = self.backend.clock.now()
        decisions = [tasks.apply(row, request, now=now, change_id=change_id) for row in rows]
        return [item for item in decisions if not isinstance(item, Refusal)]

    async def finish_cancel(self, job: JobRow, intent: Intent) -> bool:
        """Finish a cancellation. Returns False if another process closed the intent first."""
        reason = job.cancel.reason if job.cancel else None
        command = RequestCancel(by=intent.by, reason=reason, round=intent.round)
        return await self._finish(job, intent, command)

    async def _finish(self, job: JobRow, intent: Intent, command: c.Command) -> bool:
        """Apply a command to the tasks of an intent, and close it."""
        for task_id in await self._open_tasks(job, intent.numbers):
            try:
                await self.transitions.apply_to_task(task_id, command)
            except CommandRefused:
                logger.debug("task.already_changed", extra={"task_id": task_id})
        return await self.transitions.close_intent(job.id, intent) is not None

    # Resume ---------------------------------------------------------------------------------------

    async def resume(
        self, job_id: str, task_ids: Sequence[str], *, by: str, tenant: str | None = None
    ) -> ResumeResult:
        """Resume the tasks that can be resumed, and return why the others were refused.

        Args:
            tenant: The tenant that the job must belong to; None: any tenant.

        Raises:
            NotFound: there is no such job, or it is another tenant's.
        """
        # A task's number means nothing in another job.
        own = [task_id for task_id in task_ids if split_task_id(task_id)[0] == job_id]
        others = dict.fromkeys(set(task_ids).difference(own), _NO_SUCH_TASK)
        # An end may not be recorded in the job yet, and only recorded ends can be taken back.
        await self.dispatcher.settle(own)
        change_id = self.transitions.new_id()
        while True:
            # The job first: a change of the job after the tasks were read would go unnoticed.
            job = await self.transitions.get_job(tenant, job_id)
            result, change, chosen = await self._plan(job, own, by, change_id)
            result = replace(result, refused={**result.refused, **others})
            if change is None:
                return result
            if await self._commit(change, chosen):
                break
        for intent in change.row.intents:
            if intent.id == change_id:
                await self.finish_resume(change.row, intent)
        extra = {"job_id": job_id, "round": result.round, "tasks": len(result.tasks)}
        logger.info("tasks.resumed", extra=extra)
        return result

    async def _plan(
        self, job: JobRow, task_ids: Sequence[str], by: str, change_id: str
    ) -> tuple[ResumeResult, jobs.JobChange | None, Sequence[tasks.TaskChange]]:
        """Returns the result and the changes to commit; no change of the job: nothing to commit."""
        rows = await self.transitions.get_tasks(task_ids)
        round_, now = job.round + 1, self.backend.clock.now()
        command = c.Resume(round=round_, by=by, completed=job.completed)
        chosen: list[tasks.TaskChange] = []
        refused = dict.fromkeys(task_ids, _NO_SUCH_TASK)
        for row in rows:
            decision = tasks.apply(row, command, now=now, change_id=change_id)
            if isinstance(decision, Refusal):
                refused[row.id] = decision.detail
            elif row.spec.number not in job.failed | job.cancelled:
                refused[row.id] = "another request is resuming it"
            else:
                del refused[row.id]
                chosen.append(decision)
        if not chosen:
            return ResumeResult(round=job.round, refused=refused), None, ()
        resume_job = await self._job_command(job, chosen, by)
        change = jobs.apply(job, resume_job, now=now, change_id=change_id)
        if isinstance(change, Refusal):
            refused |= {item.row.id: change.detail for item in chosen}
            return ResumeResult(round=job.round, refused=refused), None, ()
        resumed = tuple(item.row.id for item in chosen)
        result = ResumeResult(round=round_, tasks=resumed, refused=refused)
        atomic = self.backend.ledger.atomic
        return result, await self.documents.spill(change), chosen if atomic else ()

    async def _job_command(
        self, job: JobRow, chosen: Sequence[tasks.TaskChange], by: str
    ) -> jobs.ResumeJob:
        specs = [item.row.spec for item in chosen]
        numbers = NumberSet(spec.number for spec in specs)
        graph = await self.documents.load_graph(job)
        return jobs.ResumeJob(
            numbers=numbers,
            keys=[spec.key for spec in specs],
            blocked=graph.descendants_of((job.failed | job.cancelled) - numbers),
            by=by,
            usage=sum((item.row.usage for item in chosen), Usage()),
            later=not self.backend.ledger.atomic,
        )

    async def _commit(self, change: jobs.JobChange, chosen: Sequence[tasks.TaskChange]) -> bool:
        try:
            await self.transitions.commit(change, *chosen)
        except VersionConflict as conflict:
            # It was ours, if its answer was lost and the row has changed again since.
            return conflict.maybe_committed and await self._is_ours(change)
        return True

    async def _is_ours(self, change: jobs.JobChange) -> bool:
        """Whether this change began the new round.

        Raises:
            OutcomeUnknown: the event at its position is not readable yet.
        """
        last = change.events[-1]
        job = await self.transitions.get_job(None, change.row.id)
        history = await self._history(last.entity, job, after=last.sequence - 1)
        return any((event.sequence, event.body) == (last.sequence, last.body) for event in history)

    async def finish_resume(self, job: JobRow, intent: Intent) -> bool:
        """Finish a resume. Returns False if another process closed the intent first."""
        command = c.Resume(round=intent.round, by=intent.by, completed=job.completed)
        return await self._finish(job, intent, command)

    # Review ---------------------------------------------------------------------------------------

    async def approve(
        self, tenant: str, task_id: str, *, by: str, attempt: int | None = None
    ) -> TaskRow:
        """Approve a task's result; its dependents may then run.

        Args:
            attempt: The attempt whose result was seen; None: the one in review.

        Raises:
            NotFound: the tenant has no such task.
            CommandRefused: it is not in review, or with the result of another attempt.
        """
        approve = partial(Approve, by=by)
        row, decided = await self._decide(tenant, task_id, attempt, approve)
        if decided:
            logger.info("task.approved", extra={"task_id": task_id, "by": by})
        await self.dispatcher.settle([task_id])
        return row

    async def revise(
        self, tenant: str, task_id: str, *, by: str, feedback: str, attempt: int | None = None
    ) -> TaskRow:
        """Request a revision: the next attempt receives the current result and the feedback.

        Args:
            attempt: The attempt whose result was seen; None: the one in review.

        Raises:
            NotFound: the tenant has no such task.
            CommandRefused: it is not in review, or with the result of another attempt; it was
                revised too often already; or the feedback is empty or too long.
        """
        revise = partial(RequestRevision, by=by, feedback=feedback)
        row, decided = await self._decide(tenant, task_id, attempt, revise)
        if decided:
            extra = {"task_id": task_id, "by": by, "revision": row.revision}
            logger.info("task.revision_requested", extra=extra)
        return row

    async def _decide(
        self,
        tenant: str,
        task_id: str,
        attempt: int | None,
        make_command: Callable[..., Approve | RequestRevision],
    ) -> tuple[TaskRow, bool]:
        """Returns the task's row, and False if the decision had been made before."""
        row = await self.transitions.get_task(tenant, task_id)
        if attempt is None and row.state is TaskState.IN_REVIEW:
            attempt = row.attempt
        command = make_command(attempt=row.attempt if attempt is None else attempt)
        try:
            return await self.transitions.apply_to_task(task_id, command, row=row), True
        except CommandRefused:
            row = await self.transitions.get_task(tenant, task_id)
            if not await self._already_decided(attempt, row, command):
                raise
            return row, False

    async def _already_decided(
        self, attempt: int | None, row: TaskRow, command: Approve | RequestRevision
    ) -> bool:
        """Whether this decision was made before and its answer lost.

        ``attempt`` is the attempt that it is about; None: the one of the last decision.
        """
        if row.state is TaskState.IN_REVIEW and row.attempt == command.attempt:
            return False
        decisions = list(_decisions(await self._history(f"TASK#{row.id}", row)))
        if attempt is None and decisions:
            return decisions[-1] == replace(command, attempt=decisions[-1].attempt)
        return command in decisions

    async def _history(self, entity: str, row: JobRow | TaskRow, *, after: int = 0) -> list[Event]:
        """Returns the events of an entity after a sequence, up to the last one of its row."""

        async def read() -> list[Event]:
            history = iter_history(self.backend.events, row.spec.tenant, entity, after=after)
            events = [event async for event in history]
            if len(events) < row.last_sequence - after:
                # Where events are stored after their row, a missing event may still arrive.
                raise OutcomeUnknown(f"events of {row.id} are not readable yet; try again")
            return events

        return await self.transitions.retry_unavailable(read)

    # Pause ----------------------------------------------------------------------------------------

    async def pause_queue(self, name: str, *, by: str, reason: str | None = None) -> QueuePause:
        """Pause a queue: no task of it starts, running tasks continue. Returns the pause.

        If the queue is already paused, this changes nothing and returns the existing pause.

        Raises:
            UsageError: the name is invalid, or the reason is too long or not valid text.
        """
        _check_name(name)
        reason = _checked_reason(reason)
        pause = await self.backend.queue_controls.pause(
            name, by=by, reason=reason, now=self.backend.clock.now()
        )
        extra = {"queue": name, "by": by, "held_by": pause.by, "reason": pause.reason}
        logger.warning("queue.paused", extra=extra)
        return pause

    async def resume_queue(self, name: str, *, by: str) -> QueuePause | None:
        """Resume a queue. Returns the pause or hold that this ended, or None.

        Raises:
            UsageError: the name is invalid.
        """
        _check_name(name)
        ended = await self.backend.queue_controls.resume(name)
        if ended is not None:
            extra = {"queue": name, "by": by, "paused_by": ended.by, "reason": ended.reason}
            logger.warning("queue.resumed", extra=extra)
        return ended


def _check_name(name: str) -> None:
    if not is_name(name):
        raise UsageError(f"the name of a queue must match {NAME_PATTERN.pattern}")


def _checked_reason(reason: str | None) -> str | None:
    if reason is None or not reason.strip():
        return None
    if (problem := comment_problem(reason, limit=REASON_LIMIT_CHARACTERS)) is not None:
        raise UsageError(f"the reason {problem}")
    return reason


def _in_progress(row: TaskRow, command: RequestCancel) -> bool:
    """Whether the task is being cancelled, or was by this command, whose answer was lost."""
    if row.cancel is None:
        return False
    ours = (row.cancel.by, row.cancel.reason) == (command.by, command.reason)
    return ours or row.state is not TaskState.CANCELLED


def _decisions(history: Iterable[Event]) -> Iterator[Approve | RequestRevision]:
    """Yields the decisions of reviewers, each about the last attempt before it."""
    attempt = 0
    for event in history:
        match event.body:
            case TaskProcessingStarted():
                attempt = event.body.attempt_number
            case TaskApproved(by=by):
                yield Approve(by=by, attempt=attempt)
            case TaskRevisionRequested(by=by, feedback=feedback):
                yield RequestRevision(by=by, feedback=feedback, attempt=attempt)
