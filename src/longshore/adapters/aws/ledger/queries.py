"""Queries of the ledger in DynamoDB: listings, and what the sweeper and the health check ask.

A query reads keys from an index, in order, and then the rows themselves. An index may be behind, so
each row is checked as it is now: a row that has changed since is left out, and a new one may be
missing. A page of a listing costs half a read unit for each partition (shards, groups of states)
and one for each row. The tasks of one job are together in the table and are read without an index.

Open tasks are in one index with the time when they are due and were enqueued, and whether they are
processing, so unqueued tasks are recognised by keys alone. Running jobs are read one by one with
their tasks, which costs a read unit per 8 kB.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from heapq import nsmallest
from typing import Any, TypeVar

from longshore.adapters.aws.attributes import Item
from longshore.adapters.aws.ledger.items import (
    FAILED,
    OPEN,
    PARKED,
    UNSETTLED,
    buckets_of,
    id_of,
    job_of,
    key_of,
    listing_partition,
    name_partition,
    task_of,
    tasks_query,
    tenant_of,
    timestamp_key,
)
from longshore.adapters.aws.names import LISTING_INDEX, NAME_INDEX, STATE_INDEX
from longshore.adapters.aws.tables import Query, TableReader, merge_sorted
from longshore.adapters.shared import codec
from longshore.core.ids import split_task_id
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.ledger import FailedTask

_MAX_KEY = "~"  # after every digit and letter
_ROW_BATCH = 100

RowT = TypeVar("RowT", TaskRow, JobRow)


class LedgerQueries:
    """The queries of ``ports.ledger.Ledger``."""

    def __init__(self, tables: TableReader, table: str, shards: int) -> None:
        self._tables = tables
        self._table = table
        self._shards = shards

    # Listings -----------------------------------------------------------------------------------

    async def list_tasks(
        self,
        tenant: str,
        *,
        job_id: str | None = None,
        state: TaskState | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TaskRow]:
        if job_id is not None:
            return await self._list_job_tasks(tenant, job_id, state, limit, cursor)
        partitions = [
            (("g1", listing_partition(tenant, shard)), "") for shard in range(self._shards)
        ]
        keys = self._newest_first(LISTING_INDEX, "s1", partitions, "tasks", cursor, limit)
        return await self._page("tasks", keys, task_of, state, limit)

    async def _list_job_tasks(
        self, tenant: str, job_id: str, state: TaskState | None, limit: int, cursor: str | None
    ) -> Page[TaskRow]:
        after = decode_cursor("job-tasks", cursor, (int,))[0] if cursor else -1
        rows = [
            row
            async for item in self._job_items(job_id)
            if (row := task_of(item)).spec.number > after
            and row.spec.tenant == tenant
            and (state is None or row.state is state)
        ]
        rows.sort(key=lambda row: row.spec.number)
        items = tuple(rows[:limit])
        more = len(rows) > limit
        return Page(items, encode_cursor("job-tasks", items[-1].spec.number) if more else None)

    async def list_jobs(
        self,
        tenant: str,
        *,
        state: JobState | None = None,
        name: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[JobRow]:
        groups = [UNSETTLED, *([state] if state else JobState)]
        if name is not None:
            index, sort = NAME_INDEX, "s3"
            by_name = ("g3", name_partition(tenant, name))
            partitions = [(by_name, f"{group}#") for group in groups]
        else:
            index, sort = STATE_INDEX, "s2"
            partitions = [
                (("g2", f"{group}#{shard}"), f"{tenant}#")
                for group in groups
                for shard in range(self._shards)
            ]
        keys = self._newest_first(
            index, sort, partitions, "jobs", cursor, limit, created_from, created_before
        )
        return await self._page("jobs", keys, job_of, state, limit)

    def _newest_first(
        self,
        index: str,
        sort: str,
        partitions: Iterable[tuple[tuple[str, str], str]],
        listing: str,
        cursor: str | None,
        limit: int,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
    ) -> AsyncIterator[Item]:
        """The keys of some partitions, the newest first.

        Args:
            partitions: Each with the prefix that its sort keys have before the time.
        """
        first, before = timestamp_key(created_from), _key_before_cursor(listing, cursor)
        if created_before is not None:
            before = min(before, timestamp_key(created_before))
        prefixes = 0

        def time_of(item: Item) -> str:
            return str(item[sort]["S"].split("#", prefixes)[-1])

        queries = []
        for partition, prefix in partitions:
            prefixes = prefix.count("#")
            query = Query(
                table=self._table,
                partition=partition,
                sort=sort,
                index=index,
                low=prefix + min(first, before),
                high=prefix + before,
                descending=True,
                page_size=limit + 1,
            )
            queries.append(self._tables.query(query))
        return _excluding(before, time_of, merge_sorted(queries, time_of, descending=True))

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        return {
            split_task_id(id_of(item))[1]: task_of(item).state
            async for item in self._job_items(job_id)
        }

    def _job_items(self, job_id: str, first: str = "") -> AsyncIterator[Item]:
        return self._tables.query(tasks_query(self._table, job_id, first))

    async def find_ids(self, tenant: str, prefix: str, *, limit: int = 10) -> list[str]:
        queries = [
            self._tables.query(
                Query(
                    table=self._table,
                    partition=("bucket", bucket),
                    sort="id",
                    prefix=prefix,
                    page_size=limit + 1,
                )
            )
            for bucket in buckets_of(prefix)
        ]
        ids: list[str] = []
        async for item in merge_sorted(queries, id_of):
            if tenant_of(item) == tenant:
                ids.append(id_of(item))
            if len(ids) == limit:
                break
        return ids

    # The sweeper and the health check -----------------------------------------------------------

    async def unqueued_tasks(
        self, *, due_by: datetime, enqueued_before: datetime, limit: int
    ) -> list[str]:
        now, late = int(timestamp_key(due_by)), int(timestamp_key(enqueued_before))
        candidates: dict[str, None] = {}
        async for item in self._by_state(OPEN, high=f"{timestamp_key(due_by)}#{_MAX_KEY}"):
            due, enqueued = (int(part) for part in item["s2"]["S"].split("#")[:2])
            if item.get("t") or enqueued >= late or (enqueued > due and now < 2 * enqueued - due):
                continue
            candidates[id_of(item)] = None
            if len(candidates) == limit:
                break
        return list(candidates)

    async def leased_tasks(
        self, *, limit: int, expired_by: datetime | None = None
    ) -> list[tuple[str, Lease]]:
        ids = list({id_of(item): None async for item in self._by_state(OPEN) if item.get("t")})
        leased = [
            (row.id, row.lease)
            for row in await self._read(ids, task_of)
            if row.lease and (expired_by is None or row.lease.expires_at <= expired_by)
        ]
        return nsmallest(limit, leased, key=lambda task: (task[1].expires_at, task[0]))

    async def parked_tasks(self, *, limit: int, due_by: datetime | None = None) -> list[str]:
        high = None if due_by is None else f"{timestamp_key(due_by)}#{_MAX_KEY}"
        parked: dict[str, None] = {}
        async for item in self._by_state(PARKED, high=high, page_size=limit):
            parked[id_of(item)] = None
            if len(parked) == limit:
                break
        return list(parked)

    async def failed_tasks(self, tenant: str, *, limit: int) -> list[FailedTask]:
        keys = self._by_state(FAILED, prefix=f"{tenant}#", descending=True, page_size=limit)
        rows = await self._read_matching(
            keys, task_of, lambda row: row.state is TaskState.FAILED, limit
        )
        return [
            FailedTask(
                task_id=row.id,
                queue=row.spec.queue,
                category=row.failure.category if row.failure else None,
                failed_at=row.finished_at or row.updated_at,
            )
            for row in rows
        ]

    async def failed_tenants(self, *, limit: int, after: str = "") -> list[str]:
        tenants: list[str] = []
        while len(tenants) < limit:
            # A tenant's keys continue with "#"; "$" sorts after all of them.
            low = f"{after}$" if after else None
            first = await anext(self._by_state(FAILED, low=low, page_size=1), None)
            if first is None:
                break
            after = first["s2"]["S"].partition("#")[0]
            tenants.append(after)
        return tenants

    def _by_state(
        self, group: str, *, descending: bool = False, **limits: Any
    ) -> AsyncIterator[Item]:
        """The keys of one group of the state index, by sort key."""
        queries = [
            self._tables.query(
                Query(
                    table=self._table,
                    partition=("g2", f"{group}#{shard}"),
                    sort="s2",
                    index=STATE_INDEX,
                    descending=descending,
                    **limits,
                )
            )
            for shard in range(self._shards)
        ]
        return merge_sorted(queries, lambda item: item["s2"]["S"], descending=descending)

    async def open_intents(self, *, limit: int, after: str = "") -> list[str]:
        groups = [UNSETTLED, JobState.RUNNING]
        return await self._jobs_where(lambda row: bool(row.intents), groups, limit, after)

    async def unreported_ends(self, *, limit: int, after: str = "") -> list[str]:
        return await self._jobs_where(lambda row: row.end_unreported, [UNSETTLED], limit, after)

    async def _jobs_where(
        self, matches: Callable[[JobRow], bool], groups: Sequence[str], limit: int, after: str
    ) -> list[str]:
        ids: list[str] = []
        async for row in self._read_jobs(groups, after):
            if row.id > after and matches(row):
                ids.append(row.id)
                if len(ids) == limit:
                    break
        return ids

    async def unrecorded_ends(
        self, *, ended_by: datetime, limit: int, after: str = ""
    ) -> list[str]:
        def is_unrecorded(job: JobRow, task: TaskRow) -> bool:
            ended = task.finished_at is not None and task.finished_at <= ended_by
            return ended and task.spec.number not in job.ended

        return await self._tasks_where(is_unrecorded, limit, after)

    async def unnotified_dependents(self, *, limit: int, after: str = "") -> list[str]:
        def is_unnotified(job: JobRow, task: TaskRow) -> bool:
            return task.state is TaskState.WAITING and bool(task.awaits & job.completed)

        return await self._tasks_where(is_unnotified, limit, after)

    async def _tasks_where(
        self, matches: Callable[[JobRow, TaskRow], bool], limit: int, after: str
    ) -> list[str]:
        """Tasks of running jobs, in the order of their ids."""
        first_job, first_key = split_task_id(after)
        ids: list[str] = []
        async for job in self._read_jobs([JobState.RUNNING], first_job):
            if job.state is not JobState.RUNNING:
                continue
            async for item in self._job_items(job.id, first_key if job.id == first_job else ""):
                if id_of(item) != after and matches(job, task_of(item)):
                    ids.append(id_of(item))
                    if len(ids) == limit:
                        return ids
        return ids

    async def _read_jobs(self, groups: Sequence[str], first: str) -> AsyncIterator[JobRow]:
        """The jobs of some groups in the order of their ids, from ``first`` on."""
        ids: set[str] = set()
        for group in groups:
            ids |= {id_of(item) async for item in self._by_state(group) if id_of(item) >= first}
        ordered = sorted(ids)
        for at in range(0, len(ordered), _ROW_BATCH):
            for row in await self._read(ordered[at : at + _ROW_BATCH], job_of):
                yield row

    # Rows ---------------------------------------------------------------------------------------

    async def _page(
        self,
        listing: str,
        keys: AsyncIterator[Item],
        decode: Callable[[Item], RowT],
        state: TaskState | JobState | None,
        limit: int,
    ) -> Page[RowT]:
        rows = await self._read_matching(
            keys, decode, lambda row: state is None or row.state is state, limit + 1
        )
        items = tuple(rows[:limit])
        if len(rows) <= limit:
            return Page(items)
        last = items[-1]
        return Page(items, encode_cursor(listing, codec.to_us(last.spec.created_at), last.id))

    async def _read_matching(
        self,
        keys: AsyncIterator[Item],
        decode: Callable[[Item], RowT],
        matches: Callable[[RowT], bool],
        count: int,
    ) -> list[RowT]:
        """The first rows that match, in the order of their keys."""
        rows: list[RowT] = []
        ids: list[str] = []
        seen: set[str] = set()  # an index may contain a row twice while it changes
        async for item in keys:
            if id_of(item) in seen:
                continue
            seen.add(id_of(item))
            ids.append(id_of(item))
            if len(ids) >= min(count - len(rows), _ROW_BATCH):
                rows += [row for row in await self._read(ids, decode) if matches(row)]
                ids = []
                if len(rows) >= count:
                    return rows
        return rows + [row for row in await self._read(ids, decode) if matches(row)]

    async def _read(self, ids: Sequence[str], decode: Callable[[Item], RowT]) -> list[RowT]:
        """The rows that exist, in the order of the ids."""
        items = await self._tables.batch_get(self._table, [key_of(row_id) for row_id in ids])
        rows = {id_of(item): decode(item) for item in items}
        return [rows[row_id] for row_id in ids if row_id in rows]


async def _excluding(
    last: str, time_of: Callable[[Item], str], items: AsyncIterator[Item]
) -> AsyncIterator[Item]:
    """Leave out the last item of the page before."""
    async for item in items:
        if time_of(item) != last:
            yield item


def _key_before_cursor(listing: str, cursor: str | None) -> str:
    if cursor is None:
        return _MAX_KEY
    created, row_id = decode_cursor(listing, cursor, (int, str))
    return f"{max(created, 0):020d}#{row_id}"
