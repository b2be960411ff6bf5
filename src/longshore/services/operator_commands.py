"""What operators do with jobs, tasks and queues: cancel, resume, review, pause.

Cancel and resume change the job's row first, or in the same commit as its tasks. Where a ledger
commits one row at a time, the job's row carries an intent, and the process that finds it open (this
one, or the sweeper after a crash) changes the tasks that are left. A request that is repeated
because its answer was lost succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from longshore.core.events.event import Event
from longshore.core.events.types import (
    TaskApproved,
    TaskProcessingStarted,
    TaskRevisionRequested,
    Usage,
)
from longshore.core.ids import NAME_PATTERN, is_name, split_task_id, task_id_of
from longshore.core.jobs import job as jobs
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NumberSet
from longshore.core.maximums import REASON_LIMIT_CHARACTERS, comment_problem
from longshore.core.tasks import commands as c
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal, RefusalReason
from longshore.core.tasks.commands import Approve, RequestCancel, RequestRevision
from longshore.core.tasks.rows import CancelRequest, Intent, IntentKind, JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import CommandRefused, NotFound, OutcomeUnknown, UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.ports.configuration import QueuePause
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


_NO_SUCH_TASK = "there is no such task"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeResult:
    """The result of a resume, by task id."""

    round: int  # the job's
    tasks: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)  # why


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResumePlan:
    """What to commit, decided from rows that were just read."""

    result: ResumeResult
    job: jobs.JobChange | None = None  # None: no task can be resumed
    tasks: tuple[tasks.TaskChange, ...] = ()


class Resumer:
    """Resumes tasks that ended without a result."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        documents: DocumentStore,
        dispatcher: Dispatcher,
    ) -> None:
        self._ledger = backend.ledger
        self._events = backend.events
        self._clock = backend.clock
        self._transitions = transitions
        self._documents = documents
        self._dispatcher = dispatcher

    async def resume(
        self, job_id: str, task_ids: Sequence[str], *, by: str, tenant: str | None = None
    ) -> ResumeResult:
        """Resume the tasks that can be resumed, and return why the others were refused.

        Args:
            tenant: The tenant that the job must belong to; None: any tenant.

        Raises:
            NotFound: there is no such job, or it is another tenant's.
        """
        if tenant is not None and (await self._job(job_id)).spec.tenant != tenant:
            raise NotFound("job", job_id)
        # A task's number means nothing in another job.
        own = [task_id for task_id in task_ids if split_task_id(task_id)[0] == job_id]
        resumed = await self._resume(job_id, own, by)
        strangers = dict.fromkeys(set(task_ids).difference(own), _NO_SUCH_TASK)
        return replace(resumed, refused={**resumed.refused, **strangers})

    async def _resume(self, job_id: str, task_ids: Sequence[str], by: str) -> ResumeResult:
        # An end may not be recorded in the job yet, and only recorded ends can be taken back.
        await self._dispatcher.settle(task_ids)
        change_id = self._transitions.new_id()
        while True:
            # The job first: a change of the job after the tasks were read would go unnoticed.
            job = await self._job(job_id)
            plan = await self._plan(job, task_ids, by, change_id)
            if plan.job is None:
                return plan.result
            if await self._commit(plan, plan.job):
                break
        for intent in plan.job.row.intents:
            if intent.id == change_id:
                await self.finish_intent(plan.job.row, intent)
        extra = {"job_id": job_id, "round": plan.result.round, "tasks": len(plan.result.tasks)}
        logger.info("tasks.resumed", extra=extra)
        return plan.result

    async def _job(self, job_id: str) -> JobRow:
        job = await self._transitions.retry_unavailable(lambda: self._ledger.get_job(job_id))
        if job is None:
            raise NotFound("job", job_id)
        return job

    async def _plan(
        self, job: JobRow, task_ids: Sequence[str], by: str, change_id: str
    ) -> _ResumePlan:
        rows = await self._transitions.retry_unavailable(lambda: self._ledger.get_tasks(task_ids))
        round_, now = job.round + 1, self._clock.now()
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
            return _ResumePlan(result=ResumeResult(round=job.round, refused=refused))
        change = await self._job_change(job, chosen, by, now, change_id)
        if isinstance(change, Refusal):
            refused |= {item.row.id: change.detail for item in chosen}
            return _ResumePlan(result=ResumeResult(round=job.round, refused=refused))
        resumed = tuple(item.row.id for item in chosen)
        return _ResumePlan(
            result=ResumeResult(round=round_, tasks=resumed, refused=refused),
            job=await self._documents.spill(change),
            tasks=tuple(chosen) if self._ledger.atomic else (),
        )

    async def _job_change(
        self,
        job: JobRow,
        chosen: Sequence[tasks.TaskChange],
        by: str,
        now: datetime,
        change_id: str,
    ) -> jobs.JobDecision:
        specs = [item.row.spec for item in chosen]
        numbers = NumberSet(spec.number for spec in specs)
        intent = None
        if not self._ledger.atomic:
            intent = Intent(
                id=change_id, kind=IntentKind.RESUME, numbers=numbers, round=job.round + 1, by=by
            )
        graph = await self._graph(job)
        command = jobs.ResumeJob(
            numbers=numbers,
            keys=[spec.key for spec in specs],
            blocked=graph.descendants_of((job.failed | job.cancelled) - numbers),
            by=by,
            usage=sum((item.row.usage for item in chosen), Usage()),
            intent=intent,
        )
        return jobs.apply(job, command, now=now, change_id=change_id)

    async def _graph(self, job: JobRow) -> Graph:
        return Graph.from_json(await self._documents.load(job.graph))

    async def _commit(self, plan: _ResumePlan, change: jobs.JobChange) -> bool:
        try:
            await self._transitions.commit(change, *plan.tasks)
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
        history = await self._transitions.retry_unavailable(
            lambda: self._event_at(change.row.id, last)
        )
        return [event.body for event in history] == [last.body]

    async def _event_at(self, job_id: str, event: Event) -> Sequence[Event]:
        events = await self._events.history(
            event.tenant, event.entity, after=event.sequence - 1, limit=1
        )
        if not events and (await self._job(job_id)).last_sequence >= event.sequence:
            # Where events are stored after their row, a missing event proves nothing.
            message = f"events of {job_id} are not readable yet; try again"
            raise OutcomeUnknown(message)
        return events

    async def finish_intent(self, job: JobRow, intent: Intent) -> bool:
        """Finish a resume. Returns False if another process closed the intent first."""
        graph = await self._graph(job)
        command = c.Resume(round=intent.round, by=intent.by, completed=job.completed)
        for number in intent.numbers:
            task_id = task_id_of(job.id, graph.keys[number])
            try:
                await self._transitions.apply_to_task(task_id, command)
            except CommandRefused:
                logger.debug("task.already_resumed", extra={"task_id": task_id})
        return await self._transitions.close_intent(job.id, intent) is not None


class ReviewDecisions:
    """Carries out the decisions of reviewers."""

    def __init__(
        self, *, backend: Backend, transitions: Transitions, dispatcher: Dispatcher
    ) -> None:
        self._ledger = backend.ledger
        self._events = backend.events
        self._transitions = transitions
        self._dispatcher = dispatcher

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
        row = await self._row(tenant, task_id)
        seen = _attempt_in_review(row) if attempt is None else attempt
        command = Approve(by=by, attempt=row.attempt if seen is None else seen)
        try:
            row = await self._transitions.apply_to_task(task_id, command, row=row)
        except CommandRefused:
            row = await self._row(tenant, task_id)
            if not await self._already_decided(seen, row, command):
                raise
        else:
            logger.info("task.approved", extra={"task_id": task_id, "by": by})
        await self._dispatcher.settle([task_id])
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
        row = await self._row(tenant, task_id)
        seen = _attempt_in_review(row) if attempt is None else attempt
        about = row.attempt if seen is None else seen
        command = RequestRevision(by=by, feedback=feedback, attempt=about)
        try:
            row = await self._transitions.apply_to_task(task_id, command, row=row)
        except CommandRefused:
            row = await self._row(tenant, task_id)
            if not await self._already_decided(seen, row, command):
                raise
        else:
            extra = {"task_id": task_id, "by": by, "revision": row.revision}
            logger.info("task.revision_requested", extra=extra)
        return row

    async def _row(self, tenant: str, task_id: str) -> TaskRow:
        row = await self._transitions.retry_unavailable(lambda: self._ledger.get_task(task_id))
        if row is None or row.spec.tenant != tenant:
            raise NotFound("task", task_id)
        return row

    async def _already_decided(
        self, attempt: int | None, row: TaskRow, command: Approve | RequestRevision
    ) -> bool:
        """Whether this decision was made before and its answer lost.

        ``attempt`` is the attempt that it is about; None: the one of the last decision.
        """
        if row.state is TaskState.IN_REVIEW and row.attempt == command.attempt:
            return False
        history = await self._transitions.retry_unavailable(lambda: self._history(row))
        decisions = list(_decisions(history))
        if attempt is None and decisions:
            return decisions[-1] == replace(command, attempt=decisions[-1].attempt)
        return command in decisions

    async def _history(self, row: TaskRow) -> list[Event]:
        """Returns the events of the task, up to the row's last sequence."""
        events: list[Event] = []
        entity = f"TASK#{row.id}"
        while page := await self._events.history(row.spec.tenant, entity, after=len(events)):
            events += page
        if len(events) < row.last_sequence:
            # Where events are stored after their row, a missing event may still arrive.
            message = f"events of {row.id} are not readable yet; try again"
            raise OutcomeUnknown(message)
        return events


def _attempt_in_review(row: TaskRow) -> int | None:
    """Returns the attempt whose result is in review."""
    return row.attempt if row.state is TaskState.IN_REVIEW else None


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


class QueuePauser:
    """Pauses queues and resumes them."""

    def __init__(self, backend: Backend) -> None:
        self._queues = backend.queue_controls
        self._clock = backend.clock

    async def pause_queue(self, name: str, *, by: str, reason: str | None = None) -> QueuePause:
        """Pause a queue: no task of it starts, running tasks continue. Returns the pause.

        If the queue is already paused, this changes nothing and returns the existing pause.

        Raises:
            UsageError: the name is invalid, or the reason is too long or not valid text.
        """
        _check_name(name)
        reason = reason if reason and reason.strip() else None
        if reason and (problem := comment_problem(reason, limit=REASON_LIMIT_CHARACTERS)):
            message = f"the reason {problem}"
            raise UsageError(message)
        pause = await self._queues.pause(name, by=by, reason=reason, now=self._clock.now())
        extra = {"queue": name, "by": by, "held_by": pause.by, "reason": pause.reason}
        logger.warning("queue.paused", extra=extra)
        return pause

    async def resume_queue(self, name: str, *, by: str) -> QueuePause | None:
        """Resume a queue. Returns the pause or hold that this ended, or None.

        Raises:
            UsageError: the name is invalid.
        """
        _check_name(name)
        ended = await self._queues.resume(name)
        if ended is not None:
            extra = {"queue": name, "by": by, "paused_by": ended.by, "reason": ended.reason}
            logger.warning("queue.resumed", extra=extra)
        return ended

    async def list_paused(self) -> list[QueuePause]:
        """Returns all pauses and holds, by the name of the queue."""
        return await self._queues.list_pauses()


def _check_name(name: str) -> None:
    if not is_name(name):
        message = f"the name of a queue must match {NAME_PATTERN.pattern}"
        raise UsageError(message)
