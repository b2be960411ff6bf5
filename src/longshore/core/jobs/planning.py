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
    before = target.graph
    keys = (*before.keys, *(request.key for request in requests))
    numbers = {key: number for number, key in enumerate(keys)}
    parents = [tuple(numbers[parent] for parent in request.parents) for request in requests]
    planner = _Planner(target, definitions, retry, numbers)
    for request in requests:
        for parent in request.parents:
            planner.dependents.setdefault(parent, []).append(request.key)
    tasks = tuple(
        PlannedTask(planner.spec(request), NumberSet(above) - target.completed)
        for request, above in zip(requests, parents, strict=True)
    )
    names = (*before.names, *(request.definition for request in requests))
    summaries = tuple(
        TaskSummary(
            key=request.key,
            name=request.definition,
            depends_on=request.parents,
            input=task.spec.input,
        )
        for request, task in zip(requests, tasks, strict=True)
    )
    return SubmissionPlan(
        tasks=tasks,
        summaries=summaries,
        graph=Graph(keys, names, (*before.parents, *parents), before.additions),
        blobs=tuple(planner.blobs),
    )


@dataclass(slots=True)
class _Planner:
    target: PlanTarget
    definitions: Mapping[str, Definition]
    retry: RetryPolicy
    numbers: Mapping[str, int]  # by key
    dependents: dict[str, list[str]] = field(default_factory=dict)  # by key
    blobs: list[tuple[str, bytes]] = field(default_factory=list)

    def spec(self, request: TaskRequest) -> TaskSpec:
        job, key, delay = self.target.job, request.key, request.delay
        definition = self.definitions[request.definition]
        retry = definition.retry or self.retry
        if request.max_attempts is not None:
            retry = replace(retry, max_attempts=request.max_attempts)
        return TaskSpec(
            id=task_id_of(job.id, key),
            tenant=job.tenant,
            app=job.app,
            job_id=job.id,
            key=key,
            number=self.numbers[key],
            definition=definition.name,
            definition_version=definition.version,
            created_at=self.target.requested_at,
            queue=request.queue or definition.queue,
            priority=definition.priority if request.priority is None else request.priority,
            retry=retry,
            retry_on_timeout=definition.retry_on_timeout,
            requires_review=definition.requires_review,
            not_before=request.run_at if delay is None else self.target.requested_at + delay,
            input=self._document(key, "input", request.input),
            parents=self._document(key, "parents", request.parents or None),
            dependents=self._document(key, "dependents", self.dependents.get(key)),
        )

    def _document(self, key: str, name: str, value: Any) -> Document | None:
        if value is None:
            return None
        target = self.target
        blob_key = submitted_document_key(target.job.id, target.body_hash, f"{key}/{name}")
        document, data = make_document(value, blob_key)
        if data is not None:
            self.blobs.append((blob_key, data))
        return document
