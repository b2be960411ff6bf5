"""Durations, times, sizes and counts as text for people."""

from __future__ import annotations

from datetime import datetime, timedelta

from longshore.core.text.numbers import UNITS
from longshore.core.text.numbers import duration_text as duration_text
from longshore.core.text.numbers import plural as plural

_SECOND, _WEEK = timedelta(seconds=1), timedelta(days=7)
_CENT, _MIN_COST = 0.01, 0.00005


def duration_ms_text(milliseconds: int | None) -> str:
    """A duration in milliseconds, such as a document has; nothing for None."""
    return "" if milliseconds is None else duration_text(timedelta(milliseconds=milliseconds))


def relative_time(moment: datetime | str | None, now: datetime) -> str:
    """A time relative to now: ``3 s ago``, ``in 2 h``; more than a week away, the date.

    Args:
        moment: A time, or a timestamp of a document.
    """
    if moment is None:
        return ""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    distance = abs(now - moment)
    if distance >= _WEEK:
        return f"{moment.astimezone():%Y-%m-%d}"
    if distance < _SECOND:
        return "just now"
    unit, size = next((unit, size) for unit, size in UNITS if distance >= size)
    text = f"{distance // size} {unit}"
    return f"{text} ago" if moment <= now else f"in {text}"


def clock_time_of(moment: datetime, now: datetime) -> str:
    """A time of the local day with milliseconds; with its date unless that is today."""
    local = moment.astimezone()
    shown = f"{local:%H:%M:%S}.{local.microsecond // 1000:03}"
    return shown if local.date() == now.astimezone().date() else f"{local:%Y-%m-%d} {shown}"


def size(count: int) -> str:
    """A number of bytes: ``512 bytes``, ``12.4 kB``."""
    from rich.filesize import decimal

    return decimal(count)


def cost(amount: float) -> str:
    """An amount in dollars: ``$0.42``, ``$0.0042``; nothing if it is zero."""
    if amount < _MIN_COST:
        return ""  # adding fractions leaves rounding errors
    return f"${amount:,.2f}" if amount >= _CENT else f"${amount:.4f}"
