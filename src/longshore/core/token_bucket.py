"""Rates: how many calls a caller may make, as a bucket that fills with time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """So many a second in the long run, and so many at once."""

    per_second: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_second <= 0 or self.burst < 1:
            message = (
                f"a rate allows something: not {self.per_second} a second, {self.burst} at once"
            )
            raise ValueError(message)


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """What a caller has left, and when that was so, on a clock that is never set back."""

    tokens: float
    at: timedelta


def full_bucket(rate: Rate, *, now: timedelta) -> TokenBucket:
    """The bucket of a caller who has not called yet."""
    return TokenBucket(float(rate.burst), now)


def take_token(
    bucket: TokenBucket, rate: Rate, *, now: timedelta
) -> tuple[TokenBucket, timedelta | None]:
    """The bucket after one more call, and how long to wait if there is none left for it."""
    gained = (now - bucket.at).total_seconds() * rate.per_second
    left = min(bucket.tokens + gained, float(rate.burst))
    if left >= 1:
        return TokenBucket(left - 1, now), None
    return TokenBucket(left, now), timedelta(seconds=(1 - left) / rate.per_second)


def is_full(bucket: TokenBucket, rate: Rate, *, now: timedelta) -> bool:
    """Whether a caller has been quiet for so long that it need not be remembered."""
    return bucket.tokens + (now - bucket.at).total_seconds() * rate.per_second >= rate.burst
