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

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from longshore.core.api_keys import NO_LIMITS, WorkLimits
from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, Definition
from longshore.core.documents import Document, submitted_document_key
from longshore.core.events.codec import to_ms
from longshore.core.ids import check_request_id, job_id_of, new_request_id, task_id_of
from longshore.core.jobs import job as jobs
from longshore.core.jobs.graph import Addition, Graph, graph_of_one_task, request_hash
from longshore.core.jobs.numbers import NumberSet
from longshore.core.jobs.planning import (
    PlanTarget,
    SubmissionPlan,
    initial_target,
    plan_tasks,
)
from longshore.core.jobs.submission import (
    PROBLEM_LIMIT,
    TaskRequest,
    builtin_refused,
    canonical_hash,
    canonical_text,
    override_problems,
    read_job,
    referenced_definitions,
    unknown_definition,
)
from longshore.core.records import value
from longshore.core.tasks import task as tasks
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.rows import Intent, IntentKind, JobRow, JobSpec
from longshore.core.tasks.states import JobState
from longshore.errors import (
    AlreadyExists,
    BackendError,
    InvalidJob,
    JobRemoved,
    LongshoreError,
    Problem,
    UsageError,
    VersionConflict,
)
from longshore.ports.backend import Backend
from longshore.ports.ledger import JobCreation
from longshore.services.dispatcher import Dispatcher
from longshore.services.reads import get_definition, was_removed
from longshore.services.spill import DocumentStore
from longshore.services.transitions import Transitions, refusal_error

logger = logging.getLogger(__name__)

# Rows of one step: a longer transaction would keep other writers waiting.
_ROWS_OF_A_STEP = 1000
# Submits at the same time, on a ledger that takes one row in a step.
_CONCURRENT_SUBMITS = 16
_REQUESTED_JOB = "a job with request id"
_NONE: Mapping[str, Definition] = MappingProxyType({})


@value
class AcceptedTasks:
    """The answer to a client that submitted a job or added tasks."""

    job: JobSpec
    state: JobState
    total: int  # of the job's tasks
    keys: tuple[str, ...]  # of the job's tasks without dependencies, or of the added tasks
    created: bool  # False: the same request had been accepted before


class Submission(NamedTuple):
    """A job that a client submits."""

    document: Any
    request_id: str | None = None  # None: a new one is drawn
    own: Sequence[Definition] = ()  # come with the job; they are stored first, if all is valid
    own_problems: Sequence[Problem] = ()  # what is wrong with these definitions


class _NewTasks(NamedTuple):
    """A valid request, planned: the tasks of a new job, or tasks that are added to a job."""

    target: PlanTarget
    planned: SubmissionPlan
    document: Any
    definitions: dict[str, Definition]

    def job_accepted(self, state: JobState = JobState.RUNNING) -> AcceptedTasks:
        job, total = self.target.job, len(self.planned.tasks)
        logger.info("job.accepted", extra={"job_id": job.id, "tasks": total})
        keys = tuple(self.planned.roots)
        return AcceptedTasks(job=job, state=state, total=total, keys=keys, created=True)


@dataclass(frozen=True, kw_only=True)
class Producer:
    """Creates jobs and tasks from the documents that describe them.

    Args:
        retry: The retry policy of tasks whose definition sets none.
        task_limit: How many tasks a job may have.
        app: The name of the application, part of every event.
    """

    backend: Backend
    transitions: Transitions
    documents: DocumentStore
    dispatcher: Dispatcher
    retry: RetryPolicy
    task_limit: int
    input_limit_bytes: int
    app: str

    def new_request_id(self) -> str:
        """Draw a request id."""
        digest = hashlib.blake2b(self.transitions.new_id().encode(), digest_size=9).digest()
        return new_request_id(to_ms(self.backend.clock.now()), int.from_bytes(digest, "big"))

    async def submit(
        self,
        tenant: str,
        request_id: str | None,
        document: Any,
        *,
        limits: WorkLimits = NO_LIMITS,
    ) -> AcceptedTasks:
        """Accept a job. The same request id always gives the same job.

        Args:
            request_id: None: a new one is drawn.
            limits: What the caller may start.

        Raises:
            NotAllowed: the caller may not start one of its tasks.
            InvalidJob: the document is not a job; every problem is listed, nothing was stored.
            AlreadyExists: the request id belongs to a job with another document, or (JobRemoved)
                to one that was removed.
            UsageError: the request id is not valid.
        """
        (answer,) = await self.submit_many(
            tenant, [Submission(document, request_id)], limits=limits
        )
        if isinstance(answer, LongshoreError):
            raise answer
        return answer

    async def submit_many(
        self,
        tenant: str,
        submissions: Sequence[Submission],
        *,
        limits: WorkLimits = NO_LIMITS,
    ) -> list[AcceptedTasks | LongshoreError]:
        """Accept many jobs. Returns for each one what ``submit`` returns or raises, in order.

        On a ledger that commits many rows in one step, many jobs are one step, of a bounded size.
        """
        if not self.backend.ledger.atomic:
            semaphore = asyncio.Semaphore(_CONCURRENT_SUBMITS)
            if len(submissions) == 1:
                return [await self._submit_alone(tenant, submissions[0], limits, semaphore)]
            alone = [self._submit_alone(tenant, item, limits, semaphore) for item in submissions]
            return await asyncio.gather(*alone)
        definitions: dict[str, Definition] = {}
        answers: dict[int, AcceptedTasks | LongshoreError] = {}
        batch: dict[int, _NewTasks] = {}
        rows = 0
        try:
            for number, submission in enumerate(submissions):
                try:
                    job = await self._prepare(tenant, submission, definitions, limits)
                except UsageError as error:
                    job = error
                if not isinstance(job, _NewTasks):
                    answers[number] = job
                    continue
                batch[number] = job
                rows += 1 + len(job.planned.tasks)
                if rows >= _ROWS_OF_A_STEP:
                    answers |= await self._create_jobs(batch)
                    batch, rows = {}, 0
            answers |= await self._create_jobs(batch)
        except BackendError as error:
            return [answers.get(number, error) for number in range(len(submissions))]
        return [answers[number] for number in range(len(submissions))]

    async def _submit_alone(
        self,
        tenant: str,
        submission: Submission,
        limits: WorkLimits,
        semaphore: asyncio.Semaphore,
    ) -> AcceptedTasks | LongshoreError:
        async with semaphore:
            try:
                job = await self._prepare(tenant, submission, {}, limits)
                return await self._write_job(job) if isinstance(job, _NewTasks) else job
            except (UsageError, BackendError) as error:
                return error

    async def _prepare(
        self,
        tenant: str,
        submission: Submission,
        named: dict[str, Definition],
        limits: WorkLimits,
    ) -> AcceptedTasks | LongshoreError | _NewTasks:
        """Returns what a submission creates, or the answer if the request id was used before.

        Args:
            named: Definitions that were read or stored for other submissions; more are added.

        Raises:
            UsageError: it is refused.
        """
        document, request_id, own = submission.document, submission.request_id, submission.own
        if request_id is not None:
            check_request_id(request_id)
        own_by_name = {definition.name: definition for definition in own}
        problems = list(submission.own_problems)
        try:
            request = read_job(document, limit=self.task_limit)
        except InvalidJob as invalid:
            problems += invalid.problems
        if problems:
            # All problems are reported at once, also those that only the store can find.
            references = referenced_definitions(document)
            await self._find_definitions(tenant, references, named, limits, own_by_name, problems)
        body_hash = canonical_hash(document)
        job_id = job_id_of(tenant, request_id or (drawn := self.new_request_id()))
        # No job has an id that was just drawn.
        if request_id and (existing := await self.backend.ledger.get_job(job_id)):
            roots = tuple(task.key for task in request.tasks if not task.parents)
            return _previous_job(existing, roots, body_hash)
        references = [
            (index, task.definition, task.input) for index, task in enumerate(request.tasks)
        ]
        await self._find_definitions(tenant, references, named, limits, own_by_name)
        _check_limits(limits, request.tasks, {**named, **own_by_name})
        for definition in own:
            newest = named.get(definition.name)
            stored = await self._store_definition(tenant, definition, newest)
            named[definition.name] = stored
        spec = JobSpec(
            id=job_id,
            tenant=tenant,
            app=request.app or self.app,
            request_id=request_id or drawn,
            body_hash=body_hash,
            created_at=self.backend.clock.now(),
            name=request.name,
            budget=request.budget,
        )
        return self._plan(initial_target(spec), request.tasks, document, named)

    async def _create_jobs(
        self, batch: Mapping[int, _NewTasks]
    ) -> dict[int, AcceptedTasks | LongshoreError]:
        """Create jobs with all of their tasks in one step."""
        creations = [await self._creation_of(job) for job in batch.values()]
        conflicts = await self.transitions.create_jobs(creations) if creations else []
        answers: dict[int, AcceptedTasks | LongshoreError] = {}
        for (number, job), conflict in zip(batch.items(), conflicts, strict=True):
            answers[number] = (
                await self._find_previous(job, conflict) if conflict else job.job_accepted()
            )
        return answers

    async def _creation_of(self, job: _NewTasks) -> JobCreation:
        """Store the documents of a job. Returns what its rows are made of."""
        spec, plan = job.target.job, job.planned
        for key, data in plan.blobs:
            await self.backend.blobs.put(key, data)
        graph, change_id = await self._store_graph(spec, plan), self.transitions.new_id()
        return JobCreation(spec=spec, plan=plan, graph=graph, change_id=change_id)

    async def _find_previous(
        self, job: _NewTasks, conflict: VersionConflict
    ) -> AcceptedTasks | LongshoreError:
        """Returns the answer to a submit that another one with the same request id preceded."""
        spec = job.target.job
        existing = await self.backend.ledger.get_job(spec.id)
        if existing is None:
            if await was_removed(self.backend, spec.id):
                return JobRemoved(_REQUESTED_JOB, spec.request_id)
            return conflict
        return _previous_job(existing, tuple(job.planned.roots), spec.body_hash)

    async def _find_definitions(
        self,
        tenant: str,
        references: Iterable[tuple[int, str, Any]],
        named: dict[str, Definition],
        limits: WorkLimits,
        own: Mapping[str, Definition] = _NONE,
        problems: Sequence[Problem] = (),
    ) -> None:
        """Add the stored definitions that tasks of a document name, and check the tasks' inputs.

        Args:
            references: The positions of the tasks, the names and the inputs.
            named: Those that were read before; more are added.
            own: Definitions that come with the document.
            problems: What else is wrong with the document.

        Raises:
            InvalidJob: a definition is unknown or does not allow an input, or there are other
                problems.
        """
        invalid: list[Problem] = []
        for index, name, task_input in references:
            definition = named.get(name)
            if definition is None:
                stored = await self.backend.definitions.get(tenant, name)
                definition = stored or BUILTIN_DEFINITIONS.get(name)
                if definition is not None:
                    named[name] = definition
            definition = own.get(name, definition)
            if definition is None:
                invalid.append(unknown_definition(index, name))
            elif BUILTIN_DEFINITIONS.get(name) is definition and not limits.builtins:
                invalid.append(builtin_refused(index, name))
            else:
                invalid += override_problems(index, definition, task_input)
            if len(invalid) >= PROBLEM_LIMIT:
                break
        if problems or invalid:
            raise InvalidJob([*problems, *invalid])

    async def _store_definition(
        self, tenant: str, definition: Definition, newest: Definition | None
    ) -> Definition:
        store = self.backend.definitions
        newest = newest or await store.get(tenant, definition.name)
        # Usually it is stored already, and a read is far cheaper than a write.
        if newest is not None and newest.version and newest.content == definition.content:
            return newest
        return await store.put(tenant, definition)

    def _plan(
        self,
        target: PlanTarget,
        requests: Sequence[TaskRequest],
        document: Any,
        definitions: dict[str, Definition],
    ) -> _NewTasks:
        """Returns a new request with its plan.

        Raises:
            InvalidJob: with all inputs that are too large.
        """
        planned = plan_tasks(target, requests, definitions, retry=self.retry)
        limit = self.input_limit_bytes
        large = [
            Problem(
                path=f"tasks[{index}].input",
                message=f"has {task.input.size} bytes as JSON; at most {limit} are allowed",
            )
            for index, task in enumerate(planned.tasks)
            if task.input is not None and task.input.size > limit
        ]
        if large:
            raise InvalidJob(large)
        return _NewTasks(target, planned, document, definitions)

    async def _store_graph(self, spec: JobSpec, planned: SubmissionPlan) -> Document:
        if len(planned.tasks) == 1:
            return graph_of_one_task(planned.tasks[0].key, planned.tasks[0].kind.definition)
        key = submitted_document_key(spec.id, spec.body_hash, "graph")
        return await self.documents.store(planned.graph.to_json(), key)

    async def _write_job(self, job: _NewTasks) -> AcceptedTasks | LongshoreError:
        """Create a job, then its tasks one by one."""
        spec, planned, change_id = job.target.job, job.planned, self.transitions.new_id()
        graph = await self._store_graph(spec, planned)
        intent = await self._store_intent(IntentKind.CREATE, job, change_id, round=1)
        change = jobs.create(
            spec,
            planned.summaries,
            graph,
            now=spec.created_at,
            change_id=change_id,
            intent=intent,
        )
        try:
            await self._commit(change, planned, spec.created_at)
        except VersionConflict as conflict:
            return await self._find_previous(job, conflict)
        row = None
        # The end of a single task closes the intent, which saves most jobs a write.
        if len(planned.tasks) > 1:
            row = await self.transitions.close_intent(change.row.id, intent)
        # If a sweeper has closed the intent meanwhile, the job is complete too.
        return job.job_accepted((row or change.row).state)

    async def _store_intent(
        self, kind: IntentKind, new: _NewTasks, change_id: str, *, round: int
    ) -> Intent:
        """Returns an intent, from whose stored body another process can make the same plan."""
        target = new.target
        body = {
            "document": json.loads(canonical_text(new.document)),
            "versions": {name: item.version for name, item in new.definitions.items()},
            # From the current settings: all tasks of the job must have the same number of attempts.
            "retry": msgspec.to_builtins(self.retry),
            "first": len(target.graph.keys),
            "at": target.requested_at.isoformat(),
            "bodyHash": target.body_hash,
        }
        key = submitted_document_key(target.job.id, target.body_hash, f"request-{change_id}")
        return Intent(
            id=change_id,
            kind=kind,
            numbers=NumberSet(task.number for task in new.planned.tasks),
            round=round,
            by="producer",
            body=await self.documents.store(body, key),
        )

    async def _commit(self, change: jobs.JobChange, planned: SubmissionPlan, now: datetime) -> None:
        """Store the plan's documents, commit the job's row and create its tasks.

        The rows are committed in one step if the ledger can.

        Raises:
            VersionConflict: the job has changed meanwhile; nothing was written.
        """
        for key, data in planned.blobs:
            await self.backend.blobs.put(key, data)
        change_id = change.row.change_id
        created: list[tasks.TaskChange] = []
        if self.backend.ledger.atomic:
            created = [
                tasks.create(task.spec, task.awaits, now=now, change_id=change_id)
                for task in planned.tasks
            ]
        await self.transitions.commit(await self.documents.spill(change), *created)
        if not self.backend.ledger.atomic:
            await self._create_tasks(change_id, planned)

    async def _create_tasks(self, intent_id: str, planned: SubmissionPlan) -> int:
        """Create the rows that do not exist yet, one by one, and return how many."""
        created = 0
        # Waiting tasks first: a root may complete before the next row is written, and the
        # dispatcher must then find its dependents.
        for task in sorted(planned.tasks, key=lambda task: not task.awaits):
            change = tasks.create(
                task.spec,
                task.awaits,
                now=self.backend.clock.now(),
                change_id=f"{intent_id}-{task.number}",
            )
            try:
                await self.transitions.commit(change)
            except VersionConflict:
                continue  # it exists, and may have changed since
            created += 1
        return created

    async def finish_creation(self, job: JobRow, intent: Intent) -> bool:
        """Finish a submit or an addition. Returns False if nothing was left to do."""
        body = await self.documents.load(intent.body)
        planned = await self._plan_again(job, body)
        created = 0
        # A single task usually exists: its submit leaves the intent open until its end.
        if len(planned.tasks) > 1 or not await self.transitions.read(planned.tasks[0].spec.id):
            for key, data in planned.blobs:
                await self.backend.blobs.put(key, data)
            created = await self._create_tasks(intent.id, planned)
        closed = await self._close_intent(job, intent)
        return closed is not None and (created > 0 or intent.kind is IntentKind.ADD)

    async def _plan_again(self, job: JobRow, body: dict[str, Any]) -> SubmissionPlan:
        """Returns the same plan as when the request was accepted."""
        document, first = body["document"], body["first"]
        graph = (await self.documents.load_graph(job)).truncated(first)
        # An accepted request is carried out even if the limit has been lowered since.
        limit = first + len(document["tasks"])
        requests = read_job(document, limit=limit, existing=graph.keys or None).tasks
        definitions: dict[str, Definition] = {}
        for name, version in body["versions"].items():
            stored = await get_definition(self.backend, job.spec.tenant, name, version)
            if stored is None:
                raise UsageError(f"version {version} of definition {name!r} is gone")
            definitions[name] = stored
        target = PlanTarget(
            job=job.spec,
            requested_at=datetime.fromisoformat(body["at"]),
            body_hash=body["bodyHash"],
            graph=graph,
            completed=job.completed,
        )
        retry = msgspec.convert(body["retry"], RetryPolicy)
        return plan_tasks(target, requests, definitions, retry=retry)

    async def add_tasks(
        self,
        tenant: str,
        job_id: str,
        request_id: str | None,
        document: Any,
        *,
        limits: WorkLimits = NO_LIMITS,
    ) -> AcceptedTasks:
        """Add tasks to a job. A repeated request id adds them once; None: a new one is drawn.

        Raises:
            NotFound: the tenant has no such job.
            CommandRefused: the job has completed, was cancelled or is being cancelled.
            InvalidJob: the document does not add tasks; every problem is listed.
            AlreadyExists: the request id has added other tasks to this job.
            NotAllowed: the caller may not start one of the tasks.
            UsageError: the request id is not valid.
        """
        if request_id is None:
            request_id = self.new_request_id()
        check_request_id(request_id)
        token = request_hash(request_id)
        while True:
            job = await self.transitions.get_job(tenant, job_id)
            graph = await self.documents.load_graph(job)
            if (existing := graph.find_addition(token)) is not None:
                return _previous_addition(job, graph, existing, request_id, document)
            problems: Sequence[Problem] = ()
            try:
                requests = read_job(document, limit=self.task_limit, existing=graph.keys).tasks
            except InvalidJob as invalid:
                problems = invalid.problems
            definitions: dict[str, Definition] = {}
            references = referenced_definitions(document)
            await self._find_definitions(tenant, references, definitions, limits, problems=problems)
            _check_limits(limits, requests, definitions)
            body_hash = canonical_hash(document)
            target = PlanTarget(
                job=job.spec,
                requested_at=self.backend.clock.now(),
                # Of two concurrent requests, one commits; the other is planned again.
                body_hash=request_hash(token + body_hash),
                graph=graph,
                completed=job.completed,
            )
            new = self._plan(target, requests, document, definitions)
            addition = Addition(token, body_hash, job.total, len(requests))
            row = await self._commit_addition(job, new, addition)
            if row is not None:
                keys = tuple(task.key for task in new.planned.tasks)
                logger.info("tasks.added", extra={"job_id": job_id, "tasks": len(keys)})
                return _accepted(row, keys, created=True)

    async def _commit_addition(
        self, job: JobRow, new: _NewTasks, addition: Addition
    ) -> JobRow | None:
        """Returns the job's row with the tasks; None if it has changed meanwhile."""
        target, planned, change_id = new.target, new.planned, self.transitions.new_id()
        now = target.requested_at
        grown = planned.graph.with_addition(addition)
        numbers = NumberSet(task.number for task in planned.tasks)
        parents = NumberSet(parent for parents in grown.parents[job.total :] for parent in parents)
        command = jobs.AddTasks(
            tasks=planned.summaries,
            graph=job.graph,
            blocked=grown.descendants_of(job.failed | job.cancelled) & numbers,
            with_added_dependents=parents - numbers,
        )
        _apply(job, command, now, change_id)  # it may be refused: before anything is written
        key = submitted_document_key(job.id, target.body_hash, f"graph-{job.version}")
        graph = await self.documents.store(grown.to_json(), key)
        intent = None
        if not self.backend.ledger.atomic:
            intent = await self._store_intent(IntentKind.ADD, new, change_id, round=job.round)
        change = _apply(job, replace(command, graph=graph, intent=intent), now, change_id)
        try:
            await self._commit(change, planned, now)
        except VersionConflict:
            return None
        if intent is None:
            return change.row
        return await self._close_intent(change.row, intent) or change.row

    async def _close_intent(self, job: JobRow, intent: Intent) -> JobRow | None:
        """Close the intent, then notify the new tasks of parents that completed meanwhile.

        In this order: an end that is recorded later finds the new tasks, and all earlier ends are
        in the row that this returns.
        """
        row = await self.transitions.close_intent(job.id, intent)
        if row is not None:
            graph = await self.documents.load_graph(row)
            await self.dispatcher.notify_waiting(
                [
                    task_id_of(row.id, graph.keys[number])
                    for number in intent.numbers
                    if row.completed & NumberSet(graph.parents[number])
                ]
            )
        return row


def _check_limits(
    limits: WorkLimits, requests: Sequence[TaskRequest], definitions: Mapping[str, Definition]
) -> None:
    if limits:
        limits.check(
            (task.definition, task.queue or definitions[task.definition].queue) for task in requests
        )


def _previous_job(
    existing: JobRow, roots: tuple[str, ...], body_hash: str
) -> AcceptedTasks | AlreadyExists:
    if existing.spec.body_hash != body_hash:
        return AlreadyExists(_REQUESTED_JOB, existing.spec.request_id)
    return _accepted(existing, roots, created=False)


def _accepted(job: JobRow, keys: tuple[str, ...], *, created: bool) -> AcceptedTasks:
    return AcceptedTasks(job=job.spec, state=job.state, total=job.total, keys=keys, created=created)


def _apply(job: JobRow, command: jobs.AddTasks, now: datetime, change_id: str) -> jobs.JobChange:
    decision = jobs.apply(job, command, now=now, change_id=change_id)
    if isinstance(decision, Refusal):
        raise refusal_error(job.id, decision)
    return decision


def _previous_addition(
    job: JobRow, graph: Graph, existing: Addition, request_id: str, document: Any
) -> AcceptedTasks:
    try:
        same = canonical_hash(document) == existing.body_hash
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise AlreadyExists("an addition with request id", request_id)
    keys = graph.keys[existing.first_number : existing.first_number + existing.count]
    return _accepted(job, keys, created=False)
