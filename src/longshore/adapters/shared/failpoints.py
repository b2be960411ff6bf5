"""Failpoints: named points where a test can kill this process, to check that the next one recovers.

There is one before and after each step with an effect outside of this process: a commit, a file
that is written, synced, renamed or removed, a lock, a process that starts or ends. They do nothing
unless a test arms them; no setting and no environment variable can.

``verification.crash`` names all of them, and kills real processes at each in turn.
"""

from __future__ import annotations

from collections.abc import Callable

_armed: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """Report that this process is at a failpoint."""
    if _armed is not None:
        _armed(point)


def arm(act: Callable[[str], None]) -> None:
    """Call ``act`` with the name of each failpoint that is reached, on any thread."""
    global _armed
    _armed = act
