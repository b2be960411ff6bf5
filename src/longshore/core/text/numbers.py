"""Counts and durations as text for people."""

from __future__ import annotations

from datetime import timedelta

_SECOND = timedelta(seconds=1)
UNITS = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("min", timedelta(minutes=1)),
    ("s", _SECOND),
)
"""The names and lengths of units of time, the longest first."""


def plural(count: int, noun: str) -> str:
    """``1 task``, ``5 tasks``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration_text(duration: timedelta | None) -> str:
    """A duration in at most two units: ``0.8 s``, ``12 s``, ``3 min 20 s``, ``2 d 3 h``."""
    if duration is None:
        return ""
    if duration < 10 * _SECOND:
        return f"{duration / _SECOND:.1f} s"
    # Rounded first: 59.9 s must become 1 min and not 60 s.
    rest = timedelta(seconds=round(duration / _SECOND))
    parts: list[str] = []
    for unit, size in UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)
