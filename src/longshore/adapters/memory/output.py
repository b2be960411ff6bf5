"""The output log in memory."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from datetime import timedelta

from longshore.adapters.memory.waiters import Waiters
from longshore.ports.clock import Clock
from longshore.ports.output import OUTPUT_START, OutputChunk, OutputPosition


class MemoryOutputLog:
    """See ``ports.output.OutputLog``."""

    def __init__(self, clock: Clock) -> None:
        self._waiters = Waiters(clock)
        self._entries: dict[str, dict[OutputPosition, OutputChunk]] = {}
        self._positions: dict[str, list[OutputPosition]] = {}  # in order

    async def append(self, task_id: str, chunks: Sequence[OutputChunk]) -> None:
        kept = self._entries.setdefault(task_id, {})
        places = self._positions.setdefault(task_id, [])
        for entry in chunks:
            place = OutputPosition(entry.attempt, entry.sequence)
            if place not in kept:
                kept[place] = entry
                insort(places, place)
        self._waiters.wake()

    async def read(
        self, task_id: str, *, after: OutputPosition = OUTPUT_START, limit: int = 1000
    ) -> list[OutputChunk]:
        places = self._positions.get(task_id, [])
        first = bisect_right(places, after)
        return [self._entries[task_id][place] for place in places[first : first + limit]]

    async def wait_for_output(
        self, task_id: str, *, after: OutputPosition, timeout: timedelta
    ) -> bool:
        def look() -> bool | None:
            places = self._positions.get(task_id, [])
            return True if places and places[-1] > after else None

        return await self._waiters.wait_until(look, wait=timeout) is not None
