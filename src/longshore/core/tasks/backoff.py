"""Backoff: how long a task waits before its next attempt.

Exponential with full jitter: the wait is drawn evenly from zero to a window
that doubles with each attempt, because tasks that failed together (one outage,
one rate limit) would otherwise come back together. The roll of the dice comes
in as a value, so the same history always gives the same delay.

A server that says when to come back knows better than any window of ours: its
``Retry-After`` is a floor, also above the cap, and the jitter is added to it,
since everybody who was turned away was told the same moment.
"""

from dataclasses import dataclass
from datetime import timedelta

from longshore.core.text.durations import format_duration

# A server's word is honoured, but a mistake of its (a date in the wrong century) may not
# park a task for ever.
MAX_RETRY_AFTER = timedelta(hours=24)

_MICROSECOND = timedelta(microseconds=1)
# More doublings than any timedelta has bits, so that the shift stays a small number.
_MAX_DOUBLINGS = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a task is tried, and how its waits grow."""

    max_attempts: int = 3  # the first one included
    base: timedelta = timedelta(seconds=1)  # the window after the first attempt
    cap: timedelta = timedelta(seconds=30)  # the window grows no further

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            message = f"max_attempts must be at least 1, not {self.max_attempts!r}"
            raise ValueError(message)
        if self.base <= timedelta(0):
            message = f"base must be longer than zero, not {self.base!r}"
            raise ValueError(message)
        if self.cap < self.base:
            message = (
                f"cap must be no shorter than base ({format_duration(self.base)}), "
                f"not {format_duration(self.cap)}"
            )
            raise ValueError(message)


def delay_before(
    attempts_used: int,
    policy: RetryPolicy,
    *,
    jitter: float,
    retry_after: timedelta | None = None,
) -> timedelta:
    """How long to wait before the attempt that follows ``attempts_used``.

    Args:
        attempts_used: Attempts that counted so far; 0 if none did (a rate limit does not count).
        roll: Where in the window the wait falls, from 0 up to but not including 1.
        retry_after: What the server asked for; ``MAX_RETRY_AFTER`` at most.
    """
    if attempts_used < 0:
        message = f"attempts_used must not be negative, but is {attempts_used!r}"
        raise ValueError(message)
    if not 0 <= jitter < 1:
        message = f"roll must be at least 0 and less than 1, not {jitter!r}"
        raise ValueError(message)
    return _floor(retry_after) + _window(attempts_used, policy) * jitter


def _window(attempts_used: int, policy: RetryPolicy) -> timedelta:
    doublings = min(max(attempts_used - 1, 0), _MAX_DOUBLINGS)
    # Whole numbers, because a timedelta overflows where an int does not.
    grown = (policy.base // _MICROSECOND) << doublings
    return min(grown, policy.cap // _MICROSECOND) * _MICROSECOND


def _floor(retry_after: timedelta | None) -> timedelta:
    if retry_after is None:
        return timedelta(0)
    return min(max(retry_after, timedelta(0)), MAX_RETRY_AFTER)
