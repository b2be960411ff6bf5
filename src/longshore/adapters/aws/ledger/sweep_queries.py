"""What the sweeper and the health check ask of the ledger in DynamoDB.

Open tasks stand in one index with when they are due and were rung, and whether they are processing:
what is to be rung again is told by keys alone, and rows are read only of those that run. Jobs that
run are looked at one by one, each with its tasks: that costs a read unit per 8 kB of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from heapq import nsmallest

from longshore.adapters.aws.ledger.items import (
    FAILED,
    NEVER,
    OPEN,
    PARKED,
    UNSETTLED,
    Item,
    id_of,
    job_of,
    key_of,
    task_key_range,
    task_of,
    timestamp_key,
)
from longshore.adapters.aws.table_reader import TableReader, merge_sorted
from longshore.adapters.aws.table_schemas import STATE_INDEX
from longshore.adapters.shared import codec
from longshore.core.ids import split_task_id
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.ledger import FailedTask, LeasedTask, ParkedTask

_ROW_BATCH = 100
_MAX_KEY = "~"


class SweepQueries:
    """The ledger's questions about what is overdue."""

    def __init__(self, tables: TableReader, table: str, shards: int) -> None:
        self._tables = tables
        self._table = table
        self._shards = shards

    async def unqueued_tasks(
        self, due_by: datetime, enqueued_before: datetime, limit: int
    ) -> list[str]:
        """See ``Ledger.unrung``."""
        now, late = int(timestamp_key(due_by)), int(timestamp_key(enqueued_before))
        candidates: dict[str, None] = {}
        async for item in self._open_tasks(high=f"{timestamp_key(due_by)}#{_MAX_KEY}"):
            due, rung = (int(part) for part in item["s2"]["S"].split("#")[:2])
            if item.get("t") or rung >= late or (rung > due and now < 2 * rung - due):
                continue
            candidates[id_of(item)] = None
            if len(candidates) == limit:
                break
        return list(candidates)

    async def leased_tasks(self, limit: int, expired_by: datetime | None) -> list[LeasedTask]:
        """See ``Ledger.held``."""
        found: list[LeasedTask] = []
        ids = list({id_of(item): None async for item in self._open_tasks() if item.get("t")})
        for at in range(0, len(ids), _ROW_BATCH):
            for row in await self._read_tasks(ids[at : at + _ROW_BATCH]):
                lease = row.lease
                if lease is None or (expired_by is not None and lease.expires_at > expired_by):
                    continue
                found.append(
                    LeasedTask(
                        task_id=row.id,
                        worker_id=lease.worker_id,
                        fence=lease.fence,
                        expires_at=lease.expires_at,
                    )
                )
        return nsmallest(limit, found, key=lambda task: (task.expires_at, task.task_id))

    def _open_tasks(self, high: str | None = None) -> AsyncIterator[Item]:
        return merge_sorted(
            [
                self._tables.query(
                    self._table, ("g2", f"{OPEN}#{shard}"), "s2", index=STATE_INDEX, high=high
                )
                for shard in range(self._shards)
            ],
            lambda item: item["s2"]["S"],
        )

    async def parked_tasks(self, limit: int, due_by: datetime | None) -> list[ParkedTask]:
        """See ``Ledger.parked``."""
        high = None if due_by is None else f"{timestamp_key(due_by)}#{_MAX_KEY}"
        walks = [
            self._tables.query(
                self._table,
                ("g2", f"{PARKED}#{shard}"),
                "s2",
                index=STATE_INDEX,
                high=high,
                page_size=limit,
            )
            for shard in range(self._shards)
        ]
        found: dict[str, ParkedTask] = {}
        async for item in merge_sorted(walks, lambda item: item["s2"]["S"]):
            due = item["s2"]["S"].split("#")[0]
            due_at = None if due == NEVER else codec.from_us(int(due))
            found[id_of(item)] = ParkedTask(task_id=id_of(item), due_at=due_at)
            if len(found) == limit:
                break
        return list(found.values())

    async def failed_tasks(self, tenant: str, limit: int) -> list[FailedTask]:
        """See ``Ledger.failed``."""
        walks = [
            self._tables.query(
                self._table,
                ("g2", f"{FAILED}#{shard}"),
                "s2",
                index=STATE_INDEX,
                prefix=f"{tenant}#",
                descending=True,
                page_size=limit,
            )
            for shard in range(self._shards)
        ]
        found: list[FailedTask] = []
        ids: list[str] = []
        seen: set[str] = set()
        async for item in merge_sorted(walks, lambda item: item["s2"]["S"], descending=True):
            if id_of(item) in seen:
                continue
            seen.add(id_of(item))
            ids.append(id_of(item))
            if len(ids) == min(limit - len(found), _ROW_BATCH):
                found += await self._read_failed(ids)
                ids = []
                if len(found) >= limit:
                    return found
        return found + await self._read_failed(ids)

    async def _read_failed(self, ids: list[str]) -> list[FailedTask]:
        rows = {row.id: row for row in await self._read_tasks(ids)}
        return [
            FailedTask(
                task_id=row.id,
                queue=row.spec.queue,
                category=row.failure.category if row.failure else None,
                failed_at=row.finished_at or row.updated_at,
            )
            for task_id in ids
            if (row := rows.get(task_id)) and row.state is TaskState.FAILED
        ]

    async def failed_tenants(self, limit: int, after: str) -> list[str]:
        """See ``Ledger.failed_tenants``."""
        found: list[str] = []
        while len(found) < limit:
            firsts = await asyncio.gather(
                *(self._tenant_after(after, shard) for shard in range(self._shards))
            )
            tenants = [tenant for tenant in firsts if tenant is not None]
            if not tenants:
                break
            after = min(tenants)
            found.append(after)
        return found

    async def _tenant_after(self, tenant: str, shard: int) -> str | None:
        # A tenant's keys go on with "#"; the sign after it is past all of them.
        low = f"{tenant}$" if tenant else None
        walk = self._tables.query(
            self._table, ("g2", f"{FAILED}#{shard}"), "s2", index=STATE_INDEX, low=low, page_size=1
        )
        async for item in walk:
            return str(item["s2"]["S"].partition("#")[0])
        return None

    async def open_intents(self, limit: int, after: str) -> list[str]:
        """See ``Ledger.open_intents``."""
        return await self._jobs_where(lambda row: bool(row.intents), limit, after, running=True)

    async def unreported_ends(self, limit: int, after: str) -> list[str]:
        """See ``Ledger.unreported_ends``."""
        return await self._jobs_where(lambda row: row.end_unreported, limit, after, running=False)

    async def _jobs_where(
        self, matches: Callable[[JobRow], bool], limit: int, after: str, *, running: bool
    ) -> list[str]:
        found: list[str] = []
        async for row in self._read_jobs([UNSETTLED, *([JobState.RUNNING] * running)], after):
            if row.id > after and matches(row):
                found.append(row.id)
                if len(found) == limit:
                    break
        return found

    async def unrecorded_ends(self, ended_by: datetime, limit: int, after: str) -> list[str]:
        """See ``Ledger.unrecorded_ends``."""

        def overlooked(job: JobRow, task: TaskRow) -> bool:
            ended = task.finished_at is not None and task.finished_at <= ended_by
            return ended and task.spec.number not in job.ended

        return await self._tasks_where(overlooked, limit, after)

    async def unnotified_dependents(self, limit: int, after: str) -> list[str]:
        """See ``Ledger.unnotified_dependents``."""

        def overlooked(job: JobRow, task: TaskRow) -> bool:
            return task.state is TaskState.WAITING and bool(task.awaits & job.completed)

        return await self._tasks_where(overlooked, limit, after)

    async def _tasks_where(
        self, matches: Callable[[JobRow, TaskRow], bool], limit: int, after: str
    ) -> list[str]:
        first, mark = split_task_id(after)
        found: list[str] = []
        async for job in self._read_jobs([JobState.RUNNING], first):
            if job.state is not JobState.RUNNING:
                continue
            span = task_key_range(job.id, mark if job.id == first else "")
            async for item in self._tables.query(self._table, **span):
                if id_of(item) != after and matches(job, task_of(item)):
                    found.append(id_of(item))
                    if len(found) == limit:
                        return found
        return found

    async def _read_jobs(self, groups: list[str], first: str) -> AsyncIterator[JobRow]:
        """The jobs of some groups in the order of their ids, from ``first`` on."""
        walks = [
            self._tables.query(self._table, ("g2", f"{group}#{shard}"), "s2", index=STATE_INDEX)
            for group in groups
            for shard in range(self._shards)
        ]
        ids: set[str] = set()
        for walk in walks:
            ids |= {job_id async for item in walk if (job_id := id_of(item)) >= first}
        ordered = sorted(ids)
        for at in range(0, len(ordered), _ROW_BATCH):
            some = [key_of(job_id) for job_id in ordered[at : at + _ROW_BATCH]]
            rows = [job_of(item) for item in await self._tables.batch_get(self._table, some)]
            for row in sorted(rows, key=lambda row: row.id):
                yield row

    async def _read_tasks(self, ids: list[str]) -> list[TaskRow]:
        found = await self._tables.batch_get(self._table, [key_of(task_id) for task_id in ids])
        return [task_of(item) for item in found]
