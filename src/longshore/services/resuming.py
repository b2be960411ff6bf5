"""Resuming: tasks of a job that failed get another round; what completed is not run again.

The job's row decides: of two who resume one task at once, one changes the row and the other finds
that nothing is left to resume. On a ledger that commits many rows in one step the tasks are in the
same commit. Elsewhere the row carries an intent, and whoever finds it open (this process, or the
sweeper after a crash) resumes the tasks that are not yet in the new round.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from longshore.core import commands as c
from longshore.core import job as jobs
from longshore.core import task as tasks
from longshore.core.changes import Refusal
from longshore.core.events.event import Event
from longshore.core.events.types import Usage
from longshore.core.graph import Graph
from longshore.core.ids import split_task_id, task_id_of
from longshore.core.numbers import NumberSet
from longshore.core.rows import Intent, IntentKind, JobRow
from longshore.errors import CommandRefused, NotFound, OutcomeUnknown, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.dispatcher import Dispatcher
from longshore.services.documents import Documents
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

_NO_SUCH_TASK = "there is no such task"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What came of it, by the ids of the tasks."""

    round: int  # the job's
    tasks: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)  # why


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is to be committed, decided from rows that were just read."""

    resumed: Resumed
    job: jobs.JobChange | None = None  # None: nothing can be resumed
    tasks: tuple[tasks.TaskChange, ...] = ()


class Resuming:
    """Gives tasks that ended without a result another round."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        documents: Documents,
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
    ) -> Resumed:
        """Resume those of a job's tasks that can be; the others are told with the reason.

        Args:
            tenant: Whose job it must be; None: anybody's.

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

    async def _resume(self, job_id: str, task_ids: Sequence[str], by: str) -> Resumed:
        # The job may not have heard of a failure yet, and it takes back only what it has heard of.
        await self._dispatcher.settle(task_ids)
        change_id = self._transitions.new_id()
        while True:
            # In this order: a change of the job after the tasks were read would not be noticed.
            job = await self._job(job_id)
            plan = await self._plan(job, task_ids, by, change_id)
            if plan.job is None:
                return plan.resumed
            if await self._committed(plan, plan.job):
                break
        for intent in plan.job.row.intents:
            if intent.id == change_id:
                await self.finish(plan.job.row, intent)
        extra = {"job_id": job_id, "round": plan.resumed.round, "tasks": len(plan.resumed.tasks)}
        logger.info("tasks.resumed", extra=extra)
        return plan.resumed

    async def _job(self, job_id: str) -> JobRow:
        job = await self._transitions.persistently(lambda: self._ledger.job(job_id))
        if job is None:
            raise NotFound("job", job_id)
        return job

    async def _plan(self, job: JobRow, task_ids: Sequence[str], by: str, change_id: str) -> _Plan:
        rows = await self._transitions.persistently(lambda: self._ledger.tasks(task_ids))
        round_, now = job.round + 1, self._clock.now()
        command = c.Resume(round=round_, by=by, completed=job.completed)
        chosen: list[tasks.TaskChange] = []
        refused = dict.fromkeys(task_ids, _NO_SUCH_TASK)
        for row in rows:
            decision = tasks.apply(row, command, now=now, change_id=change_id)
            if isinstance(decision, Refusal):
                refused[row.id] = decision.detail
            elif row.spec.number not in job.failed | job.cancelled:
                refused[row.id] = "somebody else is resuming it"
            else:
                del refused[row.id]
                chosen.append(decision)
        if not chosen:
            return _Plan(resumed=Resumed(round=job.round, refused=refused))
        change = await self._job_change(job, chosen, by, now, change_id)
        if isinstance(change, Refusal):
            refused |= {one.row.id: change.detail for one in chosen}
            return _Plan(resumed=Resumed(round=job.round, refused=refused))
        resumed = tuple(one.row.id for one in chosen)
        return _Plan(
            resumed=Resumed(round=round_, tasks=resumed, refused=refused),
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
        specs = [one.row.spec for one in chosen]
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
            blocked=graph.behind((job.failed | job.cancelled) - numbers),
            by=by,
            usage=sum((one.row.usage for one in chosen), Usage()),
            intent=intent,
        )
        return jobs.apply(job, command, now=now, change_id=change_id)

    async def _graph(self, job: JobRow) -> Graph:
        return Graph.from_json(await self._documents.load(job.graph))

    async def _committed(self, plan: _Plan, change: jobs.JobChange) -> bool:
        try:
            await self._transitions.commit(change, *plan.tasks)
        except VersionConflict as conflict:
            # Ours all the same, if its answer was lost and somebody has gone on from there.
            return conflict.perhaps_ours and await self._was_ours(change)
        return True

    async def _was_ours(self, change: jobs.JobChange) -> bool:
        """Whether the round that was to begin is the one that this change began.

        Raises:
            OutcomeUnknown: what was told in its place has not come to the history yet.
        """
        told = change.events[-1]
        history = await self._transitions.persistently(lambda: self._told_at(change.row.id, told))
        return [event.body for event in history] == [told.body]

    async def _told_at(self, job_id: str, place: Event) -> Sequence[Event]:
        found = await self._events.history(
            place.tenant, place.entity, after=place.sequence - 1, limit=1
        )
        if not found and (await self._job(job_id)).last_sequence >= place.sequence:
            # Where events come later than their row, that it is not there says nothing.
            message = f"what was told of {job_id} is still on its way"
            raise OutcomeUnknown(message)
        return found

    async def finish(self, job: JobRow, intent: Intent) -> bool:
        """Carry out what a resume began and did not end; False: somebody was faster."""
        graph = await self._graph(job)
        command = c.Resume(round=intent.round, by=intent.by, completed=job.completed)
        for number in intent.numbers:
            task_id = task_id_of(job.id, graph.keys[number])
            try:
                await self._transitions.task(task_id, command)
            except CommandRefused:
                logger.debug("task.resumed_before", extra={"task_id": task_id})
        return await self._transitions.close(job.id, intent) is not None
