"""Reads the rows from which ``core.explain`` derives why a task or a job is in its state.

However large a job is, only the few rows that are shown are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from longshore.core.explain import (
    WhyReason,
    WhySnapshot,
    dependency_chain,
    explain_job,
    explain_task,
)
from longshore.core.ids import split_task_id, task_id_of
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NO_NUMBERS
from longshore.core.tasks.lease import LeasePolicy
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import NotFound
from longshore.ports.backend import Backend
from longshore.ports.worker_registry import WorkerRegistry
from longshore.services.reads import get_job_of
from longshore.services.spill import DocumentStore

_OPEN = (TaskState.PARKED, TaskState.IN_REVIEW, TaskState.PROCESSING, TaskState.PENDING)
_SHOWN = 3  # of each kind


@dataclass(frozen=True, kw_only=True)
class Explainer:
    """Explains the states of tasks and jobs; changes nothing."""

    backend: Backend
    documents: DocumentStore
    worker_registry: WorkerRegistry
    lease: LeasePolicy

    async def why(self, tenant: str, id_: str) -> list[WhyReason]:
        """Returns why a task or a job is in its state, from itself to the root cause.

        Args:
            id_: The id of a job or a task.

        Raises:
            NotFound: the tenant has no such task or job.
        """
        job_id, key = split_task_id(id_)
        if key:
            return await self._explain_task(tenant, id_)
        job = await get_job_of(self.backend.ledger, tenant, job_id)
        return await self._explain_job(job)

    async def _explain_task(self, tenant: str, task_id: str) -> list[WhyReason]:
        # The task first: a job that was read before its task might not contain it yet.
        row = await self.backend.ledger.get_task(task_id)
        job_id, key = split_task_id(task_id)
        job = await self.backend.ledger.get_job(job_id)
        if job is None or job.spec.tenant != tenant:
            raise NotFound("task", task_id)
        if row is not None and row.state is not TaskState.WAITING:
            # It depends on nothing, so the graph is not needed.
            number = row.spec.number
            chain = dependency_chain(job, Graph(), number, NO_NUMBERS)
            return explain_task(await self._snapshot(job, {number: row}, {number: key}), chain)
        graph = await self.documents.load_graph(job)
        if key not in graph.keys:
            raise NotFound("task", task_id)
        number = graph.keys.index(key)
        chain = dependency_chain(job, graph, number, row.awaits if row else NO_NUMBERS)
        keys = {number: graph.keys[number] for number in chain.numbers}
        rows = await self._rows(job, keys)
        if row is not None:
            # The row that the chain was built from.
            rows[row.spec.number] = row
        return explain_task(await self._snapshot(job, rows, keys), chain)

    async def _explain_job(self, job: JobRow) -> list[WhyReason]:
        rows: dict[int, TaskRow] = {}
        more = False
        unfinished = job.failed | job.cancelled
        if unfinished:
            graph = await self.documents.load_graph(job)
            chosen = list(islice(unfinished, _SHOWN))
            rows |= await self._rows(job, {number: graph.keys[number] for number in chosen})
            more = len(unfinished) > len(chosen)
        if not job.state.terminal:
            for state in _OPEN:
                page = await self.backend.ledger.list_tasks(
                    job.spec.tenant, job_id=job.id, state=state, limit=_SHOWN
                )
                rows |= {row.spec.number: row for row in page.items}
                more = more or page.cursor is not None
        keys = {number: row.spec.key for number, row in rows.items()}
        return explain_job(await self._snapshot(job, rows, keys), list(rows), truncated=more)

    async def _rows(self, job: JobRow, keys: Mapping[int, str]) -> dict[int, TaskRow]:
        rows = await self.backend.ledger.get_tasks(
            [task_id_of(job.id, key) for key in keys.values()]
        )
        return {row.spec.number: row for row in rows}

    async def _snapshot(
        self, job: JobRow, rows: Mapping[int, TaskRow], keys: Mapping[int, str]
    ) -> WhySnapshot:
        return WhySnapshot(
            now=self.backend.clock.now(),
            job=job,
            lease_policy=self.lease,
            rows=rows,
            keys=keys,
            live_workers=self.worker_registry.live_workers(),
            dead_workers=self.worker_registry.dead_workers(),
            pauses=await self.backend.queue_controls.list_pauses(),
        )
