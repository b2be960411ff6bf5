"""Plans the rows of submitted tasks: their numbers, documents and awaited parents.

The same request and definitions always give the same plan, so that any process can complete a
submit that another process began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from longshore.core.definitions.definition import Definition
from longshore.core.documents import Document, make_document, submitted_document_key
from longshore.core.events.types import TaskSummary
from longshore.core.ids import task_id_of
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.jobs.submission import TaskRequest
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.rows import JobSpec, TaskSpec


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A row to create, and the parents it awaits."""

    spec: TaskSpec
    awaits: NumberSet


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionPlan:
    """Everything that a submit writes, except the job's row."""

    tasks: tuple[PlannedTask, ...]
    summaries: tuple[TaskSummary, ...]
    graph: Graph
    blobs: tuple[tuple[str, bytes], ...]  # stored before a row refers to them

    @property
    def roots(self) -> list[str]:
        """Keys of the tasks that may run at once."""
        return [task.spec.key for task in self.tasks if not task.awaits]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTarget:
    """The job to which tasks are added, as it was before."""

    job: JobSpec
    requested_at: datetime
    body_hash: str  # of the request
    graph: Graph = field(default_factory=Graph)
    completed: NumberSet = NO_NUMBERS


def initial_target(job: JobSpec) -> PlanTarget:
    """Returns the target of a job's first tasks."""
    return PlanTarget(job=job, requested_at=job.created_at, body_hash=job.body_hash)


def plan_tasks(
    target: PlanTarget,
    requests: Sequence[TaskRequest],
    definitions: Mapping[str, Definition],
    *,
    retry: RetryPolicy,
) -> SubmissionPlan:
    """Returns the plan of a valid request; ``retry`` is for definitions without a policy."""
    planner = _Planner(target, requests, definitions, retry)
    tasks = tuple(planner.task(index) for index in range(len(requests)))
    before = target.graph
    graph = Graph(
        (*before.keys, *(request.key for request in requests)),
        (*before.names, *(request.definition for request in requests)),
        (*before.parents, *(planner.parents_of(index) for index in range(len(requests)))),
        before.additions,
    )
    summaries = tuple(
        TaskSummary(
            key=request.key,
            name=request.definition,
            depends_on=request.parents,
            input=task.spec.input,
        )
        for request, task in zip(requests, tasks, strict=True)
    )
    return SubmissionPlan(tasks=tasks, summaries=summaries, graph=graph, blobs=tuple(planner.blobs))


class _Planner:
    def __init__(
        self,
        target: PlanTarget,
        requests: Sequence[TaskRequest],
        definitions: Mapping[str, Definition],
        retry: RetryPolicy,
    ) -> None:
        self._target = target
        self._job = target.job
        self._requests = requests
        self._definitions = definitions
        self._retry = retry
        keys = (*target.graph.keys, *(request.key for request in requests))
        self._numbers = {key: number for number, key in enumerate(keys)}
        self._dependents: dict[str, list[str]] = {}
        for request in requests:
            for parent in request.parents:
                self._dependents.setdefault(parent, []).append(request.key)
        self.blobs: list[tuple[str, bytes]] = []

    def parents_of(self, index: int) -> tuple[int, ...]:
        return tuple(self._numbers[parent] for parent in self._requests[index].parents)

    def task(self, index: int) -> PlannedTask:
        request, job = self._requests[index], self._job
        definition = self._definitions[request.definition]
        retry = definition.retry or self._retry
        if request.max_attempts is not None:
            retry = replace(retry, max_attempts=request.max_attempts)
        spec = TaskSpec(
            id=task_id_of(job.id, request.key),
            tenant=job.tenant,
            app=job.app,
            job_id=job.id,
            key=request.key,
            number=self._numbers[request.key],
            definition=definition.name,
            definition_version=definition.version,
            created_at=self._target.requested_at,
            queue=request.queue or definition.queue,
            priority=definition.priority if request.priority is None else request.priority,
            retry=retry,
            retry_on_timeout=definition.retry_on_timeout,
            requires_review=definition.requires_review,
            not_before=self._not_before(request),
            input=self._document(request.key, "input", request.input),
            parents=self._document(request.key, "parents", request.parents or None),
            dependents=self._document(request.key, "dependents", self._dependents.get(request.key)),
        )
        return PlannedTask(spec, NumberSet(self.parents_of(index)) - self._target.completed)

    def _not_before(self, request: TaskRequest) -> datetime | None:
        if request.delay is not None:
            return self._target.requested_at + request.delay
        return request.run_at

    def _document(self, key: str, name: str, value: Any) -> Document | None:
        if value is None:
            return None
        blob_key = submitted_document_key(self._job.id, self._target.body_hash, f"{key}/{name}")
        document, data = make_document(value, blob_key)
        if data is not None:
            self.blobs.append((blob_key, data))
        return document
