"""Adds tasks to a running job.

New tasks may depend on old ones, including completed ones. The specs of old tasks are written once
and do not name new dependents: the job's row says which old tasks have new dependents, and the
job's graph has all of them. As with a submit, the job's row is committed together with the tasks,
or first and with an intent. The graph also records which request added what, so that a repeated
request adds its tasks once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from longshore.core.definitions.definition import Definition
from longshore.core.documents import submitted_document_key
from longshore.core.ids import is_request_id, task_id_of
from longshore.core.jobs import job as jobs
from longshore.core.jobs.graph import Addition, Graph, request_hash
from longshore.core.jobs.numbers import NumberSet
from longshore.core.jobs.planning import PlanTarget, SubmissionPlan, plan_tasks
from longshore.core.jobs.submission import TaskRequest, canonical_hash, read_added_tasks
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.rows import Intent, IntentKind, JobRow
from longshore.errors import AlreadyExists, InvalidJob, NotFound, UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.dispatcher import Dispatcher
from longshore.services.spill import DocumentStore
from longshore.services.task_creation import TaskCreation, retry_policy_in
from longshore.services.transitions import Transitions, refusal_error

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTasksResult:
    """The answer to a client that added tasks."""

    job: JobRow
    keys: tuple[str, ...]
    created: bool  # False: the same request had added them before


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedAddition:
    """A requested addition, planned against one version of the job."""

    job: JobRow
    site: PlanTarget
    planned: SubmissionPlan
    document: Any
    definitions: dict[str, Definition]

    @property
    def numbers(self) -> NumberSet:
        return NumberSet(task.spec.number for task in self.planned.tasks)

    @property
    def grown(self) -> NumberSet:
        """The old tasks that a new task depends on."""
        new = self.planned.graph.parents[self.job.total :]
        return NumberSet(parent for parents in new for parent in parents) - self.numbers


class TaskAdder:
    """Adds tasks to jobs."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        documents: DocumentStore,
        creation: TaskCreation,
        dispatcher: Dispatcher,
    ) -> None:
        self._ledger = backend.ledger
        self._clock = backend.clock
        self._transitions = transitions
        self._documents = documents
        self._creation = creation
        self._dispatcher = dispatcher

    async def add_tasks(
        self, tenant: str, job_id: str, request_id: str, document: Any
    ) -> AddTasksResult:
        """Add tasks to a job. A repeated request id adds them once.

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
        mark = request_hash(request_id)
        while True:
            job = await self._job(tenant, job_id)
            graph = Graph.from_json(await self._documents.load(job.graph))
            if (known := graph.find_addition(mark)) is not None:
                return _previous_result(job, graph, known, request_id, document)
            wanted = await self._plan(job, graph, mark, document)
            if (row := await self._commit(wanted)) is not None:
                keys = tuple(task.spec.key for task in wanted.planned.tasks)
                logger.info("tasks.added", extra={"job_id": job_id, "tasks": len(keys)})
                return AddTasksResult(job=row, keys=keys, created=True)

    async def _job(self, tenant: str, job_id: str) -> JobRow:
        job = await self._transitions.retry_unavailable(lambda: self._ledger.get_job(job_id))
        if job is None or job.spec.tenant != tenant:
            raise NotFound("job", job_id)
        return job

    async def _plan(self, job: JobRow, graph: Graph, token: str, document: Any) -> _PlannedAddition:
        requests = await self._read(job, graph, document)
        definitions, unknown = await self._creation.find_definitions(job.spec.tenant, document)
        if unknown:
            raise InvalidJob(unknown)
        body_hash = canonical_hash(document)
        site = PlanTarget(
            job=job.spec,
            requested_at=self._clock.now(),
            # Of two concurrent requests, one commits; the other is planned again.
            body_hash=request_hash(token + body_hash),
            graph=graph,
            completed=job.completed,
        )
        planned = plan_tasks(site, requests, definitions, retry=self._creation.retry)
        self._creation.check_input_sizes(planned)
        addition = Addition(token, body_hash, job.total, len(requests))
        whole = replace(planned.graph, additions=(*graph.additions, addition))
        return _PlannedAddition(
            job=job,
            site=site,
            planned=replace(planned, graph=whole),
            document=document,
            definitions=definitions,
        )

    async def _read(self, job: JobRow, graph: Graph, document: Any) -> tuple[TaskRequest, ...]:
        try:
            return read_added_tasks(document, limit=self._creation.task_limit, existing=graph.keys)
        except InvalidJob as invalid:
            # All problems are reported at once, including those that only the store shows.
            _, unknown = await self._creation.find_definitions(job.spec.tenant, document)
            raise InvalidJob([*invalid.problems, *unknown]) from None

    async def _commit(self, addition: _PlannedAddition) -> JobRow | None:
        """Returns the job's row with the tasks; None if it has changed meanwhile."""
        job, planned, change_id = addition.job, addition.planned, self._transitions.new_id()
        command = jobs.AddTasks(
            tasks=planned.summaries,
            graph=job.graph,
            blocked=planned.graph.descendants_of(job.failed | job.cancelled) & addition.numbers,
            with_added_dependents=addition.grown,
        )
        _decide(addition, command, change_id)  # before anything is written for it
        await self._creation.store_documents(planned)
        place = self._blob_key(addition, f"graph-{job.version}")
        graph = await self._documents.store(planned.graph.to_json(), place)
        intent = None if self._ledger.atomic else await self._intent(addition, change_id)
        command = replace(command, graph=graph, intent=intent)
        change = _decide(addition, command, change_id)
        created = [] if intent else self._task_changes(addition, change_id)
        try:
            await self._transitions.commit(await self._documents.spill(change), *created)
        except VersionConflict:
            return None
        if intent is None:
            return change.row
        await self._creation.create_tasks(intent, planned)
        return await self._close(change.row, intent, addition.numbers) or change.row

    @staticmethod
    def _task_changes(addition: _PlannedAddition, change_id: str) -> list[tasks.TaskChange]:
        return [
            tasks.create(
                task.spec, task.awaits, now=addition.site.requested_at, change_id=change_id
            )
            for task in addition.planned.tasks
        ]

    @staticmethod
    def _blob_key(addition: _PlannedAddition, name: str) -> str:
        return submitted_document_key(addition.job.id, addition.site.body_hash, name)

    async def _intent(self, addition: _PlannedAddition, change_id: str) -> Intent:
        recipe = {
            **self._creation.intent_body(addition.document, addition.definitions),
            "first": addition.job.total,
            "at": addition.site.requested_at.isoformat(),
            "bodyHash": addition.site.body_hash,
        }
        return Intent(
            id=change_id,
            kind=IntentKind.ADD,
            numbers=addition.numbers,
            round=addition.job.round,
            by="producer",
            body=await self._documents.store(
                recipe, self._blob_key(addition, f"request-{change_id}")
            ),
        )

    async def _close(self, job: JobRow, intent: Intent, numbers: NumberSet) -> JobRow | None:
        """Close the intent, then notify the new tasks of parents that completed meanwhile.

        In this order: an end that is recorded later finds the new tasks, and all earlier ends are
        in the row that this returns.
        """
        row = await self._transitions.close_intent(job.id, intent)
        if row is not None:
            graph = Graph.from_json(await self._documents.load(row.graph))
            late = [
                number for number in numbers if row.completed & NumberSet(graph.parents[number])
            ]
            await self._dispatcher.notify_waiting(
                [task_id_of(row.id, graph.keys[number]) for number in late]
            )
        return row

    async def finish_intent(self, job: JobRow, intent: Intent) -> bool:
        """Finish an addition. Returns False if another process closed the intent first."""
        recipe = await self._documents.load(intent.body)
        graph = Graph.from_json(await self._documents.load(job.graph)).truncated(recipe["first"])
        # An accepted request is carried out even if the limit has been lowered since.
        limit = recipe["first"] + len(recipe["document"]["tasks"])
        requests = read_added_tasks(recipe["document"], limit=limit, existing=graph.keys)
        site = PlanTarget(
            job=job.spec,
            requested_at=datetime.fromisoformat(recipe["at"]),
            body_hash=recipe["bodyHash"],
            graph=graph,
            completed=job.completed,
        )
        definitions = await self._creation.load_versions(job.spec.tenant, recipe["versions"])
        planned = plan_tasks(site, requests, definitions, retry=retry_policy_in(recipe))
        await self._creation.store_documents(planned)
        await self._creation.create_tasks(intent, planned)
        return await self._close(job, intent, intent.numbers) is not None


def _decide(addition: _PlannedAddition, command: jobs.AddTasks, change_id: str) -> jobs.JobChange:
    decision = jobs.apply(
        addition.job, command, now=addition.site.requested_at, change_id=change_id
    )
    if isinstance(decision, Refusal):
        raise refusal_error(addition.job.id, decision)
    return decision


def _previous_result(
    job: JobRow, graph: Graph, existing: Addition, request_id: str, document: Any
) -> AddTasksResult:
    try:
        same = canonical_hash(document) == existing.body_hash
    except (TypeError, ValueError):
        same = False
    if not same:
        raise AlreadyExists("an addition with request id", request_id)
    keys = graph.keys[existing.first_number : existing.first_number + existing.count]
    return AddTasksResult(job=job, keys=keys, created=False)
