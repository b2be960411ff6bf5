"""The output log in memory."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from datetime import timedelta

from longshore.adapters.memory.waiting import Waiters
from longshore.ports.clock import Clock
from longshore.ports.output import START, OutputEntry, Place


class MemoryOutputLog:
    """See ``ports.output.OutputLog``."""

    def __init__(self, clock: Clock) -> None:
        self._waiters = Waiters(clock)
        self._entries: dict[str, dict[Place, OutputEntry]] = {}
        self._places: dict[str, list[Place]] = {}  # in order

    async def append(self, task_id: str, entries: Sequence[OutputEntry]) -> None:
        kept = self._entries.setdefault(task_id, {})
        places = self._places.setdefault(task_id, [])
        for entry in entries:
            place = Place(entry.attempt, entry.sequence)
            if place not in kept:
                kept[place] = entry
                insort(places, place)
        self._waiters.wake()

    async def read(
        self, task_id: str, *, after: Place = START, limit: int = 1000
    ) -> list[OutputEntry]:
        places = self._places.get(task_id, [])
        first = bisect_right(places, after)
        return [self._entries[task_id][place] for place in places[first : first + limit]]

    async def wait(self, task_id: str, *, after: Place, wait: timedelta) -> bool:
        def look() -> bool | None:
            places = self._places.get(task_id, [])
            return True if places and places[-1] > after else None

        return await self._waiters.until(look, wait=wait) is not None
