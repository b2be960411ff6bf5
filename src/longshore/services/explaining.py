"""Explaining: reads what is needed to say why something waits, and has ``core`` say it.

However large a job is, only a few of its rows are read: those that a person is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from longshore.core.chain import Chain, chain_from
from longshore.core.explaining import why_job, why_task
from longshore.core.graph import Graph
from longshore.core.ids import split_task_id, task_id_of
from longshore.core.lease import LeasePolicy
from longshore.core.numbers import NO_NUMBERS, NumberSet
from longshore.core.reasons import Paused, Picture, Reason
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import TaskState
from longshore.errors import NotFound
from longshore.ports.backend import Backend
from longshore.ports.presence import Presence
from longshore.services.documents import Documents

_OPEN = (TaskState.PARKED, TaskState.IN_REVIEW, TaskState.PROCESSING, TaskState.PENDING)
_SHOWN = 3  # of each kind


class Explaining:
    """Says why tasks and jobs stand where they stand; changes nothing."""

    def __init__(
        self, *, backend: Backend, documents: Documents, presence: Presence, lease: LeasePolicy
    ) -> None:
        self._ledger = backend.ledger
        self._clock = backend.clock
        self._documents = documents
        self._presence = presence
        self._lease = lease

    async def explain(
        self, tenant: str, id_: str, *, paused: Sequence[Paused] = ()
    ) -> list[Reason]:
        """Why a task or a job stands where it stands: from itself to the root cause.

        Args:
            id_: Of a job or a task, in full.
            paused: The queues that are paused or held.

        Raises:
            NotFound: the tenant has no such task or job.
        """
        job_id, key = split_task_id(id_)
        if key:
            return await self._task(tenant, id_, paused)
        job = await self._ledger.job(job_id)
        if job is None or job.spec.tenant != tenant:
            raise NotFound("job", id_)
        return await self._job(job, paused)

    async def _task(self, tenant: str, task_id: str, paused: Sequence[Paused]) -> list[Reason]:
        # In this order: a job that was read before its task might not know it yet.
        row = await self._ledger.task(task_id)
        job_id, key = split_task_id(task_id)
        job = await self._ledger.job(job_id)
        if job is None or job.spec.tenant != tenant:
            raise NotFound("task", task_id)
        if row is not None and row.state is not TaskState.WAITING:
            # Nothing stands before it, so nobody has to read the whole graph.
            number = row.spec.number
            chain = chain_from(job, Graph(), number, NO_NUMBERS)
            return why_task(self._picture(job, {number: row}, {number: key}, paused), chain)
        graph = await self._graph(job)
        if key not in graph.keys:
            raise NotFound("task", task_id)
        number = graph.keys.index(key)
        chain = chain_from(job, graph, number, row.awaits if row else NO_NUMBERS)
        return why_task(await self._whole_picture(job, graph, chain, row, paused), chain)

    async def _whole_picture(
        self,
        job: JobRow,
        graph: Graph,
        chain: Chain,
        asked: TaskRow | None,
        paused: Sequence[Paused],
    ) -> Picture:
        keys = {number: graph.keys[number] for number in chain.numbers}
        rows = await self._rows(job, keys)
        if asked is not None:
            # As it was when its chain was followed.
            rows[asked.spec.number] = asked
        return self._picture(job, rows, keys, paused)

    async def _job(self, job: JobRow, paused: Sequence[Paused]) -> list[Reason]:
        rows: dict[int, TaskRow] = {}
        more = False
        unfinished = job.failed | job.cancelled
        if unfinished:
            graph = await self._graph(job)
            chosen = _first(unfinished)
            rows |= await self._rows(job, {number: graph.keys[number] for number in chosen})
            more = len(unfinished) > len(chosen)
        if not job.state.terminal:
            for state in _OPEN:
                page = await self._ledger.list_tasks(
                    job.spec.tenant, job_id=job.id, state=state, limit=_SHOWN
                )
                rows |= {row.spec.number: row for row in page.items}
                more = more or page.cursor is not None
        keys = {number: row.spec.key for number, row in rows.items()}
        return why_job(self._picture(job, rows, keys, paused), list(rows), more=more)

    async def _graph(self, job: JobRow) -> Graph:
        return Graph.from_json(await self._documents.load(job.graph))

    async def _rows(self, job: JobRow, keys: Mapping[int, str]) -> dict[int, TaskRow]:
        rows = await self._ledger.tasks([task_id_of(job.id, key) for key in keys.values()])
        return {row.spec.number: row for row in rows}

    def _picture(
        self,
        job: JobRow,
        rows: Mapping[int, TaskRow],
        keys: Mapping[int, str],
        paused: Sequence[Paused],
    ) -> Picture:
        return Picture(
            now=self._clock.now(),
            job=job,
            lease=self._lease,
            rows=rows,
            keys=keys,
            present=self._presence.present(),
            gone=self._presence.absent(),
            paused=paused,
        )


def _first(numbers: NumberSet) -> list[int]:
    return list(islice(numbers, _SHOWN))
