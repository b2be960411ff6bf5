"""Listings of the ledger in DynamoDB: keys from an index, in order; then the rows themselves.

An index may be behind, so each row is judged as it is now. One that has moved on since is left out,
and one that has just come may be missing: that is what listings are.

A page costs half a read unit a partition it walks along (shards, and groups of states) and one a
row. The tasks of one job lie together in the table: by number they are read whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import TypeVar

from longshore.adapters.aws.ledger.items import (
    UNSETTLED,
    Item,
    buckets_of,
    id_of,
    job_of,
    key_of,
    listing_partition,
    name_partition,
    task_key_range,
    task_of,
    tenant_of,
    timestamp_key,
)
from longshore.adapters.aws.table_reader import TableReader, merge_sorted
from longshore.adapters.aws.table_schemas import LISTING_INDEX, NAME_INDEX, STATE_INDEX
from longshore.adapters.shared import codec
from longshore.core.ids import split_task_id
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState

_MAX_KEY = "~"  # after every digit and letter
_ROW_BATCH = 100

RowT = TypeVar("RowT", TaskRow, JobRow)


class LedgerListings:
    """The ledger's listings."""

    def __init__(self, tables: TableReader, table: str, shards: int) -> None:
        self._tables = tables
        self._table = table
        self._shards = shards

    async def tasks(
        self, tenant: str, state: TaskState | None, limit: int, cursor: str | None
    ) -> Page[TaskRow]:
        """See ``Ledger.list_tasks``; without a job."""
        span = timestamp_key(None), _key_before_cursor("tasks", cursor)
        walks = [
            self._query_newest_first(
                LISTING_INDEX, ("g1", listing_partition(tenant, shard)), "s1", "", span, limit
            )
            for shard in range(self._shards)
        ]
        keys = merge_sorted(walks, lambda item: item["s1"]["S"], descending=True)
        rows = await self._read_matching(
            keys, task_of, lambda row: state is None or row.state is state, limit + 1
        )
        return _page("tasks", rows, limit)

    async def job_tasks(
        self, tenant: str, job_id: str, state: TaskState | None, limit: int, cursor: str | None
    ) -> Page[TaskRow]:
        """See ``Ledger.list_tasks``; of one job, by number."""
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

    async def jobs(
        self,
        tenant: str,
        *,
        state: JobState | None,
        name: str | None,
        created_from: datetime | None,
        created_before: datetime | None,
        limit: int,
        cursor: str | None,
    ) -> Page[JobRow]:
        """See ``Ledger.list_jobs``."""
        span = timestamp_key(created_from), _key_before_cursor("jobs", cursor)
        if created_before is not None:
            span = span[0], min(span[1], timestamp_key(created_before))
        groups = [UNSETTLED, *([state] if state else JobState)]
        if name is not None:
            by_name, sort = ("g3", name_partition(tenant, name)), "s3"
            walks = [
                self._query_newest_first(NAME_INDEX, by_name, sort, f"{group}#", span, limit)
                for group in groups
            ]
        else:
            sort = "s2"
            walks = [
                self._query_newest_first(
                    STATE_INDEX, ("g2", f"{group}#{shard}"), sort, f"{tenant}#", span, limit
                )
                for group in groups
                for shard in range(self._shards)
            ]
        keys = merge_sorted(walks, lambda item: _time_part(item[sort]["S"]), descending=True)
        rows = await self._read_matching(
            keys, job_of, lambda row: state is None or row.state is state, limit + 1
        )
        return _page("jobs", rows, limit)

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        """See ``Ledger.task_states``."""
        return {
            split_task_id(id_of(item))[1]: task_of(item).state
            async for item in self._job_items(job_id)
        }

    def _job_items(self, job_id: str) -> AsyncIterator[Item]:
        return self._tables.query(self._table, **task_key_range(job_id))

    async def find_ids(self, tenant: str, prefix: str, limit: int) -> list[str]:
        """See ``Ledger.find``."""
        walks = [
            self._tables.query(
                self._table, ("bucket", bucket), "id", prefix=prefix, page_size=limit + 1
            )
            for bucket in buckets_of(prefix)
        ]
        found: list[str] = []
        async for item in merge_sorted(walks, id_of):
            if tenant_of(item) == tenant:
                found.append(id_of(item))
            if len(found) == limit:
                break
        return found

    def _query_newest_first(
        self,
        index: str,
        partition: tuple[str, str],
        sort: str,
        prefix: str,
        key_range: tuple[str, str],
        limit: int,
    ) -> AsyncIterator[Item]:
        """Keys of a partition, the newest first: from a place on, up to just before another."""
        first, before = key_range
        return _excluding(
            prefix + before,
            sort,
            self._tables.query(
                self._table,
                partition,
                sort,
                index=index,
                low=prefix + min(first, before),
                high=prefix + before,
                descending=True,
                page_size=limit + 1,
            ),
        )

    async def _read_matching(
        self,
        keys: AsyncIterator[Item],
        decode: Callable[[Item], RowT],
        matches: Callable[[RowT], bool],
        count: int,
    ) -> list[RowT]:
        """The first rows that are wanted, in the order of their keys."""
        rows: list[RowT] = []
        ids: list[str] = []
        seen: set[str] = set()  # one that is just moving in the index may be met twice
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
        found = await self._tables.batch_get(self._table, [key_of(row_id) for row_id in ids])
        rows = {id_of(item): decode(item) for item in found}
        return [rows[row_id] for row_id in ids if row_id in rows]


async def _excluding(last: str, sort: str, items: AsyncIterator[Item]) -> AsyncIterator[Item]:
    """Without the one at which the page before ended."""
    async for item in items:
        if item[sort]["S"] != last:
            yield item


def _key_before_cursor(listing: str, cursor: str | None) -> str:
    if cursor is None:
        return _MAX_KEY
    created, row_id = decode_cursor(listing, cursor, (int, str))
    return f"{max(created, 0):020d}#{row_id}"


def _time_part(text: str) -> str:
    """The place in time, of a sort key that begins with something else."""
    return text.partition("#")[2]


def _page(listing: str, rows: list[RowT], limit: int) -> Page[RowT]:
    items = tuple(rows[:limit])
    if len(rows) <= limit:
        return Page(items)
    last = items[-1]
    return Page(items, encode_cursor(listing, codec.to_us(last.spec.created_at), last.id))
