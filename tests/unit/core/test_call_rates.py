"""Rates: how many calls a caller has at once, and how soon there are more."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.api_keys import Rate, count_call

RATE = Rate(per_second=2, burst=3)
START = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def test_so_many_at_once_and_then_one_has_to_wait() -> None:
    free_at, waits = START, []
    for _ in range(4):
        free_at, wait = count_call(free_at, RATE, now=START)
        waits.append(wait)

    assert waits == [None, None, None, SECOND / 2]


def test_a_caller_that_waited_as_long_as_required_is_allowed() -> None:
    free_at = START
    for _ in range(3):
        free_at, _ = count_call(free_at, RATE, now=START)
    free_at, wait = count_call(free_at, RATE, now=START)
    assert wait is not None

    _, again = count_call(free_at, RATE, now=START + wait)

    assert again is None


def test_a_long_silence_allows_no_more_than_the_burst() -> None:
    free_at = START
    later = START + timedelta(days=1)
    allowed = 0
    while True:
        free_at, wait = count_call(free_at, RATE, now=later)
        if wait is not None:
            break
        allowed += 1

    assert allowed == RATE.burst


def test_who_has_been_quiet_need_not_be_remembered() -> None:
    free_at, _ = count_call(START, RATE, now=START)

    assert START < free_at <= START + SECOND


@given(st.lists(st.floats(0, 5), max_size=50))
def test_no_caller_gets_more_than_the_rate_and_the_burst(pauses: list[float]) -> None:
    now, free_at, allowed = START, START, 0
    for pause in pauses:
        now += timedelta(seconds=pause)
        free_at, wait = count_call(free_at, RATE, now=now)
        allowed += wait is None

    assert allowed <= RATE.burst + (now - START).total_seconds() * RATE.per_second + 1e-6


@pytest.mark.parametrize(("per_second", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_rate_that_allows_nothing_is_none(per_second: float, burst: int) -> None:
    with pytest.raises(ValueError, match="a rate must be above 0 per second"):
        Rate(per_second=per_second, burst=burst)
