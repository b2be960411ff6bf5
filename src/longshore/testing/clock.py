"""A clock that a test moves by hand.

Time passes only when ``advance`` or ``run`` is called, so a test of an hour takes no time and the
same test sees the same moments in each run.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count

_TURNS = 20
"""Turns of the event loop that ``run`` gives to those it woke; more than any chain of awaits."""


class FakeClock:
    """A ``Clock`` that does not move until it is advanced."""

    def __init__(self, start: datetime = datetime(2030, 1, 7, 12, tzinfo=UTC)) -> None:
        if start.tzinfo is None:
            message = "start must be aware: give it a time zone"
            raise ValueError(message)
        self._now = start.astimezone(UTC)
        self._elapsed = timedelta(0)
        self._order = count()
        self._sleepers: list[tuple[timedelta, int, asyncio.Future[None]]] = []
        self._watchers: list[Callable[[], None]] = []

    def now(self) -> datetime:
        return self._now

    def elapsed(self) -> timedelta:
        return self._elapsed

    async def sleep(self, duration: timedelta) -> None:
        if duration <= timedelta(0):
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The number keeps those with one deadline in the order in which they went to sleep.
        heapq.heappush(self._sleepers, (self._elapsed + duration, next(self._order), woken))
        await woken

    @property
    def next_deadline(self) -> timedelta | None:
        """The ``elapsed`` time at which the next sleeper wakes; None if there is no sleeper."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def advance(self, duration: timedelta) -> None:
        """Advance the time at once; due sleepers are woken, earliest deadline first.

        They run when the caller next awaits, and all of them see the time after the leap.
        """
        self._move_to(self._elapsed + duration)

    async def run(self, duration: timedelta) -> None:
        """Let time pass from deadline to deadline, so that each sleeper wakes at its own moment.

        A sleeper that sleeps again meanwhile is woken again when it is due.
        """
        end = self._elapsed + duration
        await _yield_to_loop()
        while (deadline := self.next_deadline) is not None and deadline <= end:
            self._move_to(deadline)
            await _yield_to_loop()
        self._move_to(end)
        await _yield_to_loop()

    def set(self, moment: datetime) -> None:
        """Set the time of day, also back, as an operator might; nothing elapses by it."""
        self._now = moment.astimezone(UTC)
        self._notify_watchers()

    @contextmanager
    def watched_by(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``moved`` each time the clock was moved or set, so that another can follow it."""
        self._watchers.append(callback)
        try:
            yield
        finally:
            self._watchers.remove(callback)

    def _move_to(self, elapsed: timedelta) -> None:
        if elapsed < self._elapsed:
            message = "time does not go back; use set() for the time of day"
            raise ValueError(message)
        self._now += elapsed - self._elapsed
        self._elapsed = elapsed
        while (deadline := self.next_deadline) is not None and deadline <= elapsed:
            heapq.heappop(self._sleepers)[2].set_result(None)
        self._notify_watchers()

    def _notify_watchers(self) -> None:
        for moved in self._watchers:
            moved()


async def _yield_to_loop() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
