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

from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.output_tiles import LARGEST, Tile, Tiles
from longshore.adapters.shared.output_codec import Run, beyond, end_of, runs_of, up_to
from longshore.errors import BackendRejected, BackendUnavailable, UsageError
from longshore.ports.clock import Clock
from longshore.ports.output import START, OutputEntry, Place

_POLL = timedelta(milliseconds=500)
_NO_TIME = timedelta(0)
_TILES_KEPT = 32
_TASKS_KNOWN = 4096


class _Known:
    """What this process knows of a task's output, and who waits for more."""

    def __init__(self) -> None:
        self.end = START  # something lies up to here, and a tile ends here; there may be more
        self.tile: Tile | None = None  # read last
        self.bell = asyncio.Event()  # rings once, then there is a new one
        self.waiting = 0
        self.look: asyncio.Task[None] | None = None
        self.looked: tuple[float, timedelta] | None = None  # when: on the loop's clock, and on ours
        self.failure: BaseException | None = (
            None  # of the last look, if another will fare no better
        )

    def tell(self, end: Place) -> None:
        """A tile that ends here holds something."""
        if end > self.end:
            self.end = end
            self.ring()

    def ring(self) -> None:
        """Let those who wait see for themselves."""
        self.bell.set()
        self.bell = asyncio.Event()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Somebody waits; when nobody does, nobody has to look."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            if not self.waiting and self.look is not None:
                self.look.cancel()
                self.look = self.looked = None


class DynamoOutputLog:
    """See ``ports.output.OutputLog``; the table forgets entries when they are as old as ``keeps``.

    What a marker stands for is kept: nothing is appended under it, and of one that is appended over
    what is kept, the rest is.
    """

    def __init__(
        self, aws: Aws, names: Names, clock: Clock, *, keeps: timedelta | None = None
    ) -> None:
        self._tiles = Tiles(aws, names.output, clock, keeps)
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._with_tile: OrderedDict[str, _Known] = OrderedDict()

    def _of(self, task_id: str) -> _Known:
        known = self._known.get(task_id)
        if known is None:
            if len(self._known) >= _TASKS_KNOWN:
                idle = (name for name, each in self._known.items() if not each.waiting)
                if (oldest := next(idle, None)) is not None:
                    del self._known[oldest]
            known = self._known[task_id] = _Known()
        self._known.move_to_end(task_id)
        return known

    # Appending ----------------------------------------------------------------------------------

    async def append(self, task_id: str, entries: Sequence[OutputEntry]) -> None:
        for run in runs_of(entries):
            if run[0].sequence < 1 or end_of(run[-1]) > LARGEST:
                message = f"output sequences count from 1 to {LARGEST}"
                raise UsageError(message)
            edge: Tile | None = None
            while run:
                edge = edge or await self._edge(task_id, run[0])
                edge, run = await self._lay(task_id, edge, run)

    async def _edge(self, task_id: str, entry: OutputEntry) -> Tile:
        """The last tile that begins at or before an entry."""
        attempt, first = entry.attempt, entry.sequence
        if first == 1 or self._of(task_id).end == Place(attempt, first - 1):
            return Tile(attempt, first - 1, first - 1)
        found = await self._tiles.at(task_id, Place(attempt, first))
        return found or Tile(attempt, 0, 0)

    async def _lay(self, task_id: str, edge: Tile, run: Run) -> tuple[Tile | None, Run]:
        """One step: the tile to go on from, if it is known, and what is left to lay."""
        attempt, first = run[0].attempt, run[0].sequence
        if edge.last < first - 1:
            gap = Tile(attempt, edge.last + 1, first - 1)
            return (None if await self._tiles.lay(task_id, gap) else gap), run
        if edge.last < first:
            tile = await self._tiles.made_of(task_id, run)
            if taken := await self._tiles.lay(task_id, tile):
                return taken, run
            self._of(task_id).tell(tile.end)
            return tile, beyond(run, tile.last)
        if not edge.is_gap:
            self._of(task_id).tell(edge.end)
            return edge, beyond(run, edge.last)
        tile = await self._tiles.made_of(task_id, up_to(run, edge.last))
        if not await self._tiles.lay_into(task_id, edge, tile):
            return None, run
        self._of(task_id).tell(tile.end)
        return None, beyond(run, tile.last)

    # Reading ------------------------------------------------------------------------------------

    async def read(
        self, task_id: str, *, after: Place = START, limit: int = 1000
    ) -> list[OutputEntry]:
        known = self._of(task_id)
        tile, begin = await self._beginning(task_id, known, after)
        found = [] if tile is None else await self._after(task_id, known, tile, after)
        if len(found) < limit:
            async with aclosing(self._tiles.onwards(task_id, begin)) as tiles:
                async for tile in tiles:
                    found += await self._after(task_id, known, tile, after)
                    if len(found) >= limit:
                        break
                else:
                    known.looked = self._now()
        return found[:limit]

    async def _beginning(
        self, task_id: str, known: _Known, after: Place
    ) -> tuple[Tile | None, Place]:
        """The tile in which the next entry may lie, and where to read on behind it."""
        tile, first = known.tile, after.sequence + 1
        if (
            tile is None
            or tile.attempt != after.attempt
            or not tile.first <= first <= tile.last + 1
        ):
            tile = await self._tiles.at(task_id, Place(after.attempt, first)) if first > 1 else None
        if tile is None:
            return None, Place(after.attempt, 1)
        if tile.is_gap:
            return None, Place(after.attempt, tile.first)
        return tile, Place(after.attempt, tile.last + 1)

    async def _after(self, task_id: str, known: _Known, tile: Tile, after: Place) -> Run:
        if tile.is_gap or tile.end <= after:
            return []
        self._saw(task_id, known, tile)
        found = [each for each in tile.entries if Place(each.attempt, each.sequence) > after]
        return [await self._tiles.joined(task_id, tile)] if found and tile.parts else found

    def _saw(self, task_id: str, known: _Known, tile: Tile) -> None:
        """Who reads on begins in this tile, or right behind it."""
        known.tell(tile.end)
        known.tile = tile
        self._with_tile[task_id] = known
        self._with_tile.move_to_end(task_id)
        if len(self._with_tile) > _TILES_KEPT:
            self._with_tile.popitem(last=False)[1].tile = None

    # Waiting ------------------------------------------------------------------------------------

    async def wait(self, task_id: str, *, after: Place, wait: timedelta) -> bool:
        known = self._of(task_id)
        if known.end <= after and wait <= _NO_TIME:
            await self._look(task_id, known, consistent=True)
        ends = self._clock.elapsed() + wait
        consistent = True
        with known.awaited():
            while known.end <= after:
                left = ends - self._clock.elapsed()
                if left <= _NO_TIME:
                    return False
                bell = known.bell
                self._look_if_due(task_id, known, consistent=consistent)
                if known.failure is not None:
                    message = "dynamodb.query: the output cannot be looked at"
                    raise BackendRejected(message) from known.failure
                await self._pause(bell, min(left, _POLL))
                consistent = False  # the next look comes soon enough, and this one is half as dear
        return True

    async def _pause(self, bell: asyncio.Event, duration: timedelta) -> None:
        waits = [
            asyncio.ensure_future(bell.wait()),
            asyncio.ensure_future(self._clock.sleep(duration)),
        ]
        try:
            # Others append in real time, also where our clock is one that is moved by hand.
            await asyncio.wait(
                waits, timeout=_POLL.total_seconds(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in waits:
                each.cancel()

    def _look_if_due(self, task_id: str, known: _Known, *, consistent: bool) -> None:
        if known.look is not None or not self._due(known):
            return

        def looked(look: asyncio.Task[None]) -> None:
            if look.cancelled():
                return
            known.look = None
            error = look.exception()
            if error is not None and not isinstance(error, BackendUnavailable):
                known.failure = error
                known.ring()

        known.failure = None
        known.looked = self._now()
        known.look = asyncio.create_task(self._look(task_id, known, consistent=consistent))
        known.look.add_done_callback(looked)

    async def _look(self, task_id: str, known: _Known, *, consistent: bool) -> None:
        """Find out how far the output goes."""
        begin = Place(known.end.attempt, known.end.sequence + 1)
        found = await self._tiles.first_two(task_id, begin, consistent=consistent)
        # If there is no second one, the first is the last of all, and no more had to be read.
        last = found[0] if len(found) == 1 else await self._tiles.final(task_id) if found else None
        if last is not None and not last.is_gap:
            self._saw(task_id, known, last)
        known.looked = self._now()

    def _due(self, known: _Known) -> bool:
        if known.looked is None:
            return True
        (real, ours), (real_then, ours_then) = self._now(), known.looked
        return real - real_then >= _POLL.total_seconds() or ours - ours_then >= _POLL

    def _now(self) -> tuple[float, timedelta]:
        return asyncio.get_running_loop().time(), self._clock.elapsed()
