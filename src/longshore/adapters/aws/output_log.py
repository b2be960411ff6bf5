"""The output log in DynamoDB: many entries in one item, because a write costs by the kilobyte.

A task is a partition of the table. A segment is an item ``{attempt}.{first}`` with a run of
entries, and says its ``last`` sequence. It is written under the condition that the item is new, and
never changes. An attempt has one writer, which appends in order: it starts a new segment only after
the one before is stored. An append that is repeated, perhaps with more entries, finds the existing
segment and continues behind it, so segments do not overlap and the first write of a sequence wins.

**Atomicity.** What an output pump appends at once fits into one segment. Of more, a part may be
stored when the rest fails; a marker then replaces the rest.

**Lost answers.** Every call can be repeated. An append that had happened finds its own segments and
drops their entries; one that arrives late is refused if its segment exists.

**Cost.** Append: one request per segment and 1 write unit per KB, compressed, and in five minutes
1 read unit for each task, to know whether its job was removed. Read: 1 request from
the start or from where this process has read, otherwise 2; 1 read unit for each 4 KB of segments,
consistently. Wait: nothing for output that this process knows; otherwise a poll at once and then
every half second, ½ to 1 read unit each; readers that follow a task share their waits. A partition
takes 1,000 write units a second, so a task prints at most about 1 MB a second, compressed.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TypeVar
from weakref import WeakValueDictionary

from longshore.adapters.aws.attributes import Item
from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.ledger.items import is_tombstone, key_of
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.tables import Query, Table
from longshore.adapters.shared.output_codec import (
    Run,
    entries_after,
    entries_fitting,
    last_sequence_of,
    pack,
    runs_of,
    unpack,
)
from longshore.core.ids import split_task_id
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.clock import Clock
from longshore.ports.output import OUTPUT_START, OutputChunk, OutputPosition

MAX_SEQUENCE = 10**19 - 1
"""Sequences have 19 digits in a key."""

_LAST_POSITION = OutputPosition(MAX_SEQUENCE, MAX_SEQUENCE)
_SEGMENT_BYTES = 352 * 1024  # DynamoDB takes 400 KB
_FIRST_PAGE, _GROWTH = 2, 4  # segments: a short read should not pay for a megabyte
_POLL_INTERVAL = timedelta(milliseconds=500)
_JOB_FOUND_FOR_S = 300
_NO_TIME = timedelta(0)
_SEGMENTS_CACHED = 32
_TASKS_CACHED = 4096

T = TypeVar("T")


@dataclass(frozen=True)
class _Segment:
    """Sequences ``first`` to ``last`` of an attempt."""

    attempt: int
    first: int
    last: int
    data: bytes

    @classmethod
    def of_run(cls, run: Run) -> _Segment:
        """A segment of the start of a run."""
        run = entries_fitting(run, _SEGMENT_BYTES)
        return cls(run[0].attempt, run[0].sequence, last_sequence_of(run[-1]), pack(run))

    @classmethod
    def of_item(cls, item: Item) -> _Segment:
        attempt, _, first = item["position"].partition(".")
        return cls(int(attempt), int(first), item["last"], item["data"])

    @property
    def end(self) -> OutputPosition:
        return OutputPosition(self.attempt, self.last)

    @cached_property
    def entries(self) -> Run:
        return unpack(self.data, self.attempt, self.first)


@dataclass(eq=False)
class _TaskState:
    """What this process knows of a task's output; shared by the waiters for more."""

    end: OutputPosition = OUTPUT_START  # the end of a segment; there may be more
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set once, then replaced
    polled_at_s: float = -math.inf  # on the clock of the event loop
    job_found_at_s: float = -math.inf

    def advance(self, end: OutputPosition) -> None:
        """A segment ends here: wake all waiters if that is new."""
        if end > self.end:
            self.end = end
            self.changed.set()
            self.changed = asyncio.Event()


class DynamoOutputLog:
    """See ``ports.output.OutputLog``."""

    def __init__(self, aws: AwsClient, names: Names, clock: Clock) -> None:
        self._table = Table(aws, names.output)
        self._ledger_table = Table(aws, names.ledger)
        self._clock = clock
        # By task. The states also of tasks that have not been used for long, as long as a caller
        # waits for their output.
        self._states: WeakValueDictionary[str, _TaskState] = WeakValueDictionary()
        self._recent_states: OrderedDict[str, _TaskState] = OrderedDict()
        self._last_segments: OrderedDict[str, _Segment] = OrderedDict()  # the last that was read

    def _state_of(self, task_id: str) -> _TaskState:
        state = self._states.setdefault(task_id, _TaskState())
        _keep_newest(self._recent_states, task_id, state, _TASKS_CACHED)
        return state

    # Appending ----------------------------------------------------------------------------------

    async def append(self, task_id: str, chunks: Sequence[OutputChunk]) -> None:
        if await self._is_removed(task_id):
            return
        for run in runs_of(chunks):
            if run[0].sequence < 1 or last_sequence_of(run[-1]) > MAX_SEQUENCE:
                raise UsageError(f"output sequences count from 1 to {MAX_SEQUENCE}")
            left = run
            while left:
                stored = await self._put(task_id, _Segment.of_run(left))
                self._state_of(task_id).advance(stored.end)
                left = entries_after(left, stored.last)

    async def _is_removed(self, task_id: str) -> bool:
        """Whether the task's job was removed, when it was last looked up.

        Only a worker that was frozen since the job's end appends so late. What it appends before
        the next look goes with the job's tombstone.
        """
        state = self._state_of(task_id)
        if _now_s() - state.job_found_at_s < _JOB_FOUND_FOR_S:
            return False
        item = await self._ledger_table.get(key_of(split_task_id(task_id)[0]))
        if item is not None and is_tombstone(item):
            return True
        state.job_found_at_s = _now_s()
        return False

    async def _put(self, task_id: str, segment: _Segment) -> _Segment:
        """Store a segment. Returns it, or the existing one that starts with it."""
        item: Item = {
            "task": task_id,
            "position": _key(OutputPosition(segment.attempt, segment.first)),
            "last": segment.last,
            "data": segment.data,
        }
        existing = await self._table.put(item, condition="attribute_not_exists(#position)")
        return segment if existing is None else _Segment.of_item(existing)

    # Reading ------------------------------------------------------------------------------------

    async def read(
        self, task_id: str, *, after: OutputPosition = OUTPUT_START, limit: int = 1000
    ) -> list[OutputChunk]:
        segment = await self._segment_after(task_id, after)
        begin = OutputPosition(after.attempt, segment.last + 1 if segment else 1)
        chunks = [] if segment is None else self._entries(task_id, segment, after)
        if len(chunks) < limit:
            async with aclosing(self._segments_from(task_id, begin)) as segments:
                async for segment in segments:
                    chunks += self._entries(task_id, segment, after)
                    if len(chunks) >= limit:
                        break
                else:
                    self._state_of(task_id).polled_at_s = _now_s()
        return chunks[:limit]

    async def _segment_after(self, task_id: str, after: OutputPosition) -> _Segment | None:
        """The segment that may contain the next entry; None: read the attempt from its start."""
        cached, first = self._last_segments.get(task_id), after.sequence + 1
        if cached and cached.attempt == after.attempt and cached.first <= first <= cached.last + 1:
            return cached
        if first == 1:
            return None
        start, position = OutputPosition(after.attempt, 0), OutputPosition(after.attempt, first)
        return await self._last_segment(task_id, start, position)

    def _entries(self, task_id: str, segment: _Segment, after: OutputPosition) -> Run:
        if segment.end <= after:
            return []
        self._remember_segment(task_id, segment)
        return [
            entry
            for entry in segment.entries
            if OutputPosition(entry.attempt, entry.sequence) > after
        ]

    def _remember_segment(self, task_id: str, segment: _Segment) -> None:
        """Cache a segment: the next read starts in it, or right behind it."""
        self._state_of(task_id).advance(segment.end)
        _keep_newest(self._last_segments, task_id, segment, _SEGMENTS_CACHED)

    async def _segments_from(
        self, task_id: str, begin: OutputPosition
    ) -> AsyncGenerator[_Segment, None]:
        """All segments from this position on, in order.

        A query is not a snapshot: it may miss a segment that is stored while it runs, and return
        the next one. The hole between segments reveals that, and the page is read again. If the
        hole is still there, the job is being removed.
        """
        count, expired = _FIRST_PAGE, None
        while True:
            segments, more = await self._page(task_id, begin, count=count)
            for segment in segments:
                expected = begin.sequence if segment.attempt == begin.attempt else 1
                if segment.first != expected and begin != expired:
                    expired, more = begin, True
                    break
                yield segment
                begin = OutputPosition(segment.attempt, segment.last + 1)
            if not more:
                return
            count *= _GROWTH

    async def _last_segment(
        self,
        task_id: str,
        low: OutputPosition = OUTPUT_START,
        high: OutputPosition = _LAST_POSITION,
    ) -> _Segment | None:
        """The last segment that starts between two positions."""
        segments, _ = await self._page(task_id, low, high, count=1, descending=True)
        return next(iter(segments), None)

    async def _page(
        self,
        task_id: str,
        low: OutputPosition,
        high: OutputPosition = _LAST_POSITION,
        *,
        count: int,
        consistent: bool = True,
        descending: bool = False,
    ) -> tuple[list[_Segment], bool]:
        """Some segments that start between two positions. Returns True if there may be more."""
        query = Query(
            partition=("task", task_id),
            sort="position",
            low=_key(low),
            high=_key(high),
            descending=descending,
            consistent=consistent,
            page_size=count,
        )
        items, more = await self._table.page(query)
        return [_Segment.of_item(item) for item in items], more

    # Waiting ------------------------------------------------------------------------------------

    async def wait_for_output(
        self, task_id: str, *, after: OutputPosition, timeout: timedelta
    ) -> bool:
        state = self._state_of(task_id)
        end = self._clock.elapsed() + timeout
        recently = _now_s() - state.polled_at_s < _POLL_INTERVAL.total_seconds()
        due, consistent = timeout <= _NO_TIME or not recently, True
        while state.end <= after:
            changed = state.changed
            if due:
                await self._poll(task_id, state, consistent=consistent)
            left = end - self._clock.elapsed()
            if left <= _NO_TIME:
                break
            await self._wait_for_change(changed, min(left, _POLL_INTERVAL))
            # An inconsistent poll costs half, and the next one follows soon.
            due, consistent = self._clock.elapsed() < end, False
        return state.end > after

    async def _wait_for_change(self, changed: asyncio.Event, duration: timedelta) -> None:
        waits = [
            asyncio.ensure_future(changed.wait()),
            asyncio.ensure_future(self._clock.sleep(duration)),
        ]
        try:
            # Other processes append in real time, also if our clock is a test's clock.
            await asyncio.wait(
                waits, timeout=_POLL_INTERVAL.total_seconds(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()

    async def _poll(self, task_id: str, state: _TaskState, *, consistent: bool) -> None:
        """Find the end of the output, unless the store is unavailable."""
        begin = OutputPosition(state.end.attempt, state.end.sequence + 1)
        with suppress(BackendUnavailable):
            segments, _ = await self._page(task_id, begin, count=2, consistent=consistent)
            last = segments[0] if segments else None
            if len(segments) > 1:
                last = await self._last_segment(task_id)
            if last is not None:
                self._remember_segment(task_id, last)
        state.polled_at_s = _now_s()


def _key(position: OutputPosition) -> str:
    """A position as text with the same order."""
    return f"{min(position.attempt, MAX_SEQUENCE):019d}.{min(position.sequence, MAX_SEQUENCE):019d}"


def _keep_newest(cache: OrderedDict[str, T], key: str, value: T, size: int) -> None:
    """Store a value, and drop the one that was not stored for the longest time."""
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > size:
        cache.popitem(last=False)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
