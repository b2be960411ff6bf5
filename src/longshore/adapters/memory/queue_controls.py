"""Paused and held queues in memory."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from longshore.adapters.memory.waiters import Waiters
from longshore.ports.clock import Clock
from longshore.ports.configuration import QueuePause, capped_hold_end


class MemoryQueueControls:
    """See ``ports.queues.Queues``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: dict[str, QueuePause] = {}
        self._hold_by_queue: dict[str, QueuePause] = {}  # also those that are over
        self._waiters = Waiters(clock)

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> QueuePause:
        held = self._pauses.setdefault(name, QueuePause(name=name, by=by, reason=reason, at=now))
        self._waiters.wake()
        return held

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> QueuePause:
        until = capped_hold_end(until, now)
        hold = QueuePause(name=name, by=by, reason=reason, at=now, until=until)
        there = self._hold_by_queue.get(name)
        if there is None or not there.is_active(now) or there.remaining(now) < hold.remaining(now):
            there = self._hold_by_queue[name] = hold
            self._waiters.wake()
        return there

    async def resume(self, name: str) -> QueuePause | None:
        ended = self._pauses.pop(name, None)
        held = self._hold_by_queue.pop(name, None)
        if ended is None and held is not None and held.is_active(self._clock.now()):
            ended = held
        self._waiters.wake()
        return ended

    async def list_pauses(self) -> list[QueuePause]:
        # Sorting keeps the pause of a queue before its hold.
        return sorted(
            [*self._pauses.values(), *self._active_holds(self._hold_by_queue)],
            key=lambda paused: paused.name,
        )

    async def paused_queues(
        self, queues: Collection[str], *, changed_from: Collection[str] | None = None
    ) -> frozenset[str]:
        known = None if changed_from is None else frozenset(changed_from)

        def look() -> frozenset[str] | None:
            held = {hold.name for hold in self._active_holds(queues)}
            found = frozenset(queues) & (self._pauses.keys() | held)
            return found if found != known else None

        def next_end() -> timedelta | None:
            now = self._clock.now()
            return min((hold.remaining(now) for hold in self._active_holds(queues)), default=None)

        # It waits for ever, so there always is an answer.
        return await self._waiters.wait_until(look, next_change=next_end) or frozenset()

    def _active_holds(self, queues: Collection[str]) -> list[QueuePause]:
        """Those of these queues that are not over."""
        now = self._clock.now()
        found = (self._hold_by_queue.get(name) for name in queues)
        return [hold for hold in found if hold is not None and hold.is_active(now)]
