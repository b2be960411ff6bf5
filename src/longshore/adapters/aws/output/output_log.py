"""The output log in DynamoDB: many entries in one item, because a write costs by the kilobyte.

See ``segments`` for how entries are stored, and why the first write of a sequence wins.

**Atomicity.** What an output pump appends at once fits into one segment. Of more, a part may be
stored when the rest fails; a marker then replaces the rest.

**Lost answers.** Every call can be repeated. An append that had happened finds its own segments and
drops their entries; one that arrives late is refused if its segment exists.

**Cost.** Append: one request per segment and 1 write unit per KB, compressed. Read: 1 request from
the start or from where this process has read, otherwise 2; 1 read unit for each 4 KB of segments,
consistently. Wait: nothing for output that this process knows; otherwise a poll at once and then
every half second, ½ to 1 read unit each; readers that follow a task share their waits. A partition
takes 1,000 write units a second, so a task prints at most about 1 MB a second, compressed.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.output.segments import (
    MAX_SEQUENCE,
    Segment,
    SegmentTable,
    first_segment,
)
from longshore.adapters.aws.tables import Table
from longshore.adapters.shared.output_codec import (
    Run,
    entries_after,
    last_sequence_of,
    runs_of,
)
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.clock import Clock
from longshore.ports.output import OUTPUT_START, OutputChunk, OutputPosition

_POLL_INTERVAL = timedelta(milliseconds=500)
_NO_TIME = timedelta(0)
_SEGMENTS_CACHED = 32
_TASKS_CACHED = 4096


@dataclass(eq=False)
class _TaskState:
    """What this process knows of a task's output, and the waiters for more."""

    end: OutputPosition = OUTPUT_START  # the end of a segment; there may be more
    segment: Segment | None = None  # read last
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set once, then replaced
    waiters: int = 0  # in this process
    polled_at_s: float = -math.inf  # on the clock of the event loop

    def advance(self, end: OutputPosition) -> None:
        """A segment ends here: wake all waiters if that is new."""
        if end > self.end:
            self.end = end
            self.changed.set()
            self.changed = asyncio.Event()


class DynamoOutputLog:
    """See ``ports.output.OutputLog``. The table expires entries after ``retention``."""

    def __init__(
        self, aws: AwsClient, names: Names, clock: Clock, *, retention: timedelta | None = None
    ) -> None:
        self._segments = SegmentTable(Table(aws, names.output), clock, retention)
        self._clock = clock
        self._states: OrderedDict[str, _TaskState] = OrderedDict()
        self._states_with_segment: OrderedDict[str, _TaskState] = OrderedDict()

    def _state_of(self, task_id: str) -> _TaskState:
        state = self._states.get(task_id)
        if state is None:
            if len(self._states) >= _TASKS_CACHED:
                idle = (name for name, other in self._states.items() if not other.waiters)
                if (oldest := next(idle, None)) is not None:
                    del self._states[oldest]
            state = self._states[task_id] = _TaskState()
        self._states.move_to_end(task_id)
        return state

    # Appending ----------------------------------------------------------------------------------

    async def append(self, task_id: str, chunks: Sequence[OutputChunk]) -> None:
        for run in runs_of(chunks):
            if run[0].sequence < 1 or last_sequence_of(run[-1]) > MAX_SEQUENCE:
                message = f"output sequences count from 1 to {MAX_SEQUENCE}"
                raise UsageError(message)
            left = run
            while left:
                segment = first_segment(left)
                stored = await self._segments.put(task_id, segment) or segment
                self._state_of(task_id).advance(stored.end)
                left = entries_after(left, stored.last)

    # Reading ------------------------------------------------------------------------------------

    async def read(
        self, task_id: str, *, after: OutputPosition = OUTPUT_START, limit: int = 1000
    ) -> list[OutputChunk]:
        state = self._state_of(task_id)
        segment = await self._segment_after(task_id, state, after)
        begin = OutputPosition(after.attempt, segment.last + 1 if segment else 1)
        chunks = [] if segment is None else self._entries(task_id, state, segment, after)
        if len(chunks) < limit:
            async with aclosing(self._segments.segments_from(task_id, begin)) as segments:
                async for segment in segments:
                    chunks += self._entries(task_id, state, segment, after)
                    if len(chunks) >= limit:
                        break
                else:
                    state.polled_at_s = _now_s()
        return chunks[:limit]

    async def _segment_after(
        self, task_id: str, state: _TaskState, after: OutputPosition
    ) -> Segment | None:
        """The segment that may contain the next entry; None: read the attempt from its start."""
        cached, first = state.segment, after.sequence + 1
        if cached and cached.attempt == after.attempt and cached.first <= first <= cached.last + 1:
            return cached
        if first == 1:
            return None
        start, position = OutputPosition(after.attempt, 0), OutputPosition(after.attempt, first)
        return await self._segments.last_segment(task_id, start, position)

    def _entries(
        self, task_id: str, state: _TaskState, segment: Segment, after: OutputPosition
    ) -> Run:
        if segment.end <= after:
            return []
        self._remember_segment(task_id, state, segment)
        return [
            entry
            for entry in segment.entries
            if OutputPosition(entry.attempt, entry.sequence) > after
        ]

    def _remember_segment(self, task_id: str, state: _TaskState, segment: Segment) -> None:
        """Cache a segment: the next read starts in it, or right behind it."""
        state.advance(segment.end)
        state.segment = segment
        self._states_with_segment[task_id] = state
        self._states_with_segment.move_to_end(task_id)
        if len(self._states_with_segment) > _SEGMENTS_CACHED:
            self._states_with_segment.popitem(last=False)[1].segment = None

    # Waiting ------------------------------------------------------------------------------------

    async def wait_for_output(
        self, task_id: str, *, after: OutputPosition, timeout: timedelta
    ) -> bool:
        state = self._state_of(task_id)
        end = self._clock.elapsed() + timeout
        recently = _now_s() - state.polled_at_s < _POLL_INTERVAL.total_seconds()
        due, consistent = timeout <= _NO_TIME or not recently, True
        state.waiters += 1
        try:
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
        finally:
            state.waiters -= 1
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
            segments, _ = await self._segments.page(task_id, begin, count=2, consistent=consistent)
            last = segments[0] if segments else None
            if len(segments) > 1:
                last = await self._segments.last_segment(task_id)
            if last is not None:
                self._remember_segment(task_id, state, last)
        state.polled_at_s = _now_s()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
