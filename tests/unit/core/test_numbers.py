"""Sets of numbers behave as sets do, and fit in a row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet

NUMBERS = st.sets(st.integers(0, 300))


@given(NUMBERS)
def test_a_set_holds_what_was_put_in_and_in_order(numbers: set[int]) -> None:
    result = NumberSet(numbers)

    assert list(result) == sorted(numbers)
    assert len(result) == len(numbers)
    assert bool(result) == bool(numbers)
    assert all((number in result) == (number in numbers) for number in range(310))


@given(NUMBERS, NUMBERS)
def test_sets_are_joined_and_compared_as_sets_are(left: set[int], right: set[int]) -> None:
    assert NumberSet(left) | NumberSet(right) == NumberSet(left | right)
    assert NumberSet(left) & NumberSet(right) == NumberSet(left & right)
    assert NumberSet(left) - NumberSet(right) == NumberSet(left - right)
    assert (NumberSet(left) == NumberSet(right)) == (left == right)


@given(NUMBERS)
def test_a_set_comes_back_from_its_bits_as_it_was(numbers: set[int]) -> None:
    bits = NumberSet(numbers).bits

    assert bits == sum(1 << number for number in numbers)
    assert NumberSet(bits=bits) == NumberSet(numbers)


@given(NUMBERS)
def test_a_set_comes_back_from_its_text_as_it_was(numbers: set[int]) -> None:
    result = NumberSet(numbers)

    assert NumberSet.from_text(result.to_text()) == result


@given(st.lists(st.integers(0, 50)))
def test_equal_sets_have_equal_hashes_however_they_were_made(numbers: list[int]) -> None:
    item, other = NumberSet(numbers), NumberSet(reversed(numbers))

    assert item == other
    assert hash(item) == hash(other)


def test_no_numbers_are_no_text() -> None:
    assert NO_NUMBERS.to_text() == ""
    assert NumberSet.from_text("") == NO_NUMBERS


def test_a_set_up_to_a_count_has_all_numbers_below_it() -> None:
    assert list(NumberSet.below(4)) == [0, 1, 2, 3]
    assert NumberSet.below(0) == NO_NUMBERS


def test_no_number_is_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        NumberSet([3, -1])
    with pytest.raises(ValueError, match="negative"):
        NumberSet.below(-2)
    assert -1 not in NumberSet([0, 1])
    with pytest.raises(ValueError, match="-ff"):
        NumberSet.from_text("-ff")


def test_ten_thousand_tasks_fit_in_a_small_row() -> None:
    assert len(NumberSet.below(10_000).to_text()) == 2_500


def test_a_set_is_equal_to_nothing_else() -> None:
    assert NumberSet([1]) != {1}


def test_a_short_set_is_shown_and_a_long_one_counted() -> None:
    assert repr(NumberSet([3, 1])) == "NumberSet([1, 3])"
    assert repr(NumberSet.below(20)) == f"NumberSet({list(range(20))})"
    assert repr(NumberSet.below(21)) == "NumberSet(<21 numbers>)"
