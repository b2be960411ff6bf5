"""From a request to rows: numbers, documents, who awaits whom.

Pure and repeatable: the same request and definitions give the same plan, so whoever finishes a
half-done submit arrives at the same rows.
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
    """A row to be created, and the parents it awaits."""

    spec: TaskSpec
    awaits: NumberSet


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionPlan:
    """All that a submit writes, but for the job's own row."""

    tasks: tuple[PlannedTask, ...]
    summaries: tuple[TaskSummary, ...]
    graph: Graph
    blobs: tuple[tuple[str, bytes], ...]  # to be stored before any row refers to them

    @property
    def roots(self) -> list[str]:
        """Keys of the tasks that may run at once."""
        return [task.spec.key for task in self.tasks if not task.awaits]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTarget:
    """Where tasks are put: the job as it was before them."""

    job: JobSpec
    requested_at: datetime  # when they were asked for
    body_hash: str  # of what asked for them
    graph: Graph = field(default_factory=Graph)
    completed: NumberSet = NO_NUMBERS


def initial_target(job: JobSpec) -> PlanTarget:
    """Where a job's first tasks are put."""
    return PlanTarget(job=job, requested_at=job.created_at, body_hash=job.body_hash)


def plan_tasks(
    target: PlanTarget,
    requests: Sequence[TaskRequest],
    definitions: Mapping[str, Definition],
    *,
    retry: RetryPolicy,
) -> SubmissionPlan:
    """The rows for a valid request; ``retry`` is for definitions that say nothing of it."""
    planner = _Planner(target, requests, definitions, retry)
    tasks = tuple(planner.task(place) for place in range(len(requests)))
    before = target.graph
    graph = Graph(
        (*before.keys, *(request.key for request in requests)),
        (*before.names, *(request.definition for request in requests)),
        (*before.parents, *(planner.parents_of(place) for place in range(len(requests)))),
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
        place = submitted_document_key(self._job.id, self._target.body_hash, f"{key}/{name}")
        document, data = make_document(value, place)
        if data is not None:
            self.blobs.append((place, data))
        return document
