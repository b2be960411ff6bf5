"""How the memory backend waits: until something changes, or until the clock says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from longshore.ports.clock import Clock

T = TypeVar("T")


class Waiters:
    """Those who wait for a change; all are woken by each, and look for themselves."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A dict for its order: a simulation must wake them in the same order each time.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def wake(self) -> None:
        """Something changed."""
        for waiting in self._waiting:
            _wake(waiting)

    async def wait_until(
        self,
        look: Callable[[], T | None],
        *,
        wait: timedelta | None = None,
        next_change: Callable[[], timedelta | None] = lambda: None,
    ) -> T | None:
        """What ``look`` finds as soon as it finds something; None after ``wait``.

        Args:
            wait: None waits for ever.
            next_change: How soon time alone will change something; None: it will not.
        """
        end = None if wait is None else self._clock.elapsed() + wait
        while (found := look()) is None:
            left = None if end is None else end - self._clock.elapsed()
            if left is not None and left <= timedelta(0):
                return None
            pauses = [pause for pause in (left, next_change()) if pause is not None]
            # Nothing is awaited between the look and the registration, so no wake-up is lost.
            await self._wait_for_change(within=min(pauses, default=None))
        return found

    async def _wait_for_change(self, *, within: timedelta | None) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = None
        sleep = None if within is None else asyncio.ensure_future(self._clock.sleep(within))
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
