"""Resumes failed and cancelled tasks of a job in another round; completed tasks do not run again.

The job's row decides: if two callers resume one task at once, one changes the row and the other
finds nothing left to resume. On a ledger that commits many rows in one step, the tasks are in the
same commit. Elsewhere the row carries an intent, and the process that finds it open (this one, or
the sweeper after a crash) resumes the tasks that are not yet in the new round.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from longshore.core.events.event import Event
from longshore.core.events.types import Usage
from longshore.core.ids import split_task_id, task_id_of
from longshore.core.jobs import job as jobs
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks import commands as c
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.rows import Intent, IntentKind, JobRow
from longshore.errors import CommandRefused, NotFound, OutcomeUnknown, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.dispatcher import Dispatcher
from longshore.services.spill import DocumentStore
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

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
