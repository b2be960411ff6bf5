"""An event loop on which waiting takes no time.

When nobody has anything to do, time leaps to the next moment that somebody waits for. There are no
threads, sockets or signals, so what happens depends on nothing but the program and its seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class Deadlock(RuntimeError):
    """Everybody waits, and nobody for the clock."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they became ready; ``time`` starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self._elapsed = 0.0
        self._selector = self
        # Far below a microsecond, which is what the clocks here count in.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._elapsed

    def select(self, timeout: float | None) -> Sequence[object]:
        """What the loop asks when it has nothing to do for ``timeout`` seconds."""
        if timeout is None:
            message = "everybody waits, and nobody for the clock"
            raise Deadlock(message)
        self._elapsed += max(timeout, 0.0)
        return ()

    def _process_events(self, events: Sequence[object]) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody is elsewhere who would have to wake it."""
