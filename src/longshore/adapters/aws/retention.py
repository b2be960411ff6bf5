"""Retention on AWS: a removed job is a tombstone first, and then what belongs to it is deleted.

The first write of a removal is one conditional update of the job's item, under the version from
which it was decided that the job has ended. Everything that could let a task of it run again writes
this item first, so of a resume and a removal one is refused. The item is then a *tombstone*: it has
no row, so that no reader finds the job, and a version that no change expects.

After that nothing is decided any more, and each step can be repeated: events and output of the
tasks are deleted, and each task's item becomes a tombstone, with the same time as that of its job.
A task loses its row last, so a process that dies leaves tasks that are found again. Until all is
done, blobs too, the tombstone of the job is due in the index by state, and the sweeper continues.

All tombstones of a job have one ``until``. At that time the sweeper deletes that of the job, with
what was stored late. Those of its tasks have a ``ttl``: DynamoDB deletes them some days later, at
no cost. Until then an expired one counts as deleted.

**Cost.** In write units: 8 for a job (its tombstone, its entry in the index by state, which moves
twice, and the deletion) and 1 more with a name; 1 for a task, 2 if it failed; 2 for each event; 1
for each KB of output. Setting a ``ttl`` on events and output would cost as much as deleting them,
and an item that gets it before its job has ended could expire before the job. In requests to S3: 3
for up to a thousand blobs, and for up to 500 jobs whose ids are near each other.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from longshore.adapters.aws.attributes import Item, encode_item
from longshore.adapters.aws.blobs import S3BlobStore
from longshore.adapters.aws.client import AwsClient, attempts, retry_unknown_outcome
from longshore.adapters.aws.ledger.items import (
    HAS_ROW,
    REMOVED,
    id_of,
    is_tombstone,
    key_of,
    shard_of,
    task_of,
    tasks_query,
    timestamp_key,
)
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.adapters.aws.names import EVENT_INDEXES, STATE_INDEX, Names
from longshore.adapters.aws.tables import FIRST_KEY, LAST_KEY, Query, Table, new_token
from longshore.adapters.shared import codec
from longshore.core.documents import job_blob_prefixes
from longshore.core.events.types import EntityType
from longshore.core.tasks.rows import JobRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import BackendUnavailable
from longshore.ports.clock import Clock

_TASKS_OF_A_STEP = 1000
_PARALLEL = 32
_ROW_BATCH = 100
_DELETE_BATCH = 25  # DynamoDB's limit
_DELETE_ATTEMPTS = 8
_FIRST_BACKOFF = timedelta(milliseconds=50)
_KEYS_OF_A_PAGE = 1000  # S3's limit
_REMOVED_VERSION = -1
# DynamoDB deletes an item whose ttl has passed at any time from then on. The sweeper needs to find
# the tasks when the tombstone of their job goes.
_TTL_SLACK = timedelta(days=7)
_TASK_COLUMNS = "#row, #change, #last, #g2, #s2, #t"
_JOB_COLUMNS = "#row, #last, #g3, #s3"
_ENDED_STATES = [state for state in JobState if state is not JobState.RUNNING]

T = TypeVar("T")
ResultT = TypeVar("ResultT")


class DynamoRetention:
    """See ``ports.retention.Retention``."""

    def __init__(
        self,
        aws: AwsClient,
        names: Names,
        clock: Clock,
        ledger: DynamoLedger,
        blobs: S3BlobStore,
        *,
        shards: int = 4,
    ) -> None:
        self._aws = aws
        self._clock = clock
        self._ledger = ledger
        self._blobs = blobs
        self._shards = shards
        self._ledger_table = Table(aws, names.ledger)
        self._events_table = Table(aws, names.events)
        self._output_table = Table(aws, names.output)

    # Which jobs have ended ----------------------------------------------------------------------

    async def ended_jobs(
        self, *, ended_by: datetime, limit: int, tenant: str | None = None
    ) -> list[str]:
        ended: list[str] = []
        for state in _ENDED_STATES:
            for shard in range(self._shards):
                candidates: list[str] = []
                async for job_id in self._old_jobs(f"{state}#{shard}", ended_by, tenant):
                    candidates.append(job_id)
                    if len(candidates) == _ROW_BATCH:
                        ended += await self._ended_among(candidates, ended_by)
                        candidates = []
                        if len(ended) >= limit:
                            break
                ended += await self._ended_among(candidates, ended_by)
                if len(ended) >= limit:
                    return ended[:limit]
        return ended

    async def _old_jobs(
        self, partition: str, ended_by: datetime, only: str | None
    ) -> AsyncIterator[str]:
        """The jobs of a partition of the index by state that are old enough to have ended."""
        tenant = only or ""
        while True:
            if only is None:
                # A tenant's keys continue with "#"; "$" sorts after all of them.
                low = f"{tenant}$" if tenant else FIRST_KEY
                first = await anext(self._state_keys(partition, low, LAST_KEY, page_size=1), None)
                if first is None:
                    return
                tenant = first["s2"].partition("#")[0]
            # No job has ended before it was created.
            high = f"{tenant}#{timestamp_key(ended_by)}#{LAST_KEY}"
            async for item in self._state_keys(partition, f"{tenant}#", high):
                yield id_of(item)
            if only is not None:
                return

    def _state_keys(
        self, partition: str, low: str, high: str, *, page_size: int | None = None
    ) -> AsyncIterator[Item]:
        return self._ledger_table.query(
            Query(
                index=STATE_INDEX,
                partition=("g2", partition),
                sort="s2",
                low=low,
                high=high,
                page_size=page_size,
            )
        )

    async def _ended_among(self, job_ids: Sequence[str], ended_by: datetime) -> list[str]:
        jobs = await self._ledger.get_jobs(job_ids)
        have_ended = await _gather(lambda job: self._has_ended(job, ended_by), jobs)
        return [job.id for job, has_ended in zip(jobs, have_ended, strict=True) if has_ended]

    async def _has_ended(self, job: JobRow, ended_by: datetime) -> bool:
        if job.updated_at > ended_by or job.state is JobState.RUNNING:
            return False
        if job.intents or job.end_unreported:
            return False
        if len(job.ended) >= job.total:
            return True
        # Of a failed job, tasks that depend on the failed one wait.
        async for item in self._ledger_table.query(tasks_query(job.id)):
            task = task_of(item)
            if task.state is not TaskState.WAITING and task.spec.number not in job.ended:
                return False
        return True

    # The removal --------------------------------------------------------------------------------

    async def remove_jobs(
        self, job_ids: Sequence[str], *, ended_by: datetime, remember_until: datetime
    ) -> list[str]:
        chosen: list[JobRow] = []
        tasks = 0
        for job in await self._ledger.get_jobs(job_ids):
            if tasks < _TASKS_OF_A_STEP and await self._has_ended(job, ended_by):
                chosen.append(job)
                tasks += job.total
        removed = await _gather(lambda job: self._remove(job, remember_until), chosen)
        return [job.id for job, was_removed in zip(chosen, removed, strict=True) if was_removed]

    async def _remove(self, job: JobRow, remember_until: datetime) -> bool:
        token, until = new_token(), codec.to_us(remember_until)
        tombstone = {
            "v": _REMOVED_VERSION,
            "change": token,
            "until": until,
            "g2": f"{REMOVED}#{shard_of(job.id, self._shards)}",
            "s2": _due_key(0, job.id),
        }
        existing = await self._ledger_table.update(
            key_of(job.id),
            tombstone,
            condition="#v = :decided",
            values={":decided": job.version},
            then=f" REMOVE {_JOB_COLUMNS}",
        )
        if existing is not None and existing.get("change") != token:
            return False
        await self._remove_rows(job.id, until)
        return True

    async def _remove_rows(self, job_id: str, until: int, *, late: bool = False) -> None:
        """Delete events and output of a job, and make tombstones of its tasks.

        Args:
            late: Also of tasks that have become tombstones.
        """
        query = replace(tasks_query(job_id), fields=("id", "until"))
        if late:
            query = replace(query, where="")
        tasks = [item async for item in self._ledger_table.query(query)]
        await _gather(lambda item: self._remove_task(item, until), tasks)
        await self._delete_events(EntityType.JOB, job_id)

    async def _remove_task(self, item: Item, until: int) -> None:
        task_id = id_of(item)
        output = Query(partition=("task", task_id), fields=("task", "position"))
        await self._delete(self._output_table, self._output_table.query(output))
        await self._delete_events(EntityType.TASK, task_id)
        if is_tombstone(item):
            return
        expires_at = codec.from_us(until) + _TTL_SLACK
        await self._ledger_table.update(
            key_of(task_id),
            {"v": _REMOVED_VERSION, "until": until, "ttl": int(expires_at.timestamp())},
            condition=HAS_ROW,
            then=f" REMOVE {_TASK_COLUMNS}",
        )

    async def _delete_events(self, kind: EntityType, entity_id: str) -> None:
        query = Query(
            index=EVENT_INDEXES[0],
            partition=("GSI1PK", f"{kind}#{entity_id}"),
            fields=("PK", "SK"),
        )
        await self._delete(self._events_table, self._events_table.query(query))

    async def _delete(self, table: Table, keys: AsyncIterator[Item]) -> None:
        batch: list[Item] = []
        async for key in keys:
            batch.append(key)
            if len(batch) == _DELETE_BATCH:
                await self._delete_batch(table, batch)
                batch = []
        if batch:
            await self._delete_batch(table, batch)

    async def _delete_batch(self, table: Table, keys: Sequence[Item]) -> None:
        request = {table.name: [{"DeleteRequest": {"Key": encode_item(key)}} for key in keys]}

        async def delete() -> Any:
            return await self._aws.call(
                "dynamodb", "batch_write_item", alters=True, RequestItems=request
            )

        async for _ in attempts(self._clock, _DELETE_ATTEMPTS, _FIRST_BACKOFF):
            answer = await retry_unknown_outcome(delete)
            # Some are left over where the table is throttled.
            request = answer.get("UnprocessedItems") or {}
            if not request:
                return
        raise BackendUnavailable("dynamodb.batch_write_item: keys are left over")

    # Tombstones ---------------------------------------------------------------------------------

    async def remove_remains(self, *, now: datetime, limit: int) -> int:
        due = await self._due_tombstones(_due_key(codec.to_us(now), LAST_KEY), limit)
        now_us = codec.to_us(now)

        async def remove_rest(item: Item) -> None:
            await self._remove_rows(id_of(item), item["until"], late=item["until"] <= now_us)

        async def settle(item: Item) -> None:
            await self._settle(item, expired=item["until"] <= now_us)

        await _gather(remove_rest, due)
        await self._remove_blobs(map(id_of, due))
        await _gather(settle, due)
        return len(due)

    async def _due_tombstones(self, high: str, limit: int) -> list[Item]:
        tombstones: list[Item] = []
        for shard in range(self._shards):
            async for key in self._state_keys(f"{REMOVED}#{shard}", FIRST_KEY, high):
                # The index may be behind.
                item = await self._ledger_table.get(key_of(id_of(key)))
                if item is not None and is_tombstone(item) and item.get("s2", LAST_KEY) <= high:
                    tombstones.append(item)
                    if len(tombstones) == limit:
                        return tombstones
        return tombstones

    async def _settle(self, tombstone: Item, *, expired: bool) -> None:
        """Nothing of the job is left: the tombstone goes, or stays until its time."""
        key = key_of(id_of(tombstone))
        condition, values = "#change = :change", {":change": tombstone["change"]}
        if expired:
            await self._ledger_table.delete(key, condition=condition, values=values)
        else:
            due = {"s2": _due_key(tombstone["until"], id_of(tombstone))}
            await self._ledger_table.update(key, due, condition=condition, values=values)

    async def _remove_blobs(self, job_ids: Iterable[str]) -> None:
        """Delete the blobs of jobs: along the listing of the bucket, which is in order of keys.

        A request lists up to a thousand keys. If no more follow, the blobs of all other jobs are
        known to be gone too, so the number of requests does not grow with that of the jobs.
        """
        prefixes = sorted(prefix for job_id in job_ids for prefix in job_blob_prefixes(job_id))
        for folder in dict.fromkeys(prefix.partition("/")[0] + "/" for prefix in prefixes):
            of_folder = [prefix for prefix in prefixes if prefix.startswith(folder)]
            number, after = 0, ""
            while number < len(of_folder):
                after = max(after, of_folder[number])
                keys = await self._blobs.list_keys(folder, after=after, limit=_KEYS_OF_A_PAGE)
                doomed = [key for key in keys if _has_prefix(key, of_folder)]
                await self._blobs.delete_many(doomed)
                if len(keys) < _KEYS_OF_A_PAGE:
                    break
                after = keys[-1]
                # The last prefix before this key may have more keys.
                following = bisect_right(of_folder, after)
                number = following - _has_prefix(after, of_folder)

    async def is_removed(self, job_id: str) -> bool:
        item = await self._ledger_table.get(key_of(job_id))
        return item is not None and is_tombstone(item)

    async def remove_other_events(self, *, before: datetime, limit: int) -> int:
        # They are stored with a ``ttl``, and readers pass those whose time is over.
        return 0


def _due_key(due: int, job_id: str) -> str:
    return f"{due:020d}#{job_id}"


def _has_prefix(key: str, prefixes: Sequence[str]) -> bool:
    """Whether a key has one of some sorted prefixes, of which none is a prefix of another."""
    number = bisect_right(prefixes, key)
    return number > 0 and key.startswith(prefixes[number - 1])


async def _gather(act: Callable[[T], Awaitable[ResultT]], subjects: Iterable[T]) -> list[ResultT]:
    """The results of an action, of which some run at the same time."""
    slots = asyncio.Semaphore(_PARALLEL)

    async def run(subject: T) -> ResultT:
        async with slots:
            return await act(subject)

    running = [asyncio.ensure_future(run(subject)) for subject in subjects]
    try:
        return list(await asyncio.gather(*running))
    finally:
        for action in running:
            action.cancel()
        await asyncio.gather(*running, return_exceptions=True)
