"""The producer: accepts jobs.

A job is accepted once its own row is committed; everything it refers to was written before. On a
ledger that commits many rows in one step, its tasks are in the same commit. Elsewhere the row
carries an intent, and whoever finds it open (this process, or the sweeper after a crash) creates
the tasks that are not there yet.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from longshore.core import job as jobs
from longshore.core import task as tasks
from longshore.core.backoff import RetryPolicy
from longshore.core.blob_keys import submitted_document
from longshore.core.dag import PROBLEM_LIMIT, Problem
from longshore.core.definition import BUILTIN, Definition
from longshore.core.ids import is_request_id, job_id_of
from longshore.core.numbers import NumberSet
from longshore.core.planning import Plan, plan
from longshore.core.rows import Intent, IntentKind, JobRow, JobSpec
from longshore.core.submission import (
    JobRequest,
    canonical_hash,
    canonical_text,
    definitions_named_in,
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
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

_MICROSECOND = timedelta(microseconds=1)


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
        app: str,
        retry: RetryPolicy,
        task_limit: int,
        input_limit_bytes: int,
    ) -> None:
        self._input_limit_bytes = input_limit_bytes
        self._backend = backend
        self._transitions = transitions
        self._documents = documents
        self._app = app
        self._retry = retry
        self._task_limit = task_limit

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
        definitions, unknown = await self._definitions(tenant, document)
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
        )
        planned = plan(spec, request.tasks, definitions, retry=self._retry)
        self._refuse_large(planned)
        try:
            row = await self._write(spec, document, definitions, planned)
        except VersionConflict:
            known = await self._backend.ledger.job(job_id)
            if known is None:
                raise
            return self._same(known, request, body_hash)
        logger.info("job.accepted", extra={"job_id": job_id, "tasks": row.total})
        return Accepted(job=row, roots=tuple(planned.roots), created=True)

    def _refuse_large(self, planned: Plan) -> None:
        limit = self._input_limit_bytes
        large = [
            Problem(
                path=f"tasks[{task.spec.number}].input",
                message=f"has {task.spec.input.size} bytes as JSON; at most {limit} are allowed",
            )
            for task in planned.tasks
            if task.spec.input is not None and task.spec.input.size > limit
        ]
        if large:
            raise InvalidJob(large)

    async def _read(self, tenant: str, document: Any) -> JobRequest:
        try:
            return read_job(document, limit=self._task_limit)
        except InvalidJob as invalid:
            # All that is wrong is told at once, also what only the store can know.
            _, unknown = await self._definitions(tenant, document)
            raise InvalidJob([*invalid.problems, *unknown]) from None

    def _same(self, known: JobRow, request: JobRequest, body_hash: str) -> Accepted:
        if known.spec.body_hash != body_hash:
            raise AlreadyExists("a job with request id", known.spec.request_id)
        roots = tuple(task.key for task in request.tasks if not task.parents)
        return Accepted(job=known, roots=roots, created=False)

    async def _definitions(
        self, tenant: str, document: Any
    ) -> tuple[dict[str, Definition], list[Problem]]:
        """The definitions that the document names, and the names that nobody knows."""
        found: dict[str, Definition | None] = {}
        unknown: list[Problem] = []
        for path, name in definitions_named_in(document):
            if name not in found:
                stored = await self._backend.definitions.get(tenant, name)
                found[name] = stored or BUILTIN.get(name)
            if found[name] is None:
                unknown.append(Problem(path=path, message=f"no definition is called {name!r}"))
            if len(unknown) == PROBLEM_LIMIT:
                break
        return {name: one for name, one in found.items() if one is not None}, unknown

    async def _write(
        self, spec: JobSpec, document: Any, definitions: dict[str, Definition], planned: Plan
    ) -> JobRow:
        for key, data in planned.blobs:
            await self._backend.blobs.put(key, data)
        place = submitted_document(spec.id, spec.body_hash, "graph")
        graph = await self._documents.keep(planned.graph.to_json(), place)
        if self._backend.ledger.atomic:
            return await self._write_at_once(spec, planned, graph)
        intent = await self._intent(spec, document, definitions)
        change = jobs.create(
            spec,
            planned.summaries,
            graph,
            now=spec.created_at,
            change_id=self._transitions.new_id(),
            intent=intent,
        )
        await self._transitions.commit(await self._documents.spill(change))
        await self._create_tasks(intent, planned)
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
        self, spec: JobSpec, document: Any, definitions: dict[str, Definition]
    ) -> Intent:
        body = {
            "document": json.loads(canonical_text(document)),
            "versions": {name: one.version for name, one in definitions.items()},
            "retry": _retry_document(self._retry),
        }
        intent_id = self._transitions.new_id()
        place = submitted_document(spec.id, spec.body_hash, f"request-{intent_id}")
        return Intent(
            id=intent_id,
            kind=IntentKind.CREATE,
            numbers=NumberSet(),
            round=1,
            by="producer",
            body=await self._documents.keep(body, place),
        )

    async def finish_creating(self, job: JobRow, intent: Intent) -> bool:
        """Carry out what a submit began and did not end; False: somebody was faster."""
        body = await self._documents.load(intent.body)
        # What was accepted is carried out, also if the limit has been lowered since.
        request = read_job(body["document"], limit=len(body["document"]["tasks"]))
        definitions = await self._versions(job.spec.tenant, body["versions"])
        # Of the settings when it was accepted, or half of its tasks would be tried more often.
        retry = _retry_in(body["retry"])
        planned = plan(job.spec, request.tasks, definitions, retry=retry)
        for key, data in planned.blobs:
            await self._backend.blobs.put(key, data)
        await self._create_tasks(intent, planned)
        return await self._transitions.close(job.id, intent) is not None

    async def _versions(self, tenant: str, versions: dict[str, int]) -> dict[str, Definition]:
        found = {}
        for name, version in versions.items():
            stored = (
                await self._backend.definitions.get(tenant, name, version=version)
                if version
                else BUILTIN.get(name)
            )
            if stored is None:
                message = f"version {version} of definition {name!r} is gone"
                raise UsageError(message)
            found[name] = stored
        return found

    async def _create_tasks(self, intent: Intent, planned: Plan) -> None:
        # Those that wait first: a root may be run and done before the next row is written, and
        # whoever tells its dependents must find them.
        for task in sorted(planned.tasks, key=lambda task: not task.awaits):
            change = tasks.create(
                task.spec,
                task.awaits,
                now=self._backend.clock.now(),
                change_id=f"{intent.id}-{task.spec.number}",
            )
            try:
                await self._transitions.commit(change)
            except VersionConflict:
                continue  # it is there already, and may have moved on


def _retry_document(retry: RetryPolicy) -> dict[str, int]:
    return {
        "maxAttempts": retry.max_attempts,
        "baseUs": retry.base // _MICROSECOND,
        "capUs": retry.cap // _MICROSECOND,
    }


def _retry_in(document: dict[str, int]) -> RetryPolicy:
    """The inverse of ``_retry_document``."""
    return RetryPolicy(
        max_attempts=document["maxAttempts"],
        base=document["baseUs"] * _MICROSECOND,
        cap=document["capUs"] * _MICROSECOND,
    )
