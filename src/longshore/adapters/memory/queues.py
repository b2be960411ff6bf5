"""Paused queues in memory."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from longshore.adapters.memory.waiting import Waiters
from longshore.ports.clock import Clock
from longshore.ports.queues import PausedQueue


class MemoryQueues:
    """See ``ports.queues.Queues``."""

    def __init__(self, clock: Clock) -> None:
        self._paused: dict[str, PausedQueue] = {}
        self._waiters = Waiters(clock)

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> PausedQueue:
        held = self._paused.setdefault(name, PausedQueue(name=name, by=by, reason=reason, at=now))
        self._waiters.wake()
        return held

    async def resume(self, name: str) -> PausedQueue | None:
        ended = self._paused.pop(name, None)
        self._waiters.wake()
        return ended

    async def paused(self) -> list[PausedQueue]:
        return sorted(self._paused.values(), key=lambda paused: paused.name)

    async def paused_of(
        self, queues: Collection[str], *, other_than: Collection[str] | None = None
    ) -> frozenset[str]:
        known = None if other_than is None else frozenset(other_than)

        def look() -> frozenset[str] | None:
            found = frozenset(queues) & self._paused.keys()
            return found if found != known else None

        # It waits for ever, so there always is an answer.
        return await self._waiters.until(look) or frozenset()
