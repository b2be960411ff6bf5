"""The evidence in the tables of an installation on AWS, by plain reads; nothing is changed.

DynamoDB has no moment at which everything can be read together. All laws are about one job, so a
job is read until its rows stood still meanwhile and its history is whole; events come a moment
after their row, so that needs some patience. A job that changes for as long as it is looked at is
counted and left out.

There is no order of all commits either: events have times, by the clocks of those who told them. So
of events of different rows that are closer than clocks may differ, the order is not judged. Nor are
messages: who looks at one on SQS takes it.

Rows and output are read consistently. Events of a row are found by an index, which may show one
too late and never one that is not there; what nobody owns is looked for in the tables themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from longshore.testing.auditing import dynamo_rows as rows
from longshore.testing.auditing.evidence import Event, Evidence, Job, Output, Task
from longshore.testing.auditing.vocabulary import OTHER_ENTITIES, job_named_in

Call = Callable[..., Awaitable[dict[str, Any]]]
"""How AWS is asked: a service, an operation, and its parameters by name."""

Item = rows.Item

_JOBS_AT_ONCE = 20
_CALLS_AT_ONCE = 32
_PAUSES = (0.1, 0.3, 1.0, 3.0, 6.0)
_SKEW_US = 5_000_000
_EPOCH = 1  # the one that fences of this store have
_NOT_THERE = ("404", "NoSuchKey", "NotFound")


class Place(NamedTuple):
    """What the parts of an installation are called."""

    ledger: str
    events: str
    output: str
    bucket: str


class Piece(NamedTuple):
    """A few jobs: how many, how many more would not stand still, and all evidence of the former."""

    jobs: int
    restless: int
    evidence: Evidence


@dataclass(slots=True)
class _Found:
    """What was read of some jobs."""

    jobs: list[Job] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    output: list[Output] = field(default_factory=list)
    blobs: set[str] = field(default_factory=set)
    unlike: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: _Found) -> None:
        self.jobs += other.jobs
        self.tasks += other.tasks
        self.events += other.events
        self.output += other.output
        self.blobs |= other.blobs
        self.unlike += other.unlike

    def evidence(self, *, settled: bool, taken_at_us: int | None) -> Evidence:
        return Evidence(
            taken_at_us=time.time_ns() // 1000 if taken_at_us is None else taken_at_us,
            jobs=tuple(self.jobs),
            tasks=tuple(self.tasks),
            events=tuple(self.events),
            output=tuple(self.output),
            blobs=frozenset(self.blobs),
            settled=settled,
            unlike=tuple(self.unlike),
            epoch=_EPOCH,
            unordered_within=_SKEW_US,
        )


async def evidence_of(
    call: Call,
    place: Place,
    *,
    settled: bool = False,
    taken_at_us: int | None = None,
    pauses: Sequence[float] = _PAUSES,
    only: Collection[str] | None = None,
) -> Evidence:
    """All that is stored, together.

    Args:
        only: Nothing but these jobs.
        settled: Whether the run has come to rest with healthy workers.
        taken_at_us: What the clock says, where it is not the machine's.
        pauses: Seconds between looks at a job that has not come to rest.
    """
    look, found = _Look(call, place, pauses), _Found()
    walk = look.all(await look.job_ids()) if only is None else look.jobs(list(only))
    async for piece in walk:
        found.add(piece.found)
    return found.evidence(settled=settled, taken_at_us=taken_at_us)


async def count_jobs(call: Call, place: Place) -> int:
    """How much there is, for whoever wants to show how far an audit is."""
    return len(await _Look(call, place, ()).job_ids())


async def pieces_of(
    call: Call, place: Place, *, pauses: Sequence[float] = _PAUSES
) -> AsyncIterator[Piece]:
    """All that is stored, a few jobs at a time: little memory, and each job at one moment."""
    look = _Look(call, place, pauses)
    async for some in look.all(await look.job_ids()):
        evidence = some.found.evidence(settled=False, taken_at_us=None)
        yield Piece(len(some.found.jobs), some.restless, evidence)


class _Some(NamedTuple):
    found: _Found
    restless: int


class _Look:
    """Reads tables."""

    def __init__(self, call: Call, place: Place, pauses: Sequence[float]) -> None:
        self._ask = call
        self._place = place
        self._pauses = pauses
        self._room = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def _call(self, service: str, operation: str, **given: Any) -> dict[str, Any]:
        async with self._room:
            return await self._ask(service, operation, **given)

    async def job_ids(self) -> dict[str, None]:
        """Of every job that has a row, its own or one of a task."""
        walk = self._pages("scan", TableName=self._place.ledger, ConsistentRead=True)
        return {job_named_in(rows.id_of(item)): None async for page in walk for item in page}

    async def all(self, known: dict[str, None]) -> AsyncIterator[_Some]:
        """Every job, then those that came meanwhile, and what belongs to none."""
        async for some in self.jobs(list(known)):
            yield some
        strange = await self._strange(known)
        later = {job_id: None for job_id in strange.jobs if await self._rows(job_id)}
        async for some in self.jobs(list(later)):
            yield some
        yield _Some(strange.without(later), 0)

    async def jobs(self, job_ids: Sequence[str]) -> AsyncIterator[_Some]:
        """These jobs, a few at a time."""
        for start in range(0, len(job_ids), _JOBS_AT_ONCE):
            some = job_ids[start : start + _JOBS_AT_ONCE]
            read = await asyncio.gather(*(self._job(job_id) for job_id in some))
            found = _Found()
            for one in read:
                if one is not None:
                    found.add(one)
            yield _Some(found, read.count(None))

    async def _job(self, job_id: str) -> _Found | None:
        """Everything of one job at one moment; None if it never stood still."""
        for pause in (*self._pauses, None):
            items = await self._rows(job_id)
            events = await self._all(self._events(item) for item in items)
            tasks = [item for item in items if not rows.is_job(item)]
            output = await self._all(self._output(rows.id_of(item)) for item in tasks)
            still = _versions(items) == _versions(await self._rows(job_id))
            lasts = zip(items, events, strict=True)
            whole = all(len(stored) >= (rows.last_of(item) or 0) for item, stored in lasts)
            if (still and whole) or pause is None:
                break
            await asyncio.sleep(pause)
        if not still:
            return None
        return await self._understood(items, events, output)

    async def _understood(
        self, items: list[Item], events: list[list[Item]], output: list[list[Output]]
    ) -> _Found:
        found = _Found(output=[entry for entries in output for entry in entries])
        for item, stored in zip(items, events, strict=True):
            found.events += [rows.event(one, found.unlike) for one in stored]
            by_sequence = {rows.plain(one.get("sequence")): one for one in stored}
            rows.told_unlike(item, by_sequence, found.unlike)
        wanted: dict[str, None] = {}

        def note(key: str) -> None:
            wanted[key] = None

        for item in items:
            read = rows.job if rows.is_job(item) else rows.task
            read(item, note, [])
        loaded = dict(zip(wanted, await self._all(map(self._blob, wanted)), strict=True))
        for item in items:
            if rows.is_job(item):
                found.jobs.append(rows.job(item, loaded.get, found.unlike))
            else:
                found.tasks.append(rows.task(item, loaded.get, found.unlike))
        named = {
            key
            for kept in (found.jobs, found.tasks, found.events)
            for row in kept
            for key in row.blobs
            if isinstance(key, str)
        }
        there = await self._all(map(self._is_there, named))
        found.blobs |= {key for key, is_there in zip(named, there, strict=True) if is_there}
        return found

    async def _strange(self, known: dict[str, None]) -> _Strange:
        """Events and output of jobs that are not among these, and events of what is no job."""
        strange = _Strange()
        events = self._pages("scan", TableName=self._place.events, ConsistentRead=True)
        async for page in events:
            for item in page:
                kind, name = rows.plain(item.get("entityType")), rows.plain(item.get("entityId"))
                job_id = None if kind in OTHER_ENTITIES else job_named_in(str(name))
                if job_id is None or job_id not in known:
                    strange.events.append((job_id, item))
        output = self._pages("scan", TableName=self._place.output, ConsistentRead=True)
        async for page in output:
            for item in page:
                task_id = str(rows.plain(item.get("task")))
                # Parts of what is too large for one item lie in a partition of their own.
                if "#" not in task_id and job_named_in(task_id) not in known:
                    strange.output += [(task_id, entry) for entry in rows.output(task_id, item)]
        return strange

    async def _rows(self, job_id: str) -> list[Item]:
        bucket = rows.bucket_of(job_id)
        of_bucket = {"#k": "bucket", "#id": "id"}
        walk = self._pages(
            "query",
            TableName=self._place.ledger,
            KeyConditionExpression="#k = :k AND begins_with(#id, :id)",
            ExpressionAttributeNames=of_bucket,
            ExpressionAttributeValues={":k": {"S": bucket}, ":id": {"S": job_id}},
            ConsistentRead=True,
        )
        items = [item async for page in walk for item in page]
        return [item for item in items if job_named_in(rows.id_of(item)) == job_id]

    async def _events(self, item: Item) -> list[Item]:
        entity = f"{'JOB' if rows.is_job(item) else 'TASK'}#{rows.id_of(item)}"
        return await self._query(self._place.events, "GSI1PK", entity, IndexName="GSI1-index")

    async def _output(self, task_id: str) -> list[Output]:
        found: list[Output] = []
        for item in await self._query(self._place.output, "task", task_id, ConsistentRead=True):
            if await self._has_its_parts(task_id, item):
                found += rows.output(task_id, item)
        return found

    async def _has_its_parts(self, task_id: str, item: Item) -> bool:
        parts = rows.plain(item.get("parts"))
        if not parts:
            return True
        attempt, _, first = item["place"]["S"].partition(".")
        own = f"{task_id}#{int(attempt)}.{int(first)}.{rows.plain(item.get('digest'))}"
        there = await self._query(self._place.output, "task", own, ConsistentRead=True)
        return bool(len(there) >= parts)

    async def _query(self, table: str, name: str, value: str, **more: Any) -> list[Item]:
        walk = self._pages(
            "query",
            TableName=table,
            KeyConditionExpression="#k = :k",
            ExpressionAttributeNames={"#k": name},
            ExpressionAttributeValues={":k": {"S": value}},
            **more,
        )
        return [item async for page in walk for item in page]

    async def _pages(self, operation: str, **given: Any) -> AsyncIterator[list[Item]]:
        while True:
            answer = await self._call("dynamodb", operation, **given)
            yield answer["Items"]
            if not (last := answer.get("LastEvaluatedKey")):
                return
            given["ExclusiveStartKey"] = last

    async def _blob(self, key: str) -> bytes | None:
        try:
            answer = await self._call("s3", "get_object", **self._named(key))
        except Exception as error:
            if getattr(error, "code", None) in _NOT_THERE:
                return None
            raise
        async with answer["Body"] as body:
            data: bytes = await body.read()
        return data

    async def _is_there(self, key: str) -> bool:
        try:
            await self._call("s3", "head_object", **self._named(key))
        except Exception as error:
            if getattr(error, "code", None) in _NOT_THERE:
                return False
            raise
        return True

    def _named(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._place.bucket, "Key": key, "expects": _NOT_THERE}

    async def _all(self, reads: Iterable[Awaitable[Any]]) -> list[Any]:
        return list(await asyncio.gather(*reads))


@dataclass(slots=True)
class _Strange:
    events: list[tuple[str | None, Item]] = field(default_factory=list)  # with their job
    output: list[tuple[str, Output]] = field(default_factory=list)  # with its task

    @property
    def jobs(self) -> dict[str, None]:
        """The jobs that anything here names."""
        named = dict.fromkeys(job_id for job_id, _ in self.events if job_id is not None)
        return named | dict.fromkeys(job_named_in(task_id) for task_id, _ in self.output)

    def without(self, known: dict[str, None]) -> _Found:
        """What belongs to none of these either."""
        found = _Found()
        for job_id, item in self.events:
            if job_id not in known:
                found.events.append(rows.event(item, found.unlike))
        found.output += [
            entry for task_id, entry in self.output if job_named_in(task_id) not in known
        ]
        return found


def _versions(items: Sequence[Item]) -> dict[str, Any]:
    return {rows.id_of(item): rows.version_of(item) for item in items}
