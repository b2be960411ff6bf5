"""Adding tasks to a job that is under way.

New tasks may stand behind old ones, also behind those that have completed. The old ones' specs are
written once and do not name them: the job's row says which old tasks have grown, and the job's
graph has it all. As with a submit, the job's row is committed together with the tasks, or first and
with an intent. The graph also remembers which request added what, so that the same request adds the
same tasks once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from longshore.core import job as jobs
from longshore.core import task as tasks
from longshore.core.blob_keys import submitted_document
from longshore.core.changes import Refusal
from longshore.core.definition import Definition
from longshore.core.graph import Addition, Graph, request_mark
from longshore.core.ids import is_request_id, task_id_of
from longshore.core.numbers import NumberSet
from longshore.core.planning import Plan, Site, plan
from longshore.core.rows import Intent, IntentKind, JobRow
from longshore.core.submission import TaskRequest, canonical_hash, read_added
from longshore.errors import AlreadyExists, InvalidJob, NotFound, UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.dispatcher import Dispatcher
from longshore.services.documents import Documents
from longshore.services.task_creation import TaskCreation, retry_in
from longshore.services.transitions import Transitions, refused

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What a client is told of the tasks that it added."""

    job: JobRow
    keys: tuple[str, ...]
    created: bool  # False: the same request had added them before


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is asked for, as it looks against one reading of the job."""

    job: JobRow
    site: Site
    planned: Plan
    document: Any
    definitions: dict[str, Definition]

    @property
    def numbers(self) -> NumberSet:
        return NumberSet(task.spec.number for task in self.planned.tasks)

    @property
    def grown(self) -> NumberSet:
        """The old tasks that a new one stands behind."""
        new = self.planned.graph.parents[self.job.total :]
        return NumberSet(parent for parents in new for parent in parents) - self.numbers


class Adding:
    """Puts more tasks into jobs."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        documents: Documents,
        creation: TaskCreation,
        dispatcher: Dispatcher,
    ) -> None:
        self._ledger = backend.ledger
        self._clock = backend.clock
        self._transitions = transitions
        self._documents = documents
        self._creation = creation
        self._dispatcher = dispatcher

    async def add(self, tenant: str, job_id: str, request_id: str, document: Any) -> Added:
        """Add tasks to a job. The same request id adds them once, however often it comes.

        Raises:
            NotFound: the tenant has no such job.
            CommandRefused: the job has completed, was cancelled or is being cancelled.
            InvalidJob: the document does not add tasks; every problem is listed.
            AlreadyExists: the request id has added other tasks to this job.
            UsageError: the request id is not one.
        """
        if not is_request_id(request_id):
            message = "a request id must be 1 to 256 printable characters"
            raise UsageError(message)
        mark = request_mark(request_id)
        while True:
            job = await self._job(tenant, job_id)
            graph = Graph.from_json(await self._documents.load(job.graph))
            if (known := graph.added_by(mark)) is not None:
                return _same(job, graph, known, request_id, document)
            wanted = await self._wanted(job, graph, mark, document)
            if (row := await self._committed(wanted)) is not None:
                keys = tuple(task.spec.key for task in wanted.planned.tasks)
                logger.info("tasks.added", extra={"job_id": job_id, "tasks": len(keys)})
                return Added(job=row, keys=keys, created=True)

    async def _job(self, tenant: str, job_id: str) -> JobRow:
        job = await self._transitions.persistently(lambda: self._ledger.job(job_id))
        if job is None or job.spec.tenant != tenant:
            raise NotFound("job", job_id)
        return job

    async def _wanted(self, job: JobRow, graph: Graph, mark: str, document: Any) -> _Wanted:
        requests = await self._read(job, graph, document)
        definitions, unknown = await self._creation.definitions(job.spec.tenant, document)
        if unknown:
            raise InvalidJob(unknown)
        body_hash = canonical_hash(document)
        site = Site(
            job=job.spec,
            at=self._clock.now(),
            # Two requests may say the same, and only one of them can have its way.
            body_hash=request_mark(mark + body_hash),
            graph=graph,
            completed=job.completed,
        )
        planned = plan(site, requests, definitions, retry=self._creation.retry)
        self._creation.refuse_large(planned)
        addition = Addition(mark, body_hash, job.total, len(requests))
        whole = replace(planned.graph, additions=(*graph.additions, addition))
        return _Wanted(
            job=job,
            site=site,
            planned=replace(planned, graph=whole),
            document=document,
            definitions=definitions,
        )

    async def _read(self, job: JobRow, graph: Graph, document: Any) -> tuple[TaskRequest, ...]:
        try:
            return read_added(document, limit=self._creation.task_limit, existing=graph.keys)
        except InvalidJob as invalid:
            # All that is wrong is told at once, also what only the store can know.
            _, unknown = await self._creation.definitions(job.spec.tenant, document)
            raise InvalidJob([*invalid.problems, *unknown]) from None

    async def _committed(self, wanted: _Wanted) -> JobRow | None:
        """The job's row with the tasks in it; None: it changed meanwhile."""
        job, planned, change_id = wanted.job, wanted.planned, self._transitions.new_id()
        command = jobs.AddTasks(
            tasks=planned.summaries,
            graph=job.graph,
            blocked=planned.graph.behind(job.failed | job.cancelled) & wanted.numbers,
            grown=wanted.grown,
        )
        _decided(wanted, command, change_id)  # before anything is written for it
        await self._creation.keep_documents(planned)
        place = self._place(wanted, f"graph-{job.version}")
        graph = await self._documents.keep(planned.graph.to_json(), place)
        intent = None if self._ledger.atomic else await self._intent(wanted, change_id)
        command = replace(command, graph=graph, intent=intent)
        change = _decided(wanted, command, change_id)
        created = [] if intent else self._creations(wanted, change_id)
        try:
            await self._transitions.commit(await self._documents.spill(change), *created)
        except VersionConflict:
            return None
        if intent is None:
            return change.row
        await self._creation.create(intent, planned)
        return await self._closed(change.row, intent, wanted.numbers) or change.row

    @staticmethod
    def _creations(wanted: _Wanted, change_id: str) -> list[tasks.TaskChange]:
        return [
            tasks.create(task.spec, task.awaits, now=wanted.site.at, change_id=change_id)
            for task in wanted.planned.tasks
        ]

    @staticmethod
    def _place(wanted: _Wanted, name: str) -> str:
        return submitted_document(wanted.job.id, wanted.site.body_hash, name)

    async def _intent(self, wanted: _Wanted, change_id: str) -> Intent:
        recipe = {
            **self._creation.recipe(wanted.document, wanted.definitions),
            "first": wanted.job.total,
            "at": wanted.site.at.isoformat(),
            "bodyHash": wanted.site.body_hash,
        }
        return Intent(
            id=change_id,
            kind=IntentKind.ADD,
            numbers=wanted.numbers,
            round=wanted.job.round,
            by="producer",
            body=await self._documents.keep(recipe, self._place(wanted, f"request-{change_id}")),
        )

    async def _closed(self, job: JobRow, intent: Intent, numbers: NumberSet) -> JobRow | None:
        """Close the intent, then tell the new tasks who has completed in the meantime.

        In this order: whoever records an end after this finds the new tasks there, and all ends
        before it stand in the row that this returns.
        """
        row = await self._transitions.close(job.id, intent)
        if row is not None:
            graph = Graph.from_json(await self._documents.load(row.graph))
            late = [
                number for number in numbers if row.completed & NumberSet(graph.parents[number])
            ]
            await self._dispatcher.send_on([task_id_of(row.id, graph.keys[one]) for one in late])
        return row

    async def finish(self, job: JobRow, intent: Intent) -> bool:
        """Carry out what an addition began and did not end; False: somebody was faster."""
        recipe = await self._documents.load(intent.body)
        graph = Graph.from_json(await self._documents.load(job.graph)).before(recipe["first"])
        # What was accepted is carried out, also if the limit has been lowered since.
        limit = recipe["first"] + len(recipe["document"]["tasks"])
        requests = read_added(recipe["document"], limit=limit, existing=graph.keys)
        site = Site(
            job=job.spec,
            at=datetime.fromisoformat(recipe["at"]),
            body_hash=recipe["bodyHash"],
            graph=graph,
            completed=job.completed,
        )
        definitions = await self._creation.versions(job.spec.tenant, recipe["versions"])
        planned = plan(site, requests, definitions, retry=retry_in(recipe))
        await self._creation.keep_documents(planned)
        await self._creation.create(intent, planned)
        return await self._closed(job, intent, intent.numbers) is not None


def _decided(wanted: _Wanted, command: jobs.AddTasks, change_id: str) -> jobs.JobChange:
    decision = jobs.apply(wanted.job, command, now=wanted.site.at, change_id=change_id)
    if isinstance(decision, Refusal):
        raise refused(wanted.job.id, decision)
    return decision


def _same(job: JobRow, graph: Graph, known: Addition, request_id: str, document: Any) -> Added:
    try:
        same = canonical_hash(document) == known.body
    except (TypeError, ValueError):
        same = False
    if not same:
        raise AlreadyExists("an addition with request id", request_id)
    keys = graph.keys[known.first : known.first + known.count]
    return Added(job=job, keys=keys, created=False)
