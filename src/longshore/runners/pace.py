"""How often something may be said: a few at once, then steadily, and the rest is passed over."""

from __future__ import annotations

import time

BURST = 50
PER_SECOND = 10.0


class Pace:
    """Somebody who says little is always heard; somebody who says something in each turn of a
    tight loop keeps nobody busy with it."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = time.monotonic()

    def allows(self) -> bool:
        """Whether one more may be said now; if so, it is counted."""
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * PER_SECOND, float(BURST))
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
