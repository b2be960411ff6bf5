"""The evidence in the tables of an installation on AWS, by plain reads; nothing is changed.

DynamoDB has no moment at which everything can be read together. All laws are about one job, so a
job is read until its rows stood still meanwhile and its history is whole; events come a moment
after their row, so that needs some patience. A job that changes for as long as it is looked at is
counted and left out.

There is no order of all commits either: events have times by the clocks of their emitters. So
of events of different rows that are closer than clocks may differ, the order is not judged. Nor are
messages: who looks at one on SQS takes it.

Rows and output are read consistently. Events of a row are found by an index, which may show one
too late and never one that does not exist; data without an owner is read from the tables.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from longshore.audit import dynamo_items as rows
from longshore.audit.store_snapshot import (
    EventRecord,
    JobRecord,
    OutputRecord,
    StoreSnapshot,
    TaskRecord,
)
from longshore.audit.vocabulary import OTHER_ENTITIES, job_id_in

AwsCall = Callable[..., Awaitable[dict[str, Any]]]
"""How AWS is asked: a service, an operation, and its parameters by name."""

Item = rows.Item

_JOBS_PER_CHUNK = 20
_MAX_CONCURRENT_CALLS = 32
_PAUSES = (0.1, 0.3, 1.0, 3.0, 6.0)
_SKEW_US = 5_000_000
_EPOCH = 1  # the one that fences of this store have
_NOT_FOUND_CODES = ("404", "NoSuchKey", "NotFound")


class InstallationNames(NamedTuple):
    """What the parts of an installation are called."""

    ledger: str
    events: str
    output: str
    bucket: str


class DynamoChunk(NamedTuple):
    """A few jobs: how many, how many more would not stand still, and all evidence of the former."""

    jobs: int
    skipped: int
    snapshot: StoreSnapshot


@dataclass(slots=True)
class _JobRows:
    """What was read of some jobs."""

    jobs: list[JobRecord] = field(default_factory=list)
    tasks: list[TaskRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    output: list[OutputRecord] = field(default_factory=list)
    blobs: set[str] = field(default_factory=set)
    mismatches: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: _JobRows) -> None:
        self.jobs += other.jobs
        self.tasks += other.tasks
        self.events += other.events
        self.output += other.output
        self.blobs |= other.blobs
        self.mismatches += other.mismatches

    def snapshot(self, *, settled: bool, taken_at_us: int | None) -> StoreSnapshot:
        return StoreSnapshot(
            taken_at_us=time.time_ns() // 1000 if taken_at_us is None else taken_at_us,
            jobs=tuple(self.jobs),
            tasks=tuple(self.tasks),
            events=tuple(self.events),
            output=tuple(self.output),
            blobs=frozenset(self.blobs),
            settled=settled,
            mismatches=tuple(self.mismatches),
            epoch=_EPOCH,
            time_slack=_SKEW_US,
        )


async def read_snapshot(
    call: AwsCall,
    names: InstallationNames,
    *,
    settled: bool = False,
    taken_at_us: int | None = None,
    pauses: Sequence[float] = _PAUSES,
    job_ids: Collection[str] | None = None,
) -> StoreSnapshot:
    """All that is stored, together.

    Args:
        only: Nothing but these jobs.
        settled: Whether the run has come to rest with healthy workers.
        taken_at_us: What the clock says, where it is not the machine's.
        pauses: Seconds between looks at a job that has not come to rest.
    """
    look, job_rows = _DynamoReader(call, names, pauses), _JobRows()
    walk = look.all(await look.job_ids()) if job_ids is None else look.jobs(list(job_ids))
    async for piece in walk:
        job_rows.add(piece.rows)
    return job_rows.snapshot(settled=settled, taken_at_us=taken_at_us)


async def count_jobs(call: AwsCall, names: InstallationNames) -> int:
    """The amount of data, for a progress display."""
    return len(await _DynamoReader(call, names, ()).job_ids())


async def read_chunks(
    call: AwsCall, names: InstallationNames, *, pauses: Sequence[float] = _PAUSES
) -> AsyncIterator[DynamoChunk]:
    """All that is stored, a few jobs at a time: little memory, and each job at one moment."""
    look = _DynamoReader(call, names, pauses)
    async for some in look.all(await look.job_ids()):
        evidence = some.rows.snapshot(settled=False, taken_at_us=None)
        yield DynamoChunk(len(some.rows.jobs), some.skipped, evidence)


class _Batch(NamedTuple):
    rows: _JobRows
    skipped: int


class _DynamoReader:
    """Reads tables."""

    def __init__(self, call: AwsCall, names: InstallationNames, pauses: Sequence[float]) -> None:
        self._aws_call = call
        self._names = names
        self._pauses = pauses
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_CALLS)

    async def _call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        async with self._slots:
            return await self._aws_call(service, operation, **arguments)

    async def job_ids(self) -> dict[str, None]:
        """Of every job that has a row, its own or one of a task."""
        walk = self._pages("scan", TableName=self._names.ledger, ConsistentRead=True)
        return {job_id_in(rows.id_of(item)): None async for page in walk for item in page}

    async def all(self, job_ids: dict[str, None]) -> AsyncIterator[_Batch]:
        """Every job, then those that came meanwhile, and what belongs to none."""
        async for some in self.jobs(list(job_ids)):
            yield some
        strange = await self._find_orphans(job_ids)
        later = {job_id: None for job_id in strange.jobs if await self._rows(job_id)}
        async for some in self.jobs(list(later)):
            yield some
        yield _Batch(strange.without(later), 0)

    async def jobs(self, job_ids: Sequence[str]) -> AsyncIterator[_Batch]:
        """These jobs, a few at a time."""
        for start in range(0, len(job_ids), _JOBS_PER_CHUNK):
            some = job_ids[start : start + _JOBS_PER_CHUNK]
            read = await asyncio.gather(*(self._job(job_id) for job_id in some))
            job_rows = _JobRows()
            for entry in read:
                if entry is not None:
                    job_rows.add(entry)
            yield _Batch(job_rows, read.count(None))

    async def _job(self, job_id: str) -> _JobRows | None:
        """Everything of one job at one moment; None if it never stood still."""
        for pause in (*self._pauses, None):
            items = await self._rows(job_id)
            events = await self._gather(self._events(item) for item in items)
            tasks = [item for item in items if not rows.is_job(item)]
            output = await self._gather(self._output(rows.id_of(item)) for item in tasks)
            still = _versions(items) == _versions(await self._rows(job_id))
            lasts = zip(items, events, strict=True)
            whole = all(len(stored) >= (rows.last_sequence_of(item) or 0) for item, stored in lasts)
            if (still and whole) or pause is None:
                break
            await asyncio.sleep(pause)
        if not still:
            return None
        return await self._parse_job(items, events, output)

    async def _parse_job(
        self, items: list[Item], events: list[list[Item]], output: list[list[OutputRecord]]
    ) -> _JobRows:
        job_rows = _JobRows(output=[entry for entries in output for entry in entries])
        for item, stored in zip(items, events, strict=True):
            job_rows.events += [rows.event(entry, job_rows.mismatches) for entry in stored]
            by_sequence = {rows.plain(entry.get("sequence")): entry for entry in stored}
            rows.compare_events(item, by_sequence, job_rows.mismatches)
        blob_keys: dict[str, None] = {}

        def note(key: str) -> None:
            blob_keys[key] = None

        for item in items:
            read = rows.job if rows.is_job(item) else rows.task
            read(item, note, [])
        loaded = dict(zip(blob_keys, await self._gather(map(self._blob, blob_keys)), strict=True))
        for item in items:
            if rows.is_job(item):
                job_rows.jobs.append(rows.job(item, loaded.get, job_rows.mismatches))
            else:
                job_rows.tasks.append(rows.task(item, loaded.get, job_rows.mismatches))
        named = {
            key
            for records in (job_rows.jobs, job_rows.tasks, job_rows.events)
            for row in records
            for key in row.blobs
            if isinstance(key, str)
        }
        there = await self._gather(map(self._exists, named))
        job_rows.blobs |= {key for key, is_there in zip(named, there, strict=True) if is_there}
        return job_rows

    async def _find_orphans(self, job_ids: dict[str, None]) -> _Orphans:
        """Events and output of jobs that are not among these, and events of what is no job."""
        strange = _Orphans()
        events = self._pages("scan", TableName=self._names.events, ConsistentRead=True)
        async for page in events:
            for item in page:
                kind, name = rows.plain(item.get("entityType")), rows.plain(item.get("entityId"))
                job_id = None if kind in OTHER_ENTITIES else job_id_in(str(name))
                if rows.has_expired(item):
                    continue  # DynamoDB has not deleted it yet
                if job_id is None or job_id not in job_ids:
                    strange.events.append((job_id, item))
        output = self._pages("scan", TableName=self._names.output, ConsistentRead=True)
        async for page in output:
            for item in page:
                task_id = str(rows.plain(item.get("task")))
                # Parts of what is too large for one item lie in a partition of their own.
                if "#" not in task_id and job_id_in(task_id) not in job_ids:
                    strange.output += [(task_id, entry) for entry in rows.output(task_id, item)]
        return strange

    async def _rows(self, job_id: str) -> list[Item]:
        bucket = rows.bucket_of(job_id)
        of_bucket = {"#k": "bucket", "#id": "id"}
        walk = self._pages(
            "query",
            TableName=self._names.ledger,
            KeyConditionExpression="#k = :k AND begins_with(#id, :id)",
            ExpressionAttributeNames=of_bucket,
            ExpressionAttributeValues={":k": {"S": bucket}, ":id": {"S": job_id}},
            ConsistentRead=True,
        )
        items = [item async for page in walk for item in page]
        items = [item for item in items if job_id_in(rows.id_of(item)) == job_id]
        if any(rows.is_being_removed(item) for item in items):
            return []
        return [item for item in items if not rows.is_tombstone(item)]

    async def _events(self, item: Item) -> list[Item]:
        entity = f"{'JOB' if rows.is_job(item) else 'TASK'}#{rows.id_of(item)}"
        return await self._query(self._names.events, "GSI1PK", entity, IndexName="GSI1-index")

    async def _output(self, task_id: str) -> list[OutputRecord]:
        job_rows: list[OutputRecord] = []
        for item in await self._query(self._names.output, "task", task_id, ConsistentRead=True):
            if await self._is_complete(task_id, item):
                job_rows += rows.output(task_id, item)
        return job_rows

    async def _is_complete(self, task_id: str, item: Item) -> bool:
        parts = rows.plain(item.get("parts"))
        if not parts:
            return True
        attempt, _, first = item["position"]["S"].partition(".")
        own = f"{task_id}#{int(attempt)}.{int(first)}.{rows.plain(item.get('digest'))}"
        there = await self._query(self._names.output, "task", own, ConsistentRead=True)
        return bool(len(there) >= parts)

    async def _query(self, table: str, name: str, value: str, **arguments: Any) -> list[Item]:
        walk = self._pages(
            "query",
            TableName=table,
            KeyConditionExpression="#k = :k",
            ExpressionAttributeNames={"#k": name},
            ExpressionAttributeValues={":k": {"S": value}},
            **arguments,
        )
        return [item async for page in walk for item in page]

    async def _pages(self, operation: str, **arguments: Any) -> AsyncIterator[list[Item]]:
        while True:
            answer = await self._call("dynamodb", operation, **arguments)
            yield answer["Items"]
            if not (last := answer.get("LastEvaluatedKey")):
                return
            arguments["ExclusiveStartKey"] = last

    async def _blob(self, key: str) -> bytes | None:
        try:
            answer = await self._call("s3", "get_object", **self._object_arguments(key))
        except Exception as error:
            if getattr(error, "code", None) in _NOT_FOUND_CODES:
                return None
            raise
        async with answer["Body"] as body:
            data: bytes = await body.read()
        return data

    async def _exists(self, key: str) -> bool:
        try:
            await self._call("s3", "head_object", **self._object_arguments(key))
        except Exception as error:
            if getattr(error, "code", None) in _NOT_FOUND_CODES:
                return False
            raise
        return True

    def _object_arguments(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._names.bucket, "Key": key, "expects": _NOT_FOUND_CODES}

    async def _gather(self, reads: Iterable[Awaitable[Any]]) -> list[Any]:
        return list(await asyncio.gather(*reads))


@dataclass(slots=True)
class _Orphans:
    events: list[tuple[str | None, Item]] = field(default_factory=list)  # with their job
    output: list[tuple[str, OutputRecord]] = field(default_factory=list)  # with its task

    @property
    def jobs(self) -> dict[str, None]:
        """The jobs that anything here names."""
        named = dict.fromkeys(job_id for job_id, _ in self.events if job_id is not None)
        return named | dict.fromkeys(job_id_in(task_id) for task_id, _ in self.output)

    def without(self, job_ids: dict[str, None]) -> _JobRows:
        """What belongs to none of these either."""
        job_rows = _JobRows()
        for job_id, item in self.events:
            if job_id not in job_ids:
                job_rows.events.append(rows.event(item, job_rows.mismatches))
        job_rows.output += [
            entry for task_id, entry in self.output if job_id_in(task_id) not in job_ids
        ]
        return job_rows


def _versions(items: Sequence[Item]) -> dict[str, Any]:
    return {rows.id_of(item): rows.version_of(item) for item in items}
