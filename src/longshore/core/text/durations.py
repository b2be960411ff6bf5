"""Durations in settings, flags and files: ``90s``, ``1h30m``, ``250ms``, ``PT5M``, or seconds.

``format_duration`` writes what ``parse_duration`` reads.
"""

from __future__ import annotations

import re
from datetime import timedelta

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PLAIN = re.compile(rf"(?P<seconds>{_NUMBER})")
_SHORT = re.compile(
    rf"(?:(?P<days>{_NUMBER})d)?(?:(?P<hours>{_NUMBER})h)?(?:(?P<minutes>{_NUMBER})m)?"
    rf"(?:(?P<seconds>{_NUMBER})s)?(?:(?P<milliseconds>{_NUMBER})ms)?"
)
# Without years and months, whose length depends on the date.
_ISO_8601 = re.compile(
    rf"P(?:(?P<weeks>{_NUMBER})W)?(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?(?:(?P<seconds>{_NUMBER})S)?)?",
    re.IGNORECASE,
)
_UNITS = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
    ("ms", timedelta(milliseconds=1)),
)


def parse_duration(value: object) -> timedelta:
    """Returns the duration of a text, or of a number of seconds.

    Raises:
        ValueError: it is negative or not a duration.
    """
    if isinstance(value, str):
        parsed = _from_text(value)
    elif isinstance(value, timedelta):
        parsed = value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        parsed = _from_parts({"seconds": value}, value)
    else:
        raise _not_a_duration(value)
    if parsed < timedelta(0):
        raise _negative(value)
    return parsed


def format_duration(duration: timedelta) -> str:
    """Returns the shortest form of a duration that is not negative: ``1m30s``."""
    rest, parts = duration, []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    if rest:
        # Less than a millisecond is left: add it to the milliseconds as a fraction.
        whole = parts.pop()[:-2] if parts and parts[-1].endswith("ms") else "0"
        parts.append(f"{whole}.{rest.microseconds:03}".rstrip("0") + "ms")
    return "".join(parts) or "0s"


def _from_text(text: str) -> timedelta:
    written = text.strip()
    if written.startswith("-"):
        raise _negative(text)
    for form in (_PLAIN, _SHORT, _ISO_8601):
        match = form.fullmatch(written)
        parts = match.groupdict() if match else {}
        numbers = {unit: float(number) for unit, number in parts.items() if number is not None}
        if numbers:
            return _from_parts(numbers, text)
    raise _not_a_duration(text)


def _from_parts(parts: dict[str, float], written: object) -> timedelta:
    try:
        return timedelta(**parts)
    except (OverflowError, ValueError) as error:
        raise _not_a_duration(written) from error


def _negative(value: object) -> ValueError:
    return ValueError(f"a duration cannot be negative, but {value!r} is")


def _not_a_duration(value: object) -> ValueError:
    return ValueError(
        f"{value!r} is not a duration: write 90s, 5m, 1h30m, 250ms, PT5M or plain seconds"
    )
