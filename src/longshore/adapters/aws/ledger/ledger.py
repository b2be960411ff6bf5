"""The ledger in DynamoDB: a transition is one conditional write of one item.

The new image carries the events of exactly that change, and the table's stream tells of them (see
``items``). Doorbells are for the caller to ring; nudges are counted in an item a worker.

Whoever loses an answer commits again: the condition then fails on the very change that is to be
made, and DynamoDB hands out the item it failed on, so that no second read is needed to see that.

A commit costs 1 write unit a kilobyte of the item, and of each index whose key or projected part it
changes; a read of a row 1 read unit per 4 kB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from longshore.adapters.aws.client import AwsClient, CallRefused
from longshore.adapters.aws.ledger import listings, sweep_queries
from longshore.adapters.aws.ledger.items import (
    INDEX_ATTRIBUTES,
    Item,
    item_of,
    job_of,
    keeps_state_index_key,
    key_of,
    task_of,
)
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.table_reader import TableReader
from longshore.core.pages import Page
from longshore.core.tasks.changes import Effect, Wake
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import BackendUnavailable, UsageError, VersionConflict
from longshore.ports.clock import Clock
from longshore.ports.ledger import AnyChange, FailedTask, LeasedTask, ParkedTask

_CONDITION_FAILED = "ConditionalCheckFailedException"
# How long a nudge may take to be heard; seconds of real time, as nobody else's clock counts here.
_WAKEUP_POLL_S = 1.0


class DynamoLedger:
    """See ``ports.ledger.Ledger``."""

    atomic = False
    epoch = 1  # what was answered is stored

    def __init__(self, aws: AwsClient, names: Names, clock: Clock, *, shards: int = 4) -> None:
        self._aws = aws
        self._names = names
        self._tables = TableReader(aws, clock)
        self._shards = shards
        self._wakeups_seen: dict[str, int] = {}  # how many of each worker's have been seen

    async def get_task(self, task_id: str) -> TaskRow | None:
        item = await self._tables.get(self._names.ledger, key_of(task_id))
        return task_of(item) if item else None

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        keys = [key_of(task_id) for task_id in dict.fromkeys(task_ids)]
        rows = map(task_of, await self._tables.batch_get(self._names.ledger, keys))
        found = {row.id: row for row in rows}
        return [found[task_id] for task_id in task_ids if task_id in found]

    async def get_job(self, job_id: str) -> JobRow | None:
        item = await self._tables.get(self._names.ledger, key_of(job_id))
        return job_of(item) if item else None

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        if len(changes) != 1:
            message = "this ledger takes one change in a commit"
            raise UsageError(message)
        (change,) = changes
        await self._write(change)
        nudges = [effect for effect in change.effects if isinstance(effect, Wake)]
        for nudge in nudges:
            await self._wake(nudge)
        return tuple(effect for effect in change.effects if not isinstance(effect, Wake))

    async def _write(self, change: AnyChange) -> None:
        item = item_of(change, self._shards)
        values = {f":{name}": value for name, value in item.items()}
        update = "SET " + ", ".join(f"#{name} = :{name}" for name in item)
        gone = [] if not change.expected_version else _removed_index_attributes(change, item)
        if gone:
            update += " REMOVE " + ", ".join(f"#{name}" for name in gone)
        condition = "attribute_not_exists(#v)"
        if change.expected_version:
            condition = "#v = :expected"
            values[":expected"] = {"N": str(change.expected_version)}
        try:
            await self._aws.call(
                "dynamodb",
                "update_item",
                alters=True,
                expects=(_CONDITION_FAILED,),
                TableName=self._names.ledger,
                Key=key_of(change.row.id),
                UpdateExpression=update,
                ConditionExpression=condition,
                ExpressionAttributeNames={f"#{name}": name for name in (*item, *gone)},
                ExpressionAttributeValues=values,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except CallRefused as refused:
            there = refused.response.get("Item")
            if not there or there["change"]["S"] != change.row.change_id:
                conflict = VersionConflict(change.row.id, change.expected_version)
                # The library asks again by itself when an answer is lost.
                asked = refused.response.get("ResponseMetadata", {})
                conflict.maybe_committed = bool(asked.get("RetryAttempts"))
                raise conflict from refused

    async def _wake(self, wake: Wake) -> None:
        try:
            await self._aws.call(
                "dynamodb",
                "update_item",
                alters=True,
                TableName=self._names.config,
                Key=_wakeups_key(wake.worker_id),
                UpdateExpression="ADD #n :one",
                ExpressionAttributeNames={"#n": "count"},
                ExpressionAttributeValues={":one": {"N": "1"}},
            )
        except BackendUnavailable:
            # The change is made. Its worker sees it when it renews the lease.
            return

    async def wait_for_wake(self, worker_id: str) -> None:
        seen = self._wakeups_seen.get(worker_id)
        if seen is None:
            seen = self._wakeups_seen[worker_id] = await self._count_wakeups(worker_id)
        # Another process counts, and nothing tells.
        while (count := await self._count_wakeups(worker_id)) == seen:  # noqa: ASYNC110
            await asyncio.sleep(_WAKEUP_POLL_S)
        self._wakeups_seen[worker_id] = count

    async def _count_wakeups(self, worker_id: str) -> int:
        item = await self._tables.get(self._names.config, _wakeups_key(worker_id))
        return int(item["count"]["N"]) if item else 0

    # Listings, and what the sweeper asks ---------------------------------------------------------

    async def list_tasks(
        self,
        tenant: str,
        *,
        job_id: str | None = None,
        state: TaskState | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TaskRow]:
        walks = self._listings()
        if job_id is not None:
            return await walks.job_tasks(tenant, job_id, state, limit, cursor)
        return await walks.tasks(tenant, state, limit, cursor)

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
        return await self._listings().jobs(
            tenant,
            state=state,
            name=name,
            created_from=created_from,
            created_before=created_before,
            limit=limit,
            cursor=cursor,
        )

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        return await self._listings().task_states(job_id)

    async def find_ids(self, tenant: str, prefix: str, *, limit: int = 10) -> list[str]:
        return await self._listings().find_ids(tenant, prefix, limit)

    async def unqueued_tasks(
        self, *, due_by: datetime, enqueued_before: datetime, limit: int
    ) -> list[str]:
        return await self._sweep_queries().unqueued_tasks(due_by, enqueued_before, limit)

    async def leased_tasks(
        self, *, limit: int, expired_by: datetime | None = None
    ) -> list[LeasedTask]:
        return await self._sweep_queries().leased_tasks(limit, expired_by)

    async def parked_tasks(self, *, limit: int, due_by: datetime | None = None) -> list[ParkedTask]:
        return await self._sweep_queries().parked_tasks(limit, due_by)

    async def failed_tasks(self, tenant: str, *, limit: int) -> list[FailedTask]:
        return await self._sweep_queries().failed_tasks(tenant, limit)

    async def failed_tenants(self, *, limit: int, after: str = "") -> list[str]:
        return await self._sweep_queries().failed_tenants(limit, after)

    async def open_intents(self, *, limit: int, after: str = "") -> list[str]:
        return await self._sweep_queries().open_intents(limit, after)

    async def unrecorded_ends(
        self, *, ended_by: datetime, limit: int, after: str = ""
    ) -> list[str]:
        return await self._sweep_queries().unrecorded_ends(ended_by, limit, after)

    async def unnotified_dependents(self, *, limit: int, after: str = "") -> list[str]:
        return await self._sweep_queries().unnotified_dependents(limit, after)

    async def unreported_ends(self, *, limit: int, after: str = "") -> list[str]:
        return await self._sweep_queries().unreported_ends(limit, after)

    def _listings(self) -> listings.LedgerListings:
        return listings.LedgerListings(self._tables, self._names.ledger, self._shards)

    def _sweep_queries(self) -> sweep_queries.SweepQueries:
        return sweep_queries.SweepQueries(self._tables, self._names.ledger, self._shards)


def _removed_index_attributes(change: AnyChange, item: Item) -> list[str]:
    """The index attributes that the row may have had and has no longer."""
    written_once = {"g1", "s1"}
    if keeps_state_index_key(change.row):
        written_once |= {"g2", "s2"}
    return [name for name in INDEX_ATTRIBUTES if name not in item and name not in written_once]


def _wakeups_key(worker_id: str) -> Item:
    return {"kind": {"S": f"wakeups#{worker_id}"}, "name": {"S": "count"}}
