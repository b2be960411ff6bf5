"""Time, the only way in."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What time it is, and waiting for it to pass."""

    def now(self) -> datetime:
        """The moment, aware, in UTC. May go back when the machine's clock is set."""
        ...

    def elapsed(self) -> timedelta:
        """Time since some fixed point: never goes back, runs on while the machine sleeps."""
        ...

    async def sleep(self, duration: timedelta) -> None:
        """Return when ``duration`` has passed; at once for zero and less."""
        ...
