"""From a request to rows: numbers, documents, who awaits whom.

Pure and repeatable: the same request and definitions give the same plan, so whoever finishes a
half-done submit arrives at the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from longshore.core.backoff import RetryPolicy
from longshore.core.blob_keys import submitted_document
from longshore.core.definition import Definition
from longshore.core.events.types import TaskSummary
from longshore.core.graph import Graph
from longshore.core.ids import task_id_of
from longshore.core.numbers import NO_NUMBERS, NumberSet
from longshore.core.rows import JobSpec, TaskSpec
from longshore.core.submission import TaskRequest
from longshore.core.values import INLINE_LIMIT_BYTES, Document


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A row to be created, and the parents it awaits."""

    spec: TaskSpec
    awaits: NumberSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a submit writes, but for the job's own row."""

    tasks: tuple[PlannedTask, ...]
    summaries: tuple[TaskSummary, ...]
    graph: Graph
    blobs: tuple[tuple[str, bytes], ...]  # to be stored before any row refers to them

    @property
    def roots(self) -> list[str]:
        """Keys of the tasks that may run at once."""
        return [task.spec.key for task in self.tasks if not task.awaits]


def document_of(value: Any, key: str) -> tuple[Document, bytes | None]:
    """A value as a document, and the bytes to store under ``key`` if it does not fit in a row."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    data = text.encode()
    if len(data) <= INLINE_LIMIT_BYTES:
        return Document(text=text, size=len(data)), None
    return Document(key=key, size=len(data)), data


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where tasks are put: the job as it was before them."""

    job: JobSpec
    at: datetime  # when they were asked for
    body_hash: str  # of what asked for them
    graph: Graph = field(default_factory=Graph)
    completed: NumberSet = NO_NUMBERS


def site_of(job: JobSpec) -> Site:
    """Where a job's first tasks are put."""
    return Site(job=job, at=job.created_at, body_hash=job.body_hash)


def plan(
    site: Site,
    requests: Sequence[TaskRequest],
    definitions: Mapping[str, Definition],
    *,
    retry: RetryPolicy,
) -> Plan:
    """The rows for a valid request; ``retry`` is for definitions that say nothing of it."""
    planner = _Planner(site, requests, definitions, retry)
    tasks = tuple(planner.task(place) for place in range(len(requests)))
    before = site.graph
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
    return Plan(tasks=tasks, summaries=summaries, graph=graph, blobs=tuple(planner.blobs))


class _Planner:
    def __init__(
        self,
        site: Site,
        requests: Sequence[TaskRequest],
        definitions: Mapping[str, Definition],
        retry: RetryPolicy,
    ) -> None:
        self._site = site
        self._job = site.job
        self._requests = requests
        self._definitions = definitions
        self._retry = retry
        keys = (*site.graph.keys, *(request.key for request in requests))
        self._numbers = {key: number for number, key in enumerate(keys)}
        self._dependents: dict[str, list[str]] = {}
        for request in requests:
            for parent in request.parents:
                self._dependents.setdefault(parent, []).append(request.key)
        self.blobs: list[tuple[str, bytes]] = []

    def parents_of(self, place: int) -> tuple[int, ...]:
        return tuple(self._numbers[parent] for parent in self._requests[place].parents)

    def task(self, place: int) -> PlannedTask:
        request, job = self._requests[place], self._job
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
            created_at=self._site.at,
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
        return PlannedTask(spec, NumberSet(self.parents_of(place)) - self._site.completed)

    def _not_before(self, request: TaskRequest) -> datetime | None:
        if request.delay is not None:
            return self._site.at + request.delay
        return request.run_at

    def _document(self, key: str, name: str, value: Any) -> Document | None:
        if value is None:
            return None
        place = submitted_document(self._job.id, self._site.body_hash, f"{key}/{name}")
        document, data = document_of(value, place)
        if data is not None:
            self.blobs.append((place, data))
        return document
