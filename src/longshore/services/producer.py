"""The producer: accepts jobs.

A job is accepted once its own row is committed; everything it refers to was written before. On a
ledger that commits many rows in one step, its tasks are in the same commit. Elsewhere the row
carries an intent, and whoever finds it open (this process, or the sweeper after a crash) creates
the tasks that are not there yet.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from longshore.core import job as jobs
from longshore.core import task as tasks
from longshore.core.blob_keys import submitted_document
from longshore.core.definition import Definition
from longshore.core.ids import is_request_id, job_id_of
from longshore.core.numbers import NumberSet
from longshore.core.planning import Plan, plan, site_of
from longshore.core.rows import Intent, IntentKind, JobRow, JobSpec
from longshore.core.submission import (
    JobRequest,
    canonical_hash,
    read_job,
)
from longshore.errors import (
    AlreadyExists,
    InvalidJob,
    UsageError,
    VersionConflict,
)
from longshore.ports.backend import Backend
from longshore.services.documents import Documents
from longshore.services.task_creation import TaskCreation, retry_in
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What a client is told of its job."""

    job: JobRow
    roots: tuple[str, ...]
    created: bool  # False: the same request had been accepted before


class Producer:
    """Takes documents that describe jobs and makes rows of them."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        documents: Documents,
        creation: TaskCreation,
        app: str,
    ) -> None:
        self._backend = backend
        self._transitions = transitions
        self._documents = documents
        self._creation = creation
        self._app = app

    async def submit(self, tenant: str, request_id: str, document: Any) -> Accepted:
        """Accept a job. The same request id gives the same job, however often and from wherever.

        Raises:
            InvalidJob: the document is not a job; every problem is listed.
            AlreadyExists: the request id belongs to a job with another document.
            UsageError: the request id is not one.
        """
        if not is_request_id(request_id):
            message = "a request id must be 1 to 256 printable characters"
            raise UsageError(message)
        request = await self._read(tenant, document)
        body_hash = canonical_hash(document)
        job_id = job_id_of(tenant, request_id)
        if known := await self._backend.ledger.job(job_id):
            return self._same(known, request, body_hash)
        definitions, unknown = await self._creation.definitions(tenant, document)
        if unknown:
            raise InvalidJob(unknown)
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
        planned = plan(site_of(spec), request.tasks, definitions, retry=self._creation.retry)
        self._creation.refuse_large(planned)
        try:
            row = await self._write(spec, document, definitions, planned)
        except VersionConflict:
            known = await self._backend.ledger.job(job_id)
            if known is None:
                raise
            return self._same(known, request, body_hash)
        logger.info("job.accepted", extra={"job_id": job_id, "tasks": row.total})
        return Accepted(job=row, roots=tuple(planned.roots), created=True)

    async def _read(self, tenant: str, document: Any) -> JobRequest:
        try:
            return read_job(document, limit=self._creation.task_limit)
        except InvalidJob as invalid:
            # All that is wrong is told at once, also what only the store can know.
            _, unknown = await self._creation.definitions(tenant, document)
            raise InvalidJob([*invalid.problems, *unknown]) from None

    def _same(self, known: JobRow, request: JobRequest, body_hash: str) -> Accepted:
        if known.spec.body_hash != body_hash:
            raise AlreadyExists("a job with request id", known.spec.request_id)
        roots = tuple(task.key for task in request.tasks if not task.parents)
        return Accepted(job=known, roots=roots, created=False)

    async def _write(
        self, spec: JobSpec, document: Any, definitions: dict[str, Definition], planned: Plan
    ) -> JobRow:
        await self._creation.keep_documents(planned)
        place = submitted_document(spec.id, spec.body_hash, "graph")
        graph = await self._documents.keep(planned.graph.to_json(), place)
        if self._backend.ledger.atomic:
            return await self._write_at_once(spec, planned, graph)
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
        await self._creation.create(intent, planned)
        if len(planned.tasks) == 1:
            return change.row  # the end of its task closes it: a write less for most jobs
        # If a sweeper took this for left behind and closed it, the job is created all the same.
        return await self._transitions.close(change.row.id, intent) or change.row

    async def _write_at_once(self, spec: JobSpec, planned: Plan, graph: Any) -> JobRow:
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
        body = self._creation.recipe(document, definitions)
        intent_id = self._transitions.new_id()
        place = submitted_document(spec.id, spec.body_hash, f"request-{intent_id}")
        return Intent(
            id=intent_id,
            kind=IntentKind.CREATE,
            numbers=NumberSet.up_to(count),
            round=1,
            by="producer",
            body=await self._documents.keep(body, place),
        )

    async def finish_creating(self, job: JobRow, intent: Intent) -> bool:
        """Carry out what a submit began and did not end; False: nothing of it was left to do."""
        body = await self._documents.load(intent.body)
        # What was accepted is carried out, also if the limit has been lowered since.
        request = read_job(body["document"], limit=len(body["document"]["tasks"]))
        definitions = await self._creation.versions(job.spec.tenant, body["versions"])
        planned = plan(site_of(job.spec), request.tasks, definitions, retry=retry_in(body))
        created = 0
        if len(planned.tasks) > 1 or not await self._transitions.read(planned.tasks[0].spec.id):
            await self._creation.keep_documents(planned)
            created = await self._creation.create(intent, planned)
        return await self._transitions.close(job.id, intent) is not None and created > 0
