"""Limits the rate of reports with a token bucket; reports over the limit are dropped."""

from __future__ import annotations

import time

BURST = 50
PER_SECOND = 10.0


class Throttle:
    """A token bucket: a task that reports rarely loses nothing, and one that reports in a tight
    loop does not overload the worker."""

    def __init__(self) -> None:
        self._available = float(BURST)
        self._updated_at_s = time.monotonic()

    def try_acquire(self) -> bool:
        """Take a token. Returns whether one was available."""
        now = time.monotonic()
        self._available = min(
            self._available + (now - self._updated_at_s) * PER_SECOND, float(BURST)
        )
        self._updated_at_s = now
        if self._available < 1:
            return False
        self._available -= 1
        return True
