"""The machine's own clock."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

# Linux has a monotonic clock that counts the time in which the machine was asleep.
_ELAPSED_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# The event loop's clock stands still while the machine sleeps. Whoever naps for short spans and
# looks again finds out soon after the machine has woken.
_MAX_SLEEP = timedelta(seconds=5)


class SystemClock:
    """Real time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def elapsed(self) -> timedelta:
        return timedelta(microseconds=time.clock_gettime_ns(_ELAPSED_CLOCK) // 1000)

    async def sleep(self, duration: timedelta) -> None:
        end = self.elapsed() + duration
        await asyncio.sleep(0)
        # Time itself is what is waited for: there is no event to wait on instead.
        while (left := end - self.elapsed()) > timedelta(0):  # noqa: ASYNC110
            await asyncio.sleep(min(left, _MAX_SLEEP).total_seconds())
