"""Rates: a bucket that fills with time."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.api_keys import Rate, full_bucket, is_full, take_token

RATE = Rate(per_second=2, burst=3)
START = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def test_so_many_at_once_and_then_one_has_to_wait() -> None:
    bucket = full_bucket(RATE, now=START)
    waits = []
    for _ in range(4):
        bucket, wait = take_token(bucket, RATE, now=START)
        waits.append(wait)

    assert waits == [None, None, None, SECOND / 2]


def test_a_caller_that_waited_as_long_as_required_is_allowed() -> None:
    bucket = full_bucket(RATE, now=START)
    for _ in range(3):
        bucket, _ = take_token(bucket, RATE, now=START)
    bucket, wait = take_token(bucket, RATE, now=START)
    assert wait is not None

    _, again = take_token(bucket, RATE, now=START + wait)

    assert again is None


def test_a_bucket_does_not_get_fuller_than_full() -> None:
    bucket = full_bucket(RATE, now=START)
    later = START + timedelta(days=1)
    allowed = 0
    while True:
        bucket, wait = take_token(bucket, RATE, now=later)
        if wait is not None:
            break
        allowed += 1

    assert allowed == RATE.burst


def test_who_has_been_quiet_need_not_be_remembered() -> None:
    bucket, _ = take_token(full_bucket(RATE, now=START), RATE, now=START)

    assert not is_full(bucket, RATE, now=START)
    assert is_full(bucket, RATE, now=START + SECOND)


@given(st.lists(st.floats(0, 5), max_size=50))
def test_no_caller_gets_more_than_the_rate_and_the_burst(pauses: list[float]) -> None:
    now, bucket, allowed = START, full_bucket(RATE, now=START), 0
    for pause in pauses:
        now += timedelta(seconds=pause)
        bucket, wait = take_token(bucket, RATE, now=now)
        allowed += wait is None

    assert allowed <= RATE.burst + (now - START).total_seconds() * RATE.per_second + 1e-6


@pytest.mark.parametrize(("per_second", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_rate_that_allows_nothing_is_none(per_second: float, burst: int) -> None:
    with pytest.raises(ValueError, match="a rate must be above 0 per second"):
        Rate(per_second=per_second, burst=burst)
