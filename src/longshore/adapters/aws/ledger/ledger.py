"""The ledger in DynamoDB: a transition is one conditional write of one item.

The new image carries the events of exactly that change, and the table's stream delivers them (see
``items``). The caller enqueues messages; wake-ups are counted in one item per worker.

A caller that loses an answer commits again. The condition then fails on the caller's own change,
and DynamoDB returns the item it failed on, so that no second read is needed.

A commit costs one write unit per kilobyte of the item, and of each index whose key or projected
attributes it changes; a read of a row costs one read unit per 4 kB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from longshore.adapters.aws.attributes import Item
from longshore.adapters.aws.client import AwsClient, CallRefused
from longshore.adapters.aws.ledger.items import (
    INDEX_ATTRIBUTES,
    item_of,
    job_of,
    keeps_state_index_key,
    key_of,
    task_of,
)
from longshore.adapters.aws.ledger.queries import LedgerQueries
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.tables import CONDITION_FAILED, TableReader, config_key
from longshore.core.tasks.changes import Effect, Wake
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.errors import BackendUnavailable, UsageError, VersionConflict
from longshore.ports.clock import Clock
from longshore.ports.ledger import AnyChange

_WAKEUP_POLL_S = 1.0  # real time


class DynamoLedger(LedgerQueries):
    """See ``ports.ledger.Ledger``."""

    atomic = False
    epoch = 1  # a commit that was answered is never lost

    def __init__(self, aws: AwsClient, names: Names, clock: Clock, *, shards: int = 4) -> None:
        super().__init__(TableReader(aws, clock), names.ledger, shards)
        self._aws = aws
        self._names = names
        self._wakeups_seen: dict[str, int] = {}  # by worker

    async def get_task(self, task_id: str) -> TaskRow | None:
        item = await self._tables.get(self._table, key_of(task_id))
        return task_of(item) if item else None

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        return await self._read(task_ids, task_of)

    async def get_job(self, job_id: str) -> JobRow | None:
        item = await self._tables.get(self._table, key_of(job_id))
        return job_of(item) if item else None

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        if len(changes) != 1:
            message = "this ledger takes one change in a commit"
            raise UsageError(message)
        (change,) = changes
        await self._write(change)
        for effect in change.effects:
            if isinstance(effect, Wake):
                await self._wake(effect)
        return tuple(effect for effect in change.effects if not isinstance(effect, Wake))

    async def _write(self, change: AnyChange) -> None:
        item = item_of(change, self._shards)
        values = {f":{name}": value for name, value in item.items()}
        update = "SET " + ", ".join(f"#{name} = :{name}" for name in item)
        removed = [] if not change.expected_version else _removed_index_attributes(change, item)
        if removed:
            update += " REMOVE " + ", ".join(f"#{name}" for name in removed)
        condition = "attribute_not_exists(#v)"
        if change.expected_version:
            condition = "#v = :expected"
            values[":expected"] = {"N": str(change.expected_version)}
        try:
            await self._aws.call(
                "dynamodb",
                "update_item",
                alters=True,
                expects=(CONDITION_FAILED,),
                TableName=self._table,
                Key=key_of(change.row.id),
                UpdateExpression=update,
                ConditionExpression=condition,
                ExpressionAttributeNames={f"#{name}": name for name in (*item, *removed)},
                ExpressionAttributeValues=values,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except CallRefused as refused:
            existing = refused.response.get("Item")
            if not existing or existing["change"]["S"] != change.row.change_id:
                conflict = VersionConflict(change.row.id, change.expected_version)
                # The client library repeats a call when an answer is lost.
                metadata = refused.response.get("ResponseMetadata", {})
                conflict.maybe_committed = bool(metadata.get("RetryAttempts"))
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
            # The change is committed. The worker sees it when it renews the lease.
            return

    async def wait_for_wake(self, worker_id: str) -> None:
        seen = self._wakeups_seen.get(worker_id)
        if seen is None:
            seen = self._wakeups_seen[worker_id] = await self._count_wakeups(worker_id)
        # Another process counts, and DynamoDB sends no notification.
        while (count := await self._count_wakeups(worker_id)) == seen:  # noqa: ASYNC110
            await asyncio.sleep(_WAKEUP_POLL_S)
        self._wakeups_seen[worker_id] = count

    async def _count_wakeups(self, worker_id: str) -> int:
        item = await self._tables.get(self._names.config, _wakeups_key(worker_id))
        return int(item["count"]["N"]) if item else 0


def _removed_index_attributes(change: AnyChange, item: Item) -> list[str]:
    """The index attributes that the row may have had and no longer has."""
    written_once = {"g1", "s1"}
    if keeps_state_index_key(change.row):
        written_once |= {"g2", "s2"}
    return [name for name in INDEX_ATTRIBUTES if name not in item and name not in written_once]


def _wakeups_key(worker_id: str) -> Item:
    return config_key(f"wakeups#{worker_id}", "count")
