"""Waiting for a change: each change wakes all waiters, and each of them looks again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from longshore.ports.clock import Clock

T = TypeVar("T")


@dataclass(slots=True)
class Waiters:
    """Callers on one event loop that wait for a change."""

    clock: Clock
    on_wait: Callable[[], None] | None = None  # called when a caller begins to wait
    # A dict for its order: a simulation must wake them in the same order each time.
    _waiting: dict[asyncio.Future[None], None] = field(default_factory=dict)
    callers: int = 0
    """Calls of ``wait_until`` that have not returned. Counted before the first look, so that
    another thread that changes something, and then sees none, needs to wake none."""

    @property
    def any_waiting(self) -> bool:
        """Whether a caller waits."""
        return bool(self._waiting)

    def wake(self) -> None:
        for waiting in self._waiting:
            _wake(waiting)

    async def wait_until(
        self,
        look: Callable[[], T | None],
        *,
        wait: timedelta | None = None,
        next_change: Callable[[], timedelta | None] = lambda: None,
    ) -> T | None:
        """The first result of ``look`` that is not None; None after ``wait``.

        Args:
            wait: None waits for ever.
            next_change: Time until the result changes without a wake-up; None: it does not.
        """
        end = None if wait is None else self.clock.elapsed() + wait
        self.callers += 1
        try:
            while (result := look()) is None:
                left = None if end is None else end - self.clock.elapsed()
                if left is not None and left <= timedelta(0):
                    return None
                pauses = [pause for pause in (left, next_change()) if pause is not None]
                # Nothing is awaited between the look and the registration: no wake-up is lost.
                await self._wait_for_change(within=min(pauses, default=None))
            return result
        finally:
            self.callers -= 1

    async def _wait_for_change(self, *, within: timedelta | None) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = None
        if self.on_wait is not None:
            self.on_wait()
        sleep = None if within is None else asyncio.ensure_future(self.clock.sleep(within))
        if sleep is not None:
            sleep.add_done_callback(lambda _: _wake(woken))
        try:
            await woken
        finally:
            del self._waiting[woken]
            if sleep is not None:
                sleep.cancel()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
