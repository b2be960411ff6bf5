"""Backoff: how long a task waits before its next attempt.

Exponential with full jitter: the delay is drawn evenly from zero to a window that doubles with each
attempt, because tasks that failed together would otherwise retry together. The random number is an
argument, so the same history always gives the same delay.

A ``Retry-After`` of a server is a minimum, also above the cap. The jitter is added to it, because
all clients that were refused got the same time.
"""

from dataclasses import dataclass
from datetime import timedelta

from longshore.core.text.durations import format_duration

# Bounds a wrong Retry-After, such as a date in the wrong century.
MAX_RETRY_AFTER = timedelta(hours=24)

_MICROSECOND = timedelta(microseconds=1)
# More doublings than any timedelta has bits, so that the shift stays a small number.
_MAX_DOUBLINGS = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How many attempts a task has, and how its delays grow."""

    max_attempts: int = 3  # including the first
    base: timedelta = timedelta(seconds=1)  # the window after the first attempt
    cap: timedelta = timedelta(seconds=30)  # the window grows no further
    # How long a task may wait in all, within a round, for the times that rate limits named.
    rate_limit_wait: timedelta = timedelta(hours=24)

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {self.max_attempts!r}")
        if self.base <= timedelta(0):
            raise ValueError(f"base must be longer than zero, not {self.base!r}")
        if self.cap < self.base:
            raise ValueError(
                f"cap must be no shorter than base ({format_duration(self.base)}), "
                f"not {format_duration(self.cap)}"
            )


def delay_before(
    attempts_used: int,
    policy: RetryPolicy,
    *,
    jitter: float,
    retry_after: timedelta | None = None,
) -> timedelta:
    """Returns the delay before the attempt that follows ``attempts_used``.

    Args:
        attempts_used: Attempts that counted so far; a rate limit that names a wait does not count.
        jitter: The position of the delay in the window, at least 0 and less than 1.
        retry_after: The delay that a server requested; at most ``MAX_RETRY_AFTER`` counts.
    """
    if attempts_used < 0:
        raise ValueError(f"attempts_used must not be negative, but is {attempts_used!r}")
    if not 0 <= jitter < 1:
        raise ValueError(f"jitter must be at least 0 and less than 1, not {jitter!r}")
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
