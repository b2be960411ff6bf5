"""Readers that wait: what tasks print, and the events of jobs and tasks, while they run.

A task's row is read *before* its output: an ended task stored all its output before its end was
committed, so output that is read after the row is complete. The same holds for its events.

Where a poll is free, a follower polls at a steady pace. Where each poll costs money (see
``Backend.idle_poll_limit``), the pause doubles while nothing arrives and is short again after the
next chunk. The output log itself waits for new chunks, so that they are not delayed by the pause.

Output is read in batches of a limited size: a reader that stops, such as a client that no longer
receives, holds one batch and no more.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple
from weakref import WeakKeyDictionary

from longshore.core.events.event import Event
from longshore.core.ids import task_id_of
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import CursorLost, UsageError
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.ports.events import EventQueryResult
from longshore.ports.output import OUTPUT_START, OutputChunk, OutputLog, OutputPosition
from longshore.services.reads import get_task_of

POLL_INTERVAL = timedelta(milliseconds=100)
"""How often a row is read while its task prints nothing; the first pause where polls cost."""

READ_BYTES = 256 * 1024
"""About how much output one reader holds."""

_JOB_READ_BYTES = 16 * READ_BYTES  # for all tasks of a job together
_MIN_CHUNKS, _MAX_CHUNKS = 16, 256  # entries in one read
_BATCHES_PER_PASS = 100  # for each task of a job

_NOT_STARTED = frozenset({TaskState.WAITING, TaskState.PENDING})


KeyedChunk = tuple[str, OutputChunk]
"""The key of a task, and a chunk of its output."""


class PollBackoff:
    """How long to wait before the next poll."""

    def __init__(self, backend: Backend, first: timedelta) -> None:
        self._shortest = self.pause = first
        self._longest = max(first, backend.idle_poll_limit or first)
        self.polls_cost = backend.idle_poll_limit is not None

    def record_poll(self, *, got_data: bool) -> None:
        """Record whether a poll returned anything."""
        self.pause = self._shortest if got_data else min(2 * self.pause, self._longest)


@dataclass(slots=True)
class _OutputCursor:
    """A position in a task's output, which is read in batches of about ``batch_bytes``."""

    position: OutputPosition = OUTPUT_START
    batch_bytes: int = READ_BYTES
    count: int = _MIN_CHUNKS  # how many chunks to request
    at_end: bool = False  # the last read returned nothing
    near_end: bool = False  # the last read returned less than requested: waiting is worthwhile

    def advance(self, chunks: Sequence[OutputChunk]) -> list[OutputChunk]:
        """Take the next chunks, and return as many of them as fit into a batch."""
        batch: list[OutputChunk] = []
        size = 0
        for chunk in chunks:
            if batch and size + len(chunk.data) > self.batch_bytes:
                break
            batch.append(chunk)
            size += len(chunk.data)
        self.at_end = not chunks
        self.near_end = len(batch) == len(chunks) < self.count
        if len(batch) < len(chunks):
            self.count = len(batch)  # the rest is read again: this many fit
        elif not self.near_end and 4 * size <= self.batch_bytes:
            self.count = min(4 * self.count, _MAX_CHUNKS)
        if batch:
            self.position = OutputPosition(batch[-1].attempt, batch[-1].end)
        return batch

    async def read_next(self, output: OutputLog, task_id: str) -> list[OutputChunk]:
        """Returns the next batch; empty if there is nothing more yet."""
        return self.advance(await output.read(task_id, after=self.position, limit=self.count))


async def follow_task(
    backend: Backend,
    task_id: str,
    *,
    after: OutputPosition = OUTPUT_START,
    poll_interval: timedelta = POLL_INTERVAL,
) -> AsyncIterator[tuple[TaskRow, list[OutputChunk]]]:
    """Yields the task's row and its new output until the task has ended."""
    cursor = _OutputCursor(after)
    backoff = PollBackoff(backend, poll_interval)
    row = await get_task_of(backend.ledger, None, task_id)
    batch = await cursor.read_next(backend.output, task_id)
    while True:
        yield row, batch
        if row.state.terminal and not batch:
            return
        request = _ReadRequest(task_id, cursor.position, cursor.count, row.attempt, backoff.pause)
        wait = cursor.near_end and not row.state.terminal
        before = row.state, row.attempt
        row, chunks = await (_wait_shared(backend, request) if wait else _read(backend, request))
        batch = cursor.advance(chunks)
        backoff.record_poll(got_data=bool(batch) or (row.state, row.attempt) != before)


class _ReadRequest(NamedTuple):
    """What a waiting reader wants to read."""

    task_id: str
    after: OutputPosition
    limit: int
    attempt: int  # the task's last attempt when the reader read the row
    wait: timedelta


_ReadResult = tuple[TaskRow, list[OutputChunk]]


async def _read(backend: Backend, request: _ReadRequest, *, arrived: bool = True) -> _ReadResult:
    row = await get_task_of(backend.ledger, None, request.task_id)
    if not arrived and row.attempt == request.attempt and not row.state.terminal:
        # The same attempt still runs: the next wait returns what was printed since.
        return row, []
    output = backend.output
    return row, await output.read(request.task_id, after=request.after, limit=request.limit)


class _SharedWait:
    """A wait for output and the read that follows, shared by several readers."""

    result: asyncio.Future[_ReadResult]
    readers = 0


# By output log, so that readers of different stores share nothing.
_shared_waits: WeakKeyDictionary[OutputLog, dict[_ReadRequest, _SharedWait]] = WeakKeyDictionary()


async def _wait_shared(backend: Backend, request: _ReadRequest) -> _ReadResult:
    """Wait for output and read it, once for all readers with the same request.

    Readers of one task that have read everything are at the same position, so one wait and one read
    serve all of them.
    """
    waits = _shared_waits.setdefault(backend.output, {})
    shared = waits.get(request)
    if shared is None:
        shared = waits[request] = _SharedWait()
        shared.result = asyncio.ensure_future(_wait_and_read(backend, request, shared))
    shared.readers += 1
    try:
        return await asyncio.shield(shared.result)
    finally:
        shared.readers -= 1
        if not shared.readers:
            shared.result.cancel()  # does nothing if it is done
            _close_wait(backend, request, shared)


async def _wait_and_read(
    backend: Backend, request: _ReadRequest, shared_wait: _SharedWait
) -> _ReadResult:
    arrived = await backend.output.wait_for_output(
        request.task_id, after=request.after, timeout=request.wait
    )
    # A reader that arrives from now on may know a newer row, and must read for itself.
    _close_wait(backend, request, shared_wait)
    return await _read(backend, request, arrived=arrived)


def _close_wait(backend: Backend, request: _ReadRequest, shared_wait: _SharedWait) -> None:
    """Let no further reader join this wait."""
    waits = _shared_waits.get(backend.output, {})
    if waits.get(request) is shared_wait:
        del waits[request]


async def read_stored(
    backend: Backend,
    task_id: str,
    attempt: int | None = None,
    *,
    batch_bytes: int = READ_BYTES,
) -> AsyncIterator[OutputChunk]:
    """Yields what a task has printed so far, in all attempts or in one."""
    cursor = _OutputCursor(OutputPosition(attempt or 0, 0), batch_bytes=batch_bytes)
    while not cursor.at_end:
        for chunk in await cursor.read_next(backend.output, task_id):
            if attempt is not None and chunk.attempt > attempt:
                return
            yield chunk


async def read_job_output(
    backend: Backend, job_id: str, *, follow: bool, attempt: int | None
) -> AsyncIterator[KeyedChunk]:
    """Yields what all tasks of a job printed, by time, and with ``follow`` until it ends."""
    if follow:
        async for item in _follow_job(backend, job_id, attempt):
            yield item
        return
    states = await backend.ledger.task_states(job_id)
    keys = [key for key, state in states.items() if state is not TaskState.WAITING]
    share = _JOB_READ_BYTES // max(1, len(keys))
    sources = [
        (key, read_stored(backend, task_id_of(job_id, key), attempt, batch_bytes=share))
        for key in keys
    ]
    async for item in _merge_by_time(sources):
        yield item


async def _merge_by_time(
    sources: Iterable[tuple[str, AsyncIterator[OutputChunk]]],
) -> AsyncIterator[KeyedChunk]:
    numbered = list(sources)
    heads = []
    for index, (_, source) in enumerate(numbered):
        if (chunk := await anext(source, None)) is not None:
            heads.append((chunk.at, index, chunk))
    heapq.heapify(heads)
    while heads:
        _, index, chunk = heads[0]
        key, source = numbered[index]
        yield key, chunk
        following = await anext(source, None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following.at, index, following))


async def _follow_job(
    backend: Backend, job_id: str, attempt: int | None
) -> AsyncIterator[KeyedChunk]:
    """Yields the output of all tasks of a job, in each poll by time, until the job has ended."""
    cursors: dict[str, _OutputCursor] = {}  # by key, of tasks that have started
    drained: set[str] = set()  # keys of ended tasks whose output was read
    backoff = PollBackoff(backend, POLL_INTERVAL)
    while True:
        job = await backend.ledger.get_job(job_id)
        states = await backend.ledger.task_states(job_id)
        keys = [
            key
            for key, state in states.items()
            if key not in drained and (state not in _NOT_STARTED or key in cursors)
        ]
        share = _JOB_READ_BYTES // max(1, len(keys))
        for key in keys:
            cursors.setdefault(key, _OutputCursor(batch_bytes=share))
        printed = False
        async for key, chunk in _merge_by_time(
            (key, _read_available(backend, task_id_of(job_id, key), cursors[key])) for key in keys
        ):
            printed = True
            if attempt in (None, chunk.attempt):
                yield key, chunk
        if not printed and (job is None or job.state.terminal):
            return
        at_end = {key for key in keys if cursors[key].at_end}
        drained |= {key for key in at_end if states[key].terminal}
        backoff.record_poll(got_data=printed)
        if not printed or (backoff.polls_cost and len(at_end) == len(keys)):
            await backend.clock.sleep(backoff.pause)


async def _read_available(
    backend: Backend, task_id: str, cursor: _OutputCursor
) -> AsyncIterator[OutputChunk]:
    """Yields what is stored, up to a bound: other tasks may have started to print."""
    for _ in range(_BATCHES_PER_PASS):
        for chunk in await cursor.read_next(backend.output, task_id):
            yield chunk
        if cursor.at_end:
            return


# Events ---------------------------------------------------------------------------------------

EVENT_CURSOR_PATTERN = r"^[A-Za-z0-9_-]{0,500}(\.[0-9a-f]{8})?$"
"""An event cursor as text; the empty text is the beginning."""

_PAGE = 500
_TAG_BYTES = 4

FeedItem = tuple[str, Event]
"""The cursor after an event, and the event."""


async def _no_row() -> None:
    return None


@dataclass(frozen=True, slots=True)
class EventFeed:
    """A growing list of events that a reader can continue later, without gaps or duplicates.

    Events are only added at the end, so a cursor stays valid. It is valid for one feed only, so its
    text has a tag of the feed.
    """

    name: str
    fetch: Callable[..., Awaitable[EventQueryResult]]  # limit=, cursor=
    # Of the job or task whose events these are: no more are added when it has ended.
    read_row: Callable[[], Awaitable[JobRow | TaskRow | None]] = _no_row

    def encode(self, cursor: str | None) -> str:
        """The cursor as text; None: the beginning."""
        return f"{cursor or ''}.{self._tag}"

    def decode(self, text: str) -> str | None:
        """The cursor that a text encodes.

        Raises:
            UsageError: the text encodes no cursor of this feed.
        """
        cursor, _, tag = text.partition(".")
        if tag not in ("", self._tag):
            raise UsageError("the cursor belongs to a list of other events; leave it out to begin")
        return cursor or None

    async def read(self, *, limit: int, cursor: str | None) -> EventQueryResult:
        """The events after a cursor.

        Raises:
            CursorLost: the store was restored, and does not have the event of the cursor.
        """
        try:
            return await self.fetch(limit=limit, cursor=cursor)
        except CursorLost as error:
            raise CursorLost(error.read_from and self.encode(error.read_from)) from error

    @property
    def _tag(self) -> str:
        return hashlib.blake2b(self.name.encode(), digest_size=_TAG_BYTES).hexdigest()


def job_feed(backend: Backend, job: JobRow, *, tasks: bool) -> EventFeed:
    """The events of a job; with ``tasks`` those of its tasks too."""
    entity, job_id = (None, job.id) if tasks else (f"JOB#{job.id}", None)

    async def fetch(limit: int, cursor: str | None) -> EventQueryResult:
        return await backend.events.query(
            job.spec.tenant, entity=entity, job_id=job_id, limit=limit, cursor=cursor
        )

    async def read_row() -> JobRow | None:
        return await backend.ledger.get_job(job.id)

    return EventFeed(f"{job.id} {tasks}", fetch, read_row)


def task_feed(backend: Backend, task: TaskRow) -> EventFeed:
    """The events of a task; their sequences are the cursors."""

    async def fetch(limit: int, cursor: str | None) -> EventQueryResult:
        after = int(cursor or 0)
        items = await backend.events.history(
            task.spec.tenant, f"TASK#{task.id}", after=after, limit=limit
        )
        if after > task.last_sequence and not items:
            # The task may have gone on since its row was read.
            row = await read_row()
            if row is None or after > row.last_sequence:
                raise CursorLost
        cursors = tuple(str(event.sequence) for event in items)
        return EventQueryResult(tuple(items), cursors, more=bool(items))

    async def read_row() -> TaskRow | None:
        return await backend.ledger.get_task(task.id)

    return EventFeed(task.id, fetch, read_row)


async def follow_events(
    feed: EventFeed,
    cursor: str | None = None,
    *,
    follow: bool = True,
    clock: Clock,
    poll: timedelta,
) -> AsyncIterator[FeedItem | JobRow | TaskRow | None]:
    """The events of a job or task, and with ``follow`` new ones until it has ended.

    The last item is its row, None if it was deleted.
    """
    while True:
        # Read before the events: all events of a row are stored before it is terminal.
        row = await feed.read_row()
        page = await feed.read(limit=_PAGE, cursor=cursor)
        for cursor, event in zip(page.cursors, page.items, strict=True):
            yield cursor, event
        if page.more:
            continue
        if not follow or row is None or row.state.terminal:
            yield row
            return
        await clock.sleep(poll)
