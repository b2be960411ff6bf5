"""The output log in DynamoDB: many entries in one item, because a write costs by the kilobyte.

How they lie there, and why the first write of a place wins however many write, is told in
``output_tiles``.

**Whole or not at all.** What an output pump hands over at once fits into one tile. Of more, a
beginning may be kept when the rest fails; a marker for all of it then stands for what is missing.

**Lost answers.** Making any call again is right. An append that had happened finds its own tiles
and drops what is in them; one that arrives late is the first at its place, or finds it taken.

**What it costs.** Append: one request a tile and 1 write unit a KB, compressed; 1 more request and
unit for a gap, and twice the units for what is put into one. An append that does not go on where
this process knows an edge looks first: 1 request, 1 read unit for each 4 KB of the tile before.
Read: 1 request from a beginning or from where this process has read, otherwise 2; 1 read unit for
each 4 KB of tiles, consistently. Wait: nothing for what this process knows; otherwise a look at
once and then every half second, ½ to 1 read unit each, one for all who wait for a task.
A partition takes 1,000 write units a second, so a task prints about 1 MB a second, compressed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import timedelta

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.output.segments import MAX_SEQUENCE, Segment, SegmentTable
from longshore.adapters.shared.output_codec import (
    Run,
    entries_after,
    entries_up_to,
    last_sequence_of,
    runs_of,
)
from longshore.errors import BackendRejected, BackendUnavailable, UsageError
from longshore.ports.clock import Clock
from longshore.ports.output import OUTPUT_START, OutputChunk, OutputPosition

_POLL_INTERVAL = timedelta(milliseconds=500)
_NO_TIME = timedelta(0)
_SEGMENTS_CACHED = 32
_TASKS_CACHED = 4096


class _TaskState:
    """What this process knows of a task's output, and who waits for more."""

    def __init__(self) -> None:
        self.end = (
            OUTPUT_START  # something lies up to here, and a tile ends here; there may be more
        )
        self.segment: Segment | None = None  # read last
        self.changed = asyncio.Event()  # rings once, then there is a new one
        self.waiters = 0
        self.poll: asyncio.Task[None] | None = None
        self.polled_at: tuple[float, timedelta] | None = (
            None  # when: on the loop's clock, and on ours
        )
        self.failure: BaseException | None = (
            None  # of the last look, if another will fare no better
        )

    def advance(self, end: OutputPosition) -> None:
        """A tile that ends here holds something."""
        if end > self.end:
            self.end = end
            self.notify()

    def notify(self) -> None:
        """Let those who wait see for themselves."""
        self.changed.set()
        self.changed = asyncio.Event()

    @contextmanager
    def waiter(self) -> Iterator[None]:
        """Somebody waits; when nobody does, nobody has to look."""
        self.waiters += 1
        try:
            yield
        finally:
            self.waiters -= 1
            if not self.waiters and self.poll is not None:
                self.poll.cancel()
                self.poll = self.polled_at = None


class DynamoOutputLog:
    """See ``ports.output.OutputLog``; the table forgets entries when they are as old as ``keeps``.

    What a marker stands for is kept: nothing is appended under it, and of one that is appended over
    what is kept, the rest is.
    """

    def __init__(
        self, aws: AwsClient, names: Names, clock: Clock, *, retention: timedelta | None = None
    ) -> None:
        self._segments = SegmentTable(aws, names.output, clock, retention)
        self._clock = clock
        self._states: OrderedDict[str, _TaskState] = OrderedDict()
        self._states_with_segment: OrderedDict[str, _TaskState] = OrderedDict()

    def _state_of(self, task_id: str) -> _TaskState:
        known = self._states.get(task_id)
        if known is None:
            if len(self._states) >= _TASKS_CACHED:
                idle = (name for name, each in self._states.items() if not each.waiters)
                if (oldest := next(idle, None)) is not None:
                    del self._states[oldest]
            known = self._states[task_id] = _TaskState()
        self._states.move_to_end(task_id)
        return known

    # Appending ----------------------------------------------------------------------------------

    async def append(self, task_id: str, chunks: Sequence[OutputChunk]) -> None:
        for run in runs_of(chunks):
            if run[0].sequence < 1 or last_sequence_of(run[-1]) > MAX_SEQUENCE:
                message = f"output sequences count from 1 to {MAX_SEQUENCE}"
                raise UsageError(message)
            edge: Segment | None = None
            while run:
                edge = edge or await self._preceding_segment(task_id, run[0])
                edge, run = await self._append_next(task_id, edge, run)

    async def _preceding_segment(self, task_id: str, entry: OutputChunk) -> Segment:
        """The last tile that begins at or before an entry."""
        attempt, first = entry.attempt, entry.sequence
        if first == 1 or self._state_of(task_id).end == OutputPosition(attempt, first - 1):
            return Segment(attempt, first - 1, first - 1)
        found = await self._segments.segment_at(task_id, OutputPosition(attempt, first))
        return found or Segment(attempt, 0, 0)

    async def _append_next(
        self, task_id: str, preceding: Segment, run: Run
    ) -> tuple[Segment | None, Run]:
        """One step: the tile to go on from, if it is known, and what is left to lay."""
        attempt, first = run[0].attempt, run[0].sequence
        if preceding.last < first - 1:
            gap = Segment(attempt, preceding.last + 1, first - 1)
            return (None if await self._segments.put(task_id, gap) else gap), run
        if preceding.last < first:
            tile = await self._segments.build(task_id, run)
            if taken := await self._segments.put(task_id, tile):
                return taken, run
            self._state_of(task_id).advance(tile.end)
            return tile, entries_after(run, tile.last)
        if not preceding.is_gap:
            self._state_of(task_id).advance(preceding.end)
            return preceding, entries_after(run, preceding.last)
        tile = await self._segments.build(task_id, entries_up_to(run, preceding.last))
        if not await self._segments.fill_gap(task_id, preceding, tile):
            return None, run
        self._state_of(task_id).advance(tile.end)
        return None, entries_after(run, tile.last)

    # Reading ------------------------------------------------------------------------------------

    async def read(
        self, task_id: str, *, after: OutputPosition = OUTPUT_START, limit: int = 1000
    ) -> list[OutputChunk]:
        known = self._state_of(task_id)
        tile, begin = await self._start_of_read(task_id, known, after)
        found = [] if tile is None else await self._entries_after(task_id, known, tile, after)
        if len(found) < limit:
            async with aclosing(self._segments.segments_from(task_id, begin)) as tiles:
                async for tile in tiles:
                    found += await self._entries_after(task_id, known, tile, after)
                    if len(found) >= limit:
                        break
                else:
                    known.polled_at = self._now()
        return found[:limit]

    async def _start_of_read(
        self, task_id: str, state: _TaskState, after: OutputPosition
    ) -> tuple[Segment | None, OutputPosition]:
        """The tile in which the next entry may lie, and where to read on behind it."""
        tile, first = state.segment, after.sequence + 1
        if (
            tile is None
            or tile.attempt != after.attempt
            or not tile.first <= first <= tile.last + 1
        ):
            tile = (
                await self._segments.segment_at(task_id, OutputPosition(after.attempt, first))
                if first > 1
                else None
            )
        if tile is None:
            return None, OutputPosition(after.attempt, 1)
        if tile.is_gap:
            return None, OutputPosition(after.attempt, tile.first)
        return tile, OutputPosition(after.attempt, tile.last + 1)

    async def _entries_after(
        self, task_id: str, state: _TaskState, segment: Segment, after: OutputPosition
    ) -> Run:
        if segment.is_gap or segment.end <= after:
            return []
        self._remember_segment(task_id, state, segment)
        found = [
            each for each in segment.entries if OutputPosition(each.attempt, each.sequence) > after
        ]
        return (
            [await self._segments.join_parts(task_id, segment)]
            if found and segment.parts
            else found
        )

    def _remember_segment(self, task_id: str, state: _TaskState, segment: Segment) -> None:
        """Who reads on begins in this tile, or right behind it."""
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
        known = self._state_of(task_id)
        if known.end <= after and timeout <= _NO_TIME:
            await self._poll(task_id, known, consistent=True)
        ends = self._clock.elapsed() + timeout
        consistent = True
        with known.waiter():
            while known.end <= after:
                left = ends - self._clock.elapsed()
                if left <= _NO_TIME:
                    return False
                bell = known.changed
                self._poll_if_due(task_id, known, consistent=consistent)
                if known.failure is not None:
                    message = "dynamodb.query: the output cannot be looked at"
                    raise BackendRejected(message) from known.failure
                await self._wait_for_change(bell, min(left, _POLL_INTERVAL))
                consistent = False  # the next look comes soon enough, and this one is half as dear
        return True

    async def _wait_for_change(self, changed: asyncio.Event, duration: timedelta) -> None:
        waits = [
            asyncio.ensure_future(changed.wait()),
            asyncio.ensure_future(self._clock.sleep(duration)),
        ]
        try:
            # Others append in real time, also where our clock is one that is moved by hand.
            await asyncio.wait(
                waits, timeout=_POLL_INTERVAL.total_seconds(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in waits:
                each.cancel()

    def _poll_if_due(self, task_id: str, state: _TaskState, *, consistent: bool) -> None:
        if state.poll is not None or not self._poll_is_due(state):
            return

        def looked(look: asyncio.Task[None]) -> None:
            if look.cancelled():
                return
            state.poll = None
            error = look.exception()
            if error is not None and not isinstance(error, BackendUnavailable):
                state.failure = error
                state.notify()

        state.failure = None
        state.polled_at = self._now()
        state.poll = asyncio.create_task(self._poll(task_id, state, consistent=consistent))
        state.poll.add_done_callback(looked)

    async def _poll(self, task_id: str, state: _TaskState, *, consistent: bool) -> None:
        """Find out how far the output goes."""
        begin = OutputPosition(state.end.attempt, state.end.sequence + 1)
        found = await self._segments.first_two(task_id, begin, consistent=consistent)
        # If there is no second one, the first is the last of all, and no more had to be read.
        last = (
            found[0]
            if len(found) == 1
            else await self._segments.last_segment(task_id)
            if found
            else None
        )
        if last is not None and not last.is_gap:
            self._remember_segment(task_id, state, last)
        state.polled_at = self._now()

    def _poll_is_due(self, state: _TaskState) -> bool:
        if state.polled_at is None:
            return True
        (real, ours), (real_then, ours_then) = self._now(), state.polled_at
        return (
            real - real_then >= _POLL_INTERVAL.total_seconds() or ours - ours_then >= _POLL_INTERVAL
        )

    def _now(self) -> tuple[float, timedelta]:
        return asyncio.get_running_loop().time(), self._clock.elapsed()
