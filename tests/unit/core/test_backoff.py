"""Backoff: how the window grows, where the wait falls in it, and what a server may ask for."""

from datetime import timedelta
from math import nan, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.tasks.backoff import MAX_RETRY_AFTER, RetryPolicy, delay_before

POLICY = RetryPolicy()
ALMOST_ONE = nextafter(1, 0)
SECOND = timedelta(seconds=1)
rolls = st.floats(min_value=0, max_value=1, exclude_max=True)


@pytest.mark.parametrize(
    ("attempts_used", "window_s"), [(0, 1), (1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (7, 30)]
)
def test_the_window_doubles_up_to_the_cap(attempts_used: int, window_s: int) -> None:
    middle = delay_before(attempts_used, POLICY, jitter=0.5)

    assert middle == window_s * SECOND / 2


@given(st.integers(0, 10_000), rolls)
def test_the_wait_is_anywhere_from_zero_to_the_cap(attempts_used: int, roll: float) -> None:
    assert timedelta(0) <= delay_before(attempts_used, POLICY, jitter=roll) <= POLICY.cap


def test_the_wait_may_be_nothing_at_all() -> None:
    assert delay_before(3, POLICY, jitter=0) == timedelta(0)


@given(st.integers(1, 60), rolls, rolls)
def test_a_higher_roll_never_waits_less(attempts_used: int, attempts: float, other: float) -> None:
    low, high = sorted((attempts, other))

    assert delay_before(attempts_used, POLICY, jitter=low) <= delay_before(
        attempts_used, POLICY, jitter=high
    )


def test_ten_thousand_attempts_do_not_overflow_the_longest_window() -> None:
    widest = RetryPolicy(base=timedelta.max / 2, cap=timedelta.max)

    delay = delay_before(10_000, widest, jitter=0.5)

    assert delay > timedelta(days=400_000_000)


def test_the_smallest_base_reaches_the_largest_cap() -> None:
    widest = RetryPolicy(base=timedelta.resolution, cap=timedelta.max)

    assert delay_before(10_000, widest, jitter=ALMOST_ONE) > timedelta(days=999_999_000)


def test_no_retry_is_earlier_than_the_server_requested() -> None:
    requested = timedelta(seconds=7)

    assert delay_before(1, POLICY, jitter=0, retry_after=requested) == requested


def test_a_retry_after_holds_above_the_cap() -> None:
    requested = timedelta(minutes=10)

    assert delay_before(1, POLICY, jitter=0, retry_after=requested) == requested


def test_tasks_with_the_same_retry_after_retry_at_different_times() -> None:
    requested = timedelta(minutes=10)

    assert delay_before(1, POLICY, jitter=0.5, retry_after=requested) == requested + SECOND / 2


@pytest.mark.parametrize(
    ("requested", "honoured"),
    [
        pytest.param(MAX_RETRY_AFTER, MAX_RETRY_AFTER, id="the longest"),
        pytest.param(MAX_RETRY_AFTER + SECOND, MAX_RETRY_AFTER, id="longer"),
        pytest.param(-SECOND, timedelta(0), id="in the past"),
    ],
)
def test_a_retry_after_is_kept_within_reason(requested: timedelta, honoured: timedelta) -> None:
    assert delay_before(1, POLICY, jitter=0, retry_after=requested) == honoured


@pytest.mark.parametrize("roll", [-0.1, 1.0, nan])
def test_a_jitter_outside_its_range_is_refused(roll: float) -> None:
    with pytest.raises(ValueError, match="jitter must be at least 0 and less than 1"):
        delay_before(1, POLICY, jitter=roll)


def test_a_negative_number_of_attempts_is_refused() -> None:
    with pytest.raises(ValueError, match="attempts_used must not be negative"):
        delay_before(-1, POLICY, jitter=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_attempts", 0), ("base", timedelta(0)), ("base", -SECOND), ("cap", SECOND / 2)],
)
def test_a_policy_that_cannot_work_names_the_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be"):
        RetryPolicy(**{field: value})
