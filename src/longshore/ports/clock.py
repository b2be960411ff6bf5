"""The clock: the only source of time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """The time, and waiting."""

    def now(self) -> datetime:
        """Returns the time, aware, in UTC. It goes back when the machine's clock is set back."""
        ...

    def elapsed(self) -> timedelta:
        """Returns the time since a fixed point. It never goes back, and runs while the machine
        sleeps."""
        ...

    async def sleep(self, duration: timedelta) -> None:
        """Return when ``duration`` has passed; immediately if it is zero or less."""
        ...


async def sleep_until_multiple(clock: Clock, interval: timedelta) -> None:
    """Return at the next multiple of ``interval``, so that loops of a process wake it together."""
    await clock.sleep(interval - clock.elapsed() % interval)
