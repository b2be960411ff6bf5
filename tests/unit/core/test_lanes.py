"""Urgent work goes first, and nothing starves."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.queues import LOW_EVERY, lane_order
from longshore.core.tasks.states import Priority


@given(st.integers(min_value=0))
def test_every_receive_looks_into_every_lane_once(turn: int) -> None:
    assert sorted(lane_order(turn)) == sorted(Priority)


@given(st.integers(min_value=0))
def test_any_eight_receives_in_a_row_begin_with_each_lane_as_often(start: int) -> None:
    first = Counter(lane_order(turn)[0] for turn in range(start, start + LOW_EVERY))

    assert first == {Priority.HIGH: 6, Priority.NORMAL: 1, Priority.LOW: 1}


@pytest.mark.parametrize(
    ("turn", "first"),
    [
        (0, Priority.HIGH),
        (3, Priority.NORMAL),
        (4, Priority.HIGH),
        (7, Priority.LOW),
        (8, Priority.HIGH),
        (11, Priority.NORMAL),
        (15, Priority.LOW),
    ],
)
def test_the_lower_lanes_have_their_turns(turn: int, first: Priority) -> None:
    assert lane_order(turn)[0] is first


def test_after_the_first_lane_the_more_urgent_comes_first() -> None:
    assert lane_order(3) == (Priority.NORMAL, Priority.HIGH, Priority.LOW)
    assert lane_order(7) == (Priority.LOW, Priority.HIGH, Priority.NORMAL)
