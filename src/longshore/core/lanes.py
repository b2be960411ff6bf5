"""Three priorities without starvation: in which order a receive looks into the lanes."""

from __future__ import annotations

from longshore.core.states import Priority

_HIGH_FIRST = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
_NORMAL_FIRST = (Priority.NORMAL, Priority.HIGH, Priority.LOW)
_LOW_FIRST = (Priority.LOW, Priority.HIGH, Priority.NORMAL)

NORMAL_EVERY = 4
LOW_EVERY = 8


def lanes_for(turn: int) -> tuple[Priority, ...]:
    """The order for a receiver's n-th receive, counted from 0: mostly high first.

    One receive in eight begins with the low lane and one in eight with the normal one, so that a
    steady stream of urgent work slows the rest down and never stops it.
    """
    if turn % LOW_EVERY == LOW_EVERY - 1:
        return _LOW_FIRST
    if turn % NORMAL_EVERY == NORMAL_EVERY - 1:
        return _NORMAL_FIRST
    return _HIGH_FIRST
