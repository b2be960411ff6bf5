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
    # Called before a caller looks for the last time and waits: changes from now on must wake it.
    before_wait: Callable[[], None] | None = None
    # A dict for its order: a simulation must wake them in the same order each time.
    _waiting: dict[asyncio.Future[bool], None] = field(default_factory=dict)

    @property
    def any_waiting(self) -> bool:
        """Whether a caller waits."""
        return bool(self._waiting)

    def wake(self) -> None:
        for waiting in self._waiting:
            _wake(waiting, changed=True)

    async def wait_until(
        self,
        look: Callable[[], T | None],
        *,
        wait: timedelta | None = None,
        next_change: Callable[[], timedelta | None] = lambda: None,
        if_woken: T | None = None,
    ) -> T | None:
        """The first result of ``look`` that is not None; None after ``wait``.

        Args:
            wait: None waits for ever.
            next_change: Time until the result changes without a wake-up; None: it does not.
            if_woken: The result after a wake-up; None: look again.
        """
        end = None if wait is None else self.clock.elapsed() + wait
        prepared = False
        while (result := look()) is None:
            left = None if end is None else end - self.clock.elapsed()
            if left is not None and left <= timedelta(0):
                return None
            if self.before_wait is not None and not prepared:
                self.before_wait()
                prepared = True
                continue
            pauses = [pause for pause in (left, next_change()) if pause is not None]
            # Nothing is awaited between the look and the registration, so no wake-up is lost.
            changed = await self._wait_for_change(within=min(pauses, default=None))
            if changed and if_woken is not None:
                return if_woken
            prepared = False
        return result

    async def _wait_for_change(self, *, within: timedelta | None) -> bool:
        """Returns whether there was a wake-up."""
        woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = None
        sleep = None if within is None else asyncio.ensure_future(self.clock.sleep(within))
        if sleep is not None:
            sleep.add_done_callback(lambda _: _wake(woken, changed=False))
        try:
            return await woken
        finally:
            del self._waiting[woken]
            if sleep is not None:
                sleep.cancel()


def _wake(waiting: asyncio.Future[bool], *, changed: bool) -> None:
    if not waiting.done():
        waiting.set_result(changed)
