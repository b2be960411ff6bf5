"""Plans the rows of submitted tasks: their numbers, documents and awaited parents.

The same request and definitions always give the same plan, so that any process can complete a
submit that another process began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from longshore.core.definitions.definition import Definition
from longshore.core.documents import Document, make_document, submitted_document_key
from longshore.core.events.types import TaskSummary
from longshore.core.ids import task_id_of
from longshore.core.jobs.graph import NO_TASKS, Graph
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.jobs.submission import TaskRequest
from longshore.core.records import value
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.rows import JobSpec, TaskKind, TaskSpec


@value
class PlanTarget:
    """The job to which tasks are added, as it was before."""

    job: JobSpec
    requested_at: datetime
    body_hash: str  # of the request
    graph: Graph = NO_TASKS
    completed: NumberSet = NO_NUMBERS


class PlannedTask(NamedTuple):
    """A row to create."""

    target: PlanTarget
    number: int
    key: str
    kind: TaskKind
    input: Document | None
    parents: Document | None
    dependents: Document | None
    not_before: datetime | None
    awaits: NumberSet  # numbers of the parents that have not completed

    @property
    def spec(self) -> TaskSpec:
        """The task as it was submitted."""
        job = self.target.job
        return TaskSpec(
            id=task_id_of(job.id, self.key),
            tenant=job.tenant,
            job_id=job.id,
            key=self.key,
            number=self.number,
            created_at=self.target.requested_at,
            not_before=self.not_before,
            input=self.input,
            parents=self.parents,
            dependents=self.dependents,
            **self.kind.fields,
        )


@value
class SubmissionPlan:
    """Everything that a submit writes, except the job's row."""

    requests: Sequence[TaskRequest]
    tasks: tuple[PlannedTask, ...]
    graph: Graph
    blobs: tuple[tuple[str, bytes], ...]  # stored before a row refers to them

    @property
    def roots(self) -> list[str]:
        """Keys of the tasks that may run at once."""
        return [task.key for task in self.tasks if not task.awaits.bits]

    @property
    def summaries(self) -> tuple[TaskSummary, ...]:
        """The tasks as the event describes them."""
        return tuple(
            TaskSummary(
                key=request.key,
                name=request.definition,
                depends_on=request.parents,
                input=task.input,
            )
            for request, task in zip(self.requests, self.tasks, strict=True)
        )


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
    keys = (*before.keys, *[request.key for request in requests])
    numbers = {key: number for number, key in enumerate(keys)}
    planner = _Planner(target, definitions, retry)
    dependents: dict[str, list[str]] = {}
    for request in requests:
        for parent in request.parents:
            dependents.setdefault(parent, []).append(request.key)
    parents = [tuple([numbers[parent] for parent in request.parents]) for request in requests]
    tasks = [
        PlannedTask(
            target,
            numbers[request.key],
            request.key,
            planner.kind(request),
            planner.document(request.key, "input", request.input),
            planner.document(request.key, "parents", request.parents) if above else None,
            planner.document(request.key, "dependents", dependents.get(request.key)),
            request.run_at if request.delay is None else target.requested_at + request.delay,
            NumberSet(above) - target.completed if above else NO_NUMBERS,
        )
        for request, above in zip(requests, parents, strict=True)
    ]
    names = (*before.names, *[request.definition for request in requests])
    return SubmissionPlan(
        requests=requests,
        tasks=tuple(tasks),
        graph=Graph(keys, names, (*before.parents, *parents), before.additions),
        blobs=tuple(planner.blobs),
    )


@dataclass(slots=True)
class _Planner:
    target: PlanTarget
    definitions: Mapping[str, Definition]
    retry: RetryPolicy
    kinds: dict[tuple[Any, ...], TaskKind] = field(default_factory=dict)
    blobs: list[tuple[str, bytes]] = field(default_factory=list)

    def kind(self, request: TaskRequest) -> TaskKind:
        options = (request.definition, request.queue, request.priority, request.max_attempts)
        kind = self.kinds.get(options)
        if kind is None:
            definition = self.definitions[request.definition]
            retry = definition.retry or self.retry
            if request.max_attempts is not None:
                retry = replace(retry, max_attempts=request.max_attempts)
            kind = self.kinds[options] = TaskKind(
                app=self.target.job.app,
                definition=definition.name,
                definition_version=definition.version,
                queue=request.queue or definition.queue,
                priority=definition.priority if request.priority is None else request.priority,
                retry=retry,
                retry_on_timeout=definition.retry_on_timeout,
                requires_review=definition.requires_review,
            )
        return kind

    def document(self, key: str, name: str, content: Any) -> Document | None:
        if content is None:
            return None
        document, data = make_document(content, "")
        if data is not None:
            target = self.target
            blob_key = submitted_document_key(target.job.id, target.body_hash, f"{key}/{name}")
            self.blobs.append((blob_key, data))
            document = Document(key=blob_key, size=document.size)
        return document
