"""Paused and held queues in memory."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from longshore.adapters.memory.waiting import Waiters
from longshore.ports.clock import Clock
from longshore.ports.queues import PausedQueue, end_of_hold


class MemoryQueues:
    """See ``ports.queues.Queues``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paused: dict[str, PausedQueue] = {}
        self._held: dict[str, PausedQueue] = {}  # also those that are over
        self._waiters = Waiters(clock)

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> PausedQueue:
        held = self._paused.setdefault(name, PausedQueue(name=name, by=by, reason=reason, at=now))
        self._waiters.wake()
        return held

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> PausedQueue:
        until = end_of_hold(until, now)
        hold = PausedQueue(name=name, by=by, reason=reason, at=now, until=until)
        there = self._held.get(name)
        if there is None or not there.holds(now) or there.left(now) < hold.left(now):
            there = self._held[name] = hold
            self._waiters.wake()
        return there

    async def resume(self, name: str) -> PausedQueue | None:
        ended = self._paused.pop(name, None)
        held = self._held.pop(name, None)
        if ended is None and held is not None and held.holds(self._clock.now()):
            ended = held
        self._waiters.wake()
        return ended

    async def paused(self) -> list[PausedQueue]:
        # Sorting keeps the pause of a queue before its hold.
        return sorted(
            [*self._paused.values(), *self._holds(self._held)], key=lambda paused: paused.name
        )

    async def paused_of(
        self, queues: Collection[str], *, other_than: Collection[str] | None = None
    ) -> frozenset[str]:
        known = None if other_than is None else frozenset(other_than)

        def look() -> frozenset[str] | None:
            held = {hold.name for hold in self._holds(queues)}
            found = frozenset(queues) & (self._paused.keys() | held)
            return found if found != known else None

        def next_end() -> timedelta | None:
            now = self._clock.now()
            return min((hold.left(now) for hold in self._holds(queues)), default=None)

        # It waits for ever, so there always is an answer.
        return await self._waiters.until(look, next_change=next_end) or frozenset()

    def _holds(self, queues: Collection[str]) -> list[PausedQueue]:
        """Those of these queues that are not over."""
        now = self._clock.now()
        found = (self._held.get(name) for name in queues)
        return [hold for hold in found if hold is not None and hold.holds(now)]
