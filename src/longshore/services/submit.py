"""Accepts jobs, and tasks that are added to running jobs.

A job is accepted once its own row is committed; everything it refers to was written before. On a
ledger that commits many rows in one step, its tasks are in the same commit. Elsewhere the row
carries an intent, and the process that finds it open (this one, or the sweeper after a crash)
creates the tasks that do not exist yet. The intent's body contains everything that the rows are
made of, so that any process creates the same rows.

Added tasks may depend on old ones, including completed ones. The specs of old tasks are written
once and do not name new dependents: the job's row says which old tasks have new dependents, and the
job's graph has all of them. The graph also records which request added what, so that a repeated
request adds its tasks once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, Definition
from longshore.core.documents import submitted_document_key
from longshore.core.ids import is_request_id, job_id_of, task_id_of
from longshore.core.jobs import job as jobs
from longshore.core.jobs.dag import PROBLEM_LIMIT
from longshore.core.jobs.graph import Addition, Graph, request_hash
from longshore.core.jobs.numbers import NumberSet
from longshore.core.jobs.planning import (
    PlannedTask,
    PlanTarget,
    SubmissionPlan,
    initial_target,
    plan_tasks,
)
from longshore.core.jobs.submission import (
    JobRequest,
    TaskRequest,
    canonical_hash,
    canonical_text,
    read_added_tasks,
    read_job,
    referenced_definitions,
)
from longshore.core.tasks import task as tasks
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.rows import Intent, IntentKind, JobRow, JobSpec
from longshore.errors import (
    AlreadyExists,
    InvalidJob,
    NotFound,
    Problem,
    UsageError,
    VersionConflict,
)
from longshore.ports.backend import Backend
from longshore.services.dispatcher import Dispatcher
from longshore.services.spill import DocumentStore
from longshore.services.transitions import Transitions, refusal_error

_MICROSECOND = timedelta(microseconds=1)


class TaskCreation:
    """Creates the rows of planned tasks."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        retry: RetryPolicy,
        task_limit: int,
        input_limit_bytes: int,
    ) -> None:
        self._backend = backend
        self._transitions = transitions
        self._input_limit_bytes = input_limit_bytes
        self.retry = retry
        self.task_limit = task_limit

    async def find_definitions(
        self, tenant: str, document: Any, own: Collection[str] = ()
    ) -> tuple[dict[str, Definition], list[Problem]]:
        """Returns the stored definitions that the document names, and the unknown names.

        Args:
            own: Names of definitions that come with the document.
        """
        definitions: dict[str, Definition | None] = {}
        unknown: list[Problem] = []
        for path, name in referenced_definitions(document):
            if name not in definitions:
                stored = await self._backend.definitions.get(tenant, name)
                definitions[name] = stored or BUILTIN_DEFINITIONS.get(name)
            if definitions[name] is None and name not in own:
                unknown.append(Problem(path=path, message=f"no definition is called {name!r}"))
            if len(unknown) == PROBLEM_LIMIT:
                break
        return {name: item for name, item in definitions.items() if item is not None}, unknown

    async def load_versions(self, tenant: str, versions: dict[str, int]) -> dict[str, Definition]:
        """Returns the definitions in the versions with which the tasks were accepted."""
        definitions = {}
        for name, version in versions.items():
            stored = (
                await self._backend.definitions.get(tenant, name, version=version)
                if version
                else BUILTIN_DEFINITIONS.get(name)
            )
            if stored is None:
                message = f"version {version} of definition {name!r} is gone"
                raise UsageError(message)
            definitions[name] = stored
        return definitions

    def check_input_sizes(self, planned: SubmissionPlan) -> None:
        """Raises ``InvalidJob`` with all inputs that are too large."""
        limit = self._input_limit_bytes
        large = [
            Problem(
                path=f"tasks[{place}].input",
                message=f"has {task.spec.input.size} bytes as JSON; at most {limit} are allowed",
            )
            for place, task in enumerate(planned.tasks)
            if task.spec.input is not None and task.spec.input.size > limit
        ]
        if large:
            raise InvalidJob(large)

    def intent_body(self, document: Any, definitions: dict[str, Definition]) -> dict[str, Any]:
        """Returns the body of an intent, from which another process can make the same plan."""
        return {
            "document": json.loads(canonical_text(document)),
            "versions": {name: item.version for name, item in definitions.items()},
            # From the current settings: all tasks of the job must have the same number of attempts.
            "retry": {
                "maxAttempts": self.retry.max_attempts,
                "baseUs": self.retry.base // _MICROSECOND,
                "capUs": self.retry.cap // _MICROSECOND,
            },
        }

    async def store_documents(self, planned: SubmissionPlan) -> None:
        """Store the documents that the rows refer to."""
        for key, data in planned.blobs:
            await self._backend.blobs.put(key, data)

    async def create_tasks(self, intent: Intent, planned: SubmissionPlan) -> int:
        """Create the rows that do not exist yet, one by one, and return how many."""

        # Waiting tasks first: a root may complete before the next row is written, and the
        # dispatcher must then find its dependents.
        def waits(task: PlannedTask) -> bool:
            return not task.awaits

        created = 0
        for task in sorted(planned.tasks, key=waits):
            change = tasks.create(
                task.spec,
                task.awaits,
                now=self._backend.clock.now(),
                change_id=f"{intent.id}-{task.spec.number}",
            )
            try:
                await self._transitions.commit(change)
            except VersionConflict:
                continue  # it exists, and may have changed since
            created += 1
        return created


def retry_policy_in(body: dict[str, Any]) -> RetryPolicy:
    """Returns the retry policy of a definition."""
    document = body["retry"]
    return RetryPolicy(
        max_attempts=document["maxAttempts"],
        base=document["baseUs"] * _MICROSECOND,
        cap=document["capUs"] * _MICROSECOND,
    )


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
        own_problems: Sequence[Problem] = (),
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
        own_problems: Sequence[Problem],
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
