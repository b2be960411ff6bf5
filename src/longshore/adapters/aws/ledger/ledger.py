"""The ledger in DynamoDB: a transition is one conditional write of one item.

The new image carries the events of exactly that change, and the table's stream delivers them (see
``items``). The caller enqueues messages; wake-ups are counted in one item per worker.

A caller that loses an answer commits again. The condition then fails on the caller's own change,
and DynamoDB returns the item it failed on, so that no second read is needed.

A commit costs one write unit per kilobyte of the item, and of each index whose key or projected
attributes it changes; a read of a row costs one read unit per 4 kB.

A listing reads keys from an index, in order, and then the rows themselves. An index may be behind,
so each row is checked as it is now: a row that has changed since is left out, and a new one may be
missing. A page of a listing costs half a read unit for each partition (shards, groups of states)
and one for each row. The tasks of one job are together in the table and are read without an index.

Open tasks are in one index with the time when they are due and were enqueued, and whether they are
processing, so unqueued tasks are recognised by keys alone. Running jobs are read one by one with
their tasks, which costs a read unit per 8 kB.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Any, TypeVar

from longshore.adapters.aws.attributes import Item, decode_item, encode_item
from longshore.adapters.aws.client import AwsClient, CallRefused, attempts
from longshore.adapters.aws.ledger.items import (
    FAILED,
    HAS_ROW,
    OPEN,
    PARKED,
    UNSETTLED,
    buckets_of,
    id_of,
    is_tombstone,
    item_of,
    job_of,
    key_of,
    listing_partition,
    name_partition,
    task_of,
    tasks_query,
    tenant_of,
    timestamp_key,
)
from longshore.adapters.aws.names import LISTING_INDEX, NAME_INDEX, STATE_INDEX, Names
from longshore.adapters.aws.tables import (
    FIRST_KEY,
    LAST_KEY,
    Query,
    Table,
    config_key,
    existing_item,
    merge_sorted,
)
from longshore.adapters.shared import codec
from longshore.core.ids import split_task_id
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.core.tasks.changes import Effect, Wake
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import BackendUnavailable, UsageError, VersionConflict
from longshore.ports.clock import Clock
from longshore.ports.ledger import AnyChange, FailedTask, JobCreation

_WAKEUP_POLL_S = 1.0  # real time
_ROW_BATCH = 100  # DynamoDB's limit
_BATCH_GET_ATTEMPTS = 8
_FIRST_BACKOFF = timedelta(milliseconds=50)
_INDEXES = (LISTING_INDEX, STATE_INDEX, NAME_INDEX)  # with the attributes g1 and s1, g2 and s2, …

RowT = TypeVar("RowT", TaskRow, JobRow)
T = TypeVar("T")


class DynamoLedger:
    """See ``ports.ledger.Ledger``."""

    atomic = False
    epoch = 1  # a commit that was answered is never lost

    def __init__(self, aws: AwsClient, names: Names, clock: Clock, *, shards: int = 4) -> None:
        self._aws = aws
        self._table = Table(aws, names.ledger)
        self._config_table = Table(aws, names.config)
        self._clock = clock
        self._shards = shards
        self._wakeups_seen: dict[str, int] = {}  # by worker

    async def get_task(self, task_id: str) -> TaskRow | None:
        item = await self._table.get(key_of(task_id))
        return task_of(item) if item and not is_tombstone(item) else None

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        return await self._read(task_ids, task_of)

    async def get_job(self, job_id: str) -> JobRow | None:
        item = await self._table.get(key_of(job_id))
        return job_of(item) if item and not is_tombstone(item) else None

    async def get_jobs(self, job_ids: Sequence[str]) -> list[JobRow]:
        """The jobs that exist, in the order of the ids."""
        return await self._read(job_ids, job_of)

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        if len(changes) != 1:
            raise UsageError("this ledger takes one change in a commit")
        (change,) = changes
        await self._write(change)
        for effect in change.effects:
            if isinstance(effect, Wake):
                await self._wake(effect)
        return tuple(effect for effect in change.effects if not isinstance(effect, Wake))

    async def create_jobs(
        self, creations: Sequence[JobCreation]
    ) -> list[tuple[Effect, ...] | VersionConflict]:
        raise UsageError("this ledger takes one change in a commit")

    async def _write(self, change: AnyChange) -> None:
        item, expected = item_of(change, self._shards), change.expected_version
        removed = [f"#{name}" for name in ("g2", "s2", "t") if name not in item]
        condition, values = "#v = :expected", {":expected": expected}
        if change.row.state is TaskState.PROCESSING:
            removed = []  # it keeps its key in the index by state
        if not expected:
            condition, values = "attribute_not_exists(#v)", {}
            if isinstance(change.row, TaskRow):
                # DynamoDB deletes the tombstone of a task some days after its time.
                condition += " OR #until <= :now"
                values = {":now": codec.to_us(self._clock.now())}
                removed += ["#until", "#ttl"]
        request = self._table.update_request(
            key_of(change.row.id),
            item,
            condition=condition,
            values=values,
            then=f" REMOVE {', '.join(removed)}" if removed else "",
        )
        try:
            await self._table.write("update_item", request)
        except CallRefused as refused:
            if existing_item(refused).get("change") != change.row.change_id:
                conflict = VersionConflict(change.row.id, expected)
                # The client library repeats a call when an answer is lost.
                metadata = refused.response.get("ResponseMetadata", {})
                conflict.maybe_committed = bool(metadata.get("RetryAttempts"))
                raise conflict from refused

    async def _wake(self, wake: Wake) -> None:
        key = _wakeups_key(wake.worker_id)
        # The change is committed. Without this the worker sees it when it renews the lease.
        with suppress(BackendUnavailable):
            await self._config_table.update(key, {}, values={":one": 1}, then="ADD #count :one")

    async def wait_for_wake(self, worker_id: str) -> None:
        seen = self._wakeups_seen.get(worker_id)
        if seen is None:
            seen = self._wakeups_seen[worker_id] = await self._count_wakeups(worker_id)
        # Another process counts, and DynamoDB sends no notification.
        while (count := await self._count_wakeups(worker_id)) == seen:  # noqa: ASYNC110
            await asyncio.sleep(_WAKEUP_POLL_S)
        self._wakeups_seen[worker_id] = count

    async def _count_wakeups(self, worker_id: str) -> int:
        item = await self._config_table.get(_wakeups_key(worker_id))
        return int(item["count"]) if item else 0

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
        partitions = [(listing_partition(tenant, shard), "") for shard in range(self._shards)]
        return await self._list("tasks", 1, partitions, task_of, state, limit, cursor)

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
        if name is None:
            index, shards = 2, range(self._shards)
            partitions = [
                (f"{group}#{shard}", f"{tenant}#") for group in groups for shard in shards
            ]
        else:
            index, partition = 3, name_partition(tenant, name)
            partitions = [(partition, f"{group}#") for group in groups]
        return await self._list(
            *("jobs", index, partitions, job_of, state, limit, cursor),
            low=timestamp_key(created_from),
            high=LAST_KEY if created_before is None else timestamp_key(created_before),
        )

    async def _list(
        self,
        listing: str,
        index: int,
        partitions: Sequence[tuple[str, str]],
        decode: Callable[[Item], RowT],
        state: TaskState | JobState | None,
        limit: int,
        cursor: str | None,
        *,
        low: str = FIRST_KEY,
        high: str = LAST_KEY,
    ) -> Page[RowT]:
        """The rows of some partitions of an index, the newest first.

        Args:
            partitions: Each with the prefix that its sort keys have before the time.
            low: The earliest time.
            high: The time before which the rows were created.
        """
        last_id = ""  # of the page before; a query includes its bounds
        if cursor is not None:
            created, last_id = decode_cursor(listing, cursor, (int, str))
            high = min(high, f"{max(created, 0):020d}#{last_id}")
        low = min(low, high)
        queries = [
            self._query(
                index,
                partition,
                low=prefix + low,
                high=prefix + high,
                descending=True,
                page_size=limit + 1,
            )
            for partition, prefix in partitions
        ]

        # The time and the id are the end of a sort key.
        keys = merge_sorted(
            queries, lambda item: item[f"s{index}"].rsplit("#", 2)[-2:], descending=True
        )
        rows = await self._read_matching(
            keys, decode, lambda row: state is None or row.state is state, limit + 1, {last_id}
        )
        items = tuple(rows[:limit])
        if len(rows) <= limit:
            return Page(items)
        last = items[-1]
        return Page(items, encode_cursor(listing, codec.to_us(last.spec.created_at), last.id))

    def _query(self, index: int, partition: str, **limits: Any) -> AsyncIterator[Item]:
        """The keys of one partition of an index."""
        key, sort = (f"g{index}", partition), f"s{index}"
        return self._table.query(
            Query(index=_INDEXES[index - 1], partition=key, sort=sort, **limits)
        )

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        return {
            split_task_id(id_of(item))[1]: task_of(item).state
            async for item in self._job_items(job_id)
        }

    def _job_items(self, job_id: str, first: str = "") -> AsyncIterator[Item]:
        return self._table.query(tasks_query(job_id, first))

    async def find_ids(self, tenant: str, prefix: str, *, limit: int = 10) -> list[str]:
        low, high = prefix or FIRST_KEY, prefix + LAST_KEY
        keys = [
            Query(
                partition=("bucket", bucket),
                sort="id",
                low=low,
                high=high,
                where=HAS_ROW,
                page_size=limit + 1,
            )
            for bucket in buckets_of(prefix)
        ]
        items = merge_sorted([self._table.query(query) for query in keys], id_of)
        return await _take(
            (id_of(item) async for item in items if tenant_of(item) == tenant), limit
        )

    # The sweeper and the health check -----------------------------------------------------------

    async def unqueued_tasks(
        self, *, due_by: datetime, enqueued_before: datetime, limit: int
    ) -> list[str]:
        now, late = int(timestamp_key(due_by)), int(timestamp_key(enqueued_before))

        def is_unqueued(item: Item) -> bool:
            due, enqueued = (int(part) for part in item["s2"].split("#")[:2])
            recently = enqueued >= late or (enqueued > due and now < 2 * enqueued - due)
            return not item.get("t") and not recently

        items = self._by_state(OPEN, high=f"{timestamp_key(due_by)}#{LAST_KEY}")
        ids = await _take((id_of(item) async for item in items if is_unqueued(item)), limit)
        return list(dict.fromkeys(ids))

    async def leased_tasks(
        self, *, limit: int, expired_by: datetime | None = None
    ) -> list[tuple[str, Lease]]:
        ids = {id_of(item): None async for item in self._by_state(OPEN) if item.get("t")}
        leased = [
            (row.id, row.lease)
            for row in await self._read(list(ids), task_of)
            if row.lease and (expired_by is None or row.lease.expires_at <= expired_by)
        ]
        return nsmallest(limit, leased, key=lambda task: (task[1].expires_at, task[0]))

    async def parked_tasks(self, *, limit: int) -> list[str]:
        items = await _take(self._by_state(PARKED, page_size=limit), limit)
        return list(dict.fromkeys(id_of(item) for item in items))

    async def failed_tasks(self, tenant: str, *, limit: int) -> list[FailedTask]:
        low, high = f"{tenant}#", f"{tenant}#{LAST_KEY}"
        keys = self._by_state(FAILED, low=low, high=high, descending=True, page_size=limit)
        rows = await self._read_matching(
            keys, task_of, lambda row: row.state is TaskState.FAILED, limit, set()
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
            low = f"{after}$" if after else FIRST_KEY
            first = await anext(self._by_state(FAILED, low=low, page_size=1), None)
            if first is None:
                break
            after = first["s2"].partition("#")[0]
            tenants.append(after)
        return tenants

    def _by_state(
        self, group: str, *, descending: bool = False, **limits: Any
    ) -> AsyncIterator[Item]:
        """The keys of one group of the state index, by sort key."""
        queries = [
            self._query(2, f"{group}#{shard}", descending=descending, **limits)
            for shard in range(self._shards)
        ]
        return merge_sorted(queries, lambda item: item["s2"], descending=descending)

    async def open_intents(self, *, limit: int, after: str = "") -> list[str]:
        groups = [UNSETTLED, JobState.RUNNING]
        return await self._jobs_where(lambda row: bool(row.intents), groups, limit, after)

    async def unreported_ends(self, *, limit: int, after: str = "") -> list[str]:
        return await self._jobs_where(lambda row: row.end_unreported, [UNSETTLED], limit, after)

    async def _jobs_where(
        self, matches: Callable[[JobRow], bool], groups: Sequence[str], limit: int, after: str
    ) -> list[str]:
        rows = self._read_jobs(groups, after)
        ids = (row.id async for row in rows if row.id > after and matches(row))
        return await _take(ids, limit)

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
        ids = (
            id_of(item)
            async for job in self._read_jobs([JobState.RUNNING], first_job)
            if job.state is JobState.RUNNING
            async for item in self._job_items(job.id, first_key if job.id == first_job else "")
            if id_of(item) != after and matches(job, task_of(item))
        )
        return await _take(ids, limit)

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

    async def _read_matching(
        self,
        keys: AsyncIterator[Item],
        decode: Callable[[Item], RowT],
        matches: Callable[[RowT], bool],
        count: int,
        seen: set[str],
    ) -> list[RowT]:
        """The first rows that match, in the order of their keys, without those in ``seen``.

        Each row is returned once: an index may contain it twice while it changes.
        """
        rows: list[RowT] = []
        ids: list[str] = []
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
        # DynamoDB refuses duplicates.
        keys = [key_of(row_id) for row_id in dict.fromkeys(ids)]
        batches = [keys[at : at + _ROW_BATCH] for at in range(0, len(keys), _ROW_BATCH)]
        results = await asyncio.gather(*(self._get_batch(batch) for batch in batches))
        rows = {
            id_of(item): decode(item)
            for items in results
            for item in items
            if not is_tombstone(item)
        }
        return [rows[row_id] for row_id in ids if row_id in rows]

    async def _get_batch(self, keys: Sequence[Item]) -> list[Item]:
        items: list[Item] = []
        encoded = [encode_item(key) for key in keys]
        request: dict[str, Any] = {self._table.name: {"Keys": encoded, "ConsistentRead": True}}
        async for _ in attempts(self._clock, _BATCH_GET_ATTEMPTS, _FIRST_BACKOFF):
            answer = await self._aws.call("dynamodb", "batch_get_item", RequestItems=request)
            items += map(decode_item, answer["Responses"].get(self._table.name, []))
            # An answer is cut at 16 MB, and where the table is throttled.
            request = answer.get("UnprocessedKeys") or {}
            if not request:
                return items
        raise BackendUnavailable(
            f"dynamodb.batch_get_item: {len(request[self._table.name]['Keys'])} keys left over"
        )


async def _take(items: AsyncIterator[T], limit: int) -> list[T]:
    """The first items."""
    taken: list[T] = []
    async for item in items:
        taken.append(item)
        if len(taken) == limit:
            break
    return taken


def _wakeups_key(worker_id: str) -> Item:
    return config_key(f"wakeups#{worker_id}", "count")
