"""The producer: accepts jobs.

A job is accepted once its own row is committed; everything it refers to was written before. On a
ledger that commits many rows in one step, its tasks are in the same commit. Elsewhere the row
carries an intent, and the process that finds it open (this one, or the sweeper after a crash)
creates the tasks that do not exist yet.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longshore.core.definitions.definition import Definition
from longshore.core.documents import submitted_document_key
from longshore.core.ids import is_request_id, job_id_of
from longshore.core.jobs import job as jobs
from longshore.core.jobs.numbers import NumberSet
from longshore.core.jobs.planning import SubmissionPlan, initial_target, plan_tasks
from longshore.core.jobs.submission import JobRequest, canonical_hash, read_job
from longshore.core.tasks import task as tasks
from longshore.core.tasks.rows import Intent, IntentKind, JobRow, JobSpec
from longshore.errors import (
    AlreadyExists,
    InvalidJob,
    ProblemLike,
    UsageError,
    VersionConflict,
)
from longshore.ports.backend import Backend
from longshore.services.spill import DocumentStore
from longshore.services.task_creation import TaskCreation, retry_policy_in
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedJob:
    """The answer to a client that submitted a job."""

    job: JobRow
    roots: tuple[str, ...]
    created: bool  # False: the same request had been accepted before


class Producer:
    """Creates jobs from the documents that describe them."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        documents: DocumentStore,
        task_creation: TaskCreation,
        app: str,
    ) -> None:
        self._backend = backend
        self._transitions = transitions
        self._documents = documents
        self._task_creation = task_creation
        self._app = app

    async def submit(
        self,
        tenant: str,
        request_id: str,
        document: Any,
        *,
        own: Sequence[Definition] = (),
        own_problems: Sequence[ProblemLike] = (),
    ) -> AcceptedJob:
        """Accept a job. The same request id always gives the same job.

        Args:
            own: Definitions that come with the job; they are stored first, if all is valid.
            own_problems: What is wrong with these definitions.

        Raises:
            InvalidJob: the document is not a job; every problem is listed, nothing was stored.
            AlreadyExists: the request id belongs to a job with another document.
            UsageError: the request id is not valid.
        """
        if not is_request_id(request_id):
            message = "a request id must be 1 to 256 printable characters"
            raise UsageError(message)
        own_names = {definition.name for definition in own}
        request = await self._read(tenant, document, own_names, own_problems)
        body_hash = canonical_hash(document)
        job_id = job_id_of(tenant, request_id)
        if existing := await self._backend.ledger.get_job(job_id):
            return self._previous_result(existing, request, body_hash)
        stored, unknown = await self._task_creation.find_definitions(tenant, document, own_names)
        if unknown:
            raise InvalidJob(unknown)
        for definition in own:
            stored[definition.name] = await self._store_definition(
                tenant, definition, stored.get(definition.name)
            )
        spec = JobSpec(
            id=job_id,
            tenant=tenant,
            app=self._app,
            request_id=request_id,
            body_hash=body_hash,
            created_at=self._backend.clock.now(),
            name=request.name,
            budget=request.budget,
        )
        planned = plan_tasks(
            initial_target(spec), request.tasks, stored, retry=self._task_creation.retry
        )
        self._task_creation.check_input_sizes(planned)
        try:
            row = await self._write(spec, document, stored, planned)
        except VersionConflict:
            existing = await self._backend.ledger.get_job(job_id)
            if existing is None:
                raise
            return self._previous_result(existing, request, body_hash)
        logger.info("job.accepted", extra={"job_id": job_id, "tasks": row.total})
        return AcceptedJob(job=row, roots=tuple(planned.roots), created=True)

    async def _read(
        self,
        tenant: str,
        document: Any,
        own_names: Collection[str],
        own_problems: Sequence[ProblemLike],
    ) -> JobRequest:
        problems = list(own_problems)
        try:
            request = read_job(document, limit=self._task_creation.task_limit)
        except InvalidJob as invalid:
            problems += invalid.problems
        if not problems:
            return request
        # All problems are reported at once, also those that only the store can find.
        _, unknown = await self._task_creation.find_definitions(tenant, document, own_names)
        raise InvalidJob([*problems, *unknown])

    async def _store_definition(
        self, tenant: str, definition: Definition, newest: Definition | None
    ) -> Definition:
        store = self._backend.definitions
        newest = newest or await store.get(tenant, definition.name)
        # Usually it is stored already, and a read is far cheaper than a write.
        if newest is not None and replace(newest, version=0) == definition and newest.version:
            return newest
        return await store.put(tenant, definition)

    def _previous_result(
        self, existing: JobRow, request: JobRequest, body_hash: str
    ) -> AcceptedJob:
        if existing.spec.body_hash != body_hash:
            raise AlreadyExists("a job with request id", existing.spec.request_id)
        roots = tuple(task.key for task in request.tasks if not task.parents)
        return AcceptedJob(job=existing, roots=roots, created=False)

    async def _write(
        self,
        spec: JobSpec,
        document: Any,
        definitions: dict[str, Definition],
        planned: SubmissionPlan,
    ) -> JobRow:
        await self._task_creation.store_documents(planned)
        place = submitted_document_key(spec.id, spec.body_hash, "graph")
        graph = await self._documents.store(planned.graph.to_json(), place)
        if self._backend.ledger.atomic:
            return await self._write_atomically(spec, planned, graph)
        intent = await self._intent(spec, document, definitions, len(planned.tasks))
        change = jobs.create(
            spec,
            planned.summaries,
            graph,
            now=spec.created_at,
            change_id=self._transitions.new_id(),
            intent=intent,
        )
        await self._transitions.commit(await self._documents.spill(change))
        await self._task_creation.create_tasks(intent, planned)
        if len(planned.tasks) == 1:
            return (
                change.row
            )  # the end of its task closes the intent, which saves most jobs a write
        # If a sweeper has closed the intent meanwhile, the job is complete too.
        return await self._transitions.close_intent(change.row.id, intent) or change.row

    async def _write_atomically(self, spec: JobSpec, planned: SubmissionPlan, graph: Any) -> JobRow:
        change_id = self._transitions.new_id()
        change = jobs.create(
            spec, planned.summaries, graph, now=spec.created_at, change_id=change_id
        )
        await self._transitions.commit(
            await self._documents.spill(change),
            *(
                tasks.create(task.spec, task.awaits, now=spec.created_at, change_id=change_id)
                for task in planned.tasks
            ),
        )
        return change.row

    async def _intent(
        self, spec: JobSpec, document: Any, definitions: dict[str, Definition], count: int
    ) -> Intent:
        body = self._task_creation.intent_body(document, definitions)
        intent_id = self._transitions.new_id()
        place = submitted_document_key(spec.id, spec.body_hash, f"request-{intent_id}")
        return Intent(
            id=intent_id,
            kind=IntentKind.CREATE,
            numbers=NumberSet.below(count),
            round=1,
            by="producer",
            body=await self._documents.store(body, place),
        )

    async def finish_intent(self, job: JobRow, intent: Intent) -> bool:
        """Finish a submit. Returns False if nothing was left to do."""
        body = await self._documents.load(intent.body)
        # An accepted request is carried out even if the limit has been lowered since.
        request = read_job(body["document"], limit=len(body["document"]["tasks"]))
        definitions = await self._task_creation.load_versions(job.spec.tenant, body["versions"])
        planned = plan_tasks(
            initial_target(job.spec), request.tasks, definitions, retry=retry_policy_in(body)
        )
        created = 0
        if len(planned.tasks) > 1 or not await self._transitions.read(planned.tasks[0].spec.id):
            await self._task_creation.store_documents(planned)
            created = await self._task_creation.create_tasks(intent, planned)
        return await self._transitions.close_intent(job.id, intent) is not None and created > 0
