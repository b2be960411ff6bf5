"""Cursors lead back to their place, and nowhere else."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.cursors import cursor_to, place_of
from longshore.errors import UsageError

LARGEST = 2**63 - 1
PLACES = st.lists(
    st.integers(-LARGEST, LARGEST) | st.text(st.characters(exclude_categories=["Cs"])), max_size=4
)


@given(st.text(st.characters(exclude_categories=["Cs"])), PLACES)
def test_a_cursor_gives_back_the_place_it_was_made_of(listing: str, place: list[str | int]) -> None:
    cursor = cursor_to(listing, *place)

    assert place_of(listing, cursor, tuple(type(part) for part in place)) == place
    assert cursor.isascii()
    assert "=" not in cursor


@given(st.text())
def test_any_text_is_a_cursor_or_refused_in_one_way(text: str) -> None:
    try:
        place = place_of("tasks", text, (int, str))
    except UsageError:
        pass
    else:
        assert [type(part) for part in place] == [int, str]


def test_a_cursor_of_another_listing_is_refused() -> None:
    cursor = cursor_to("tasks", 3)

    with pytest.raises(UsageError, match="another listing"):
        place_of("jobs", cursor, (int,))


@pytest.mark.parametrize(
    "kinds", [(str,), (int, int), ()], ids=["other kind", "more parts", "fewer parts"]
)
def test_a_place_of_another_shape_is_refused(kinds: tuple[type, ...]) -> None:
    with pytest.raises(UsageError, match="another listing"):
        place_of("tasks", cursor_to("tasks", 3), kinds)


def test_a_boolean_is_not_taken_for_a_number() -> None:
    with pytest.raises(UsageError):
        place_of("tasks", cursor_to("tasks", True), (int,))


def test_a_cursor_made_to_exhaust_the_stack_is_refused() -> None:
    text = base64.urlsafe_b64encode(b"[" * 100_000).decode()

    with pytest.raises(UsageError, match="not valid"):
        place_of("tasks", text, (int,))


@pytest.mark.parametrize("text", ["", "!", "é", "bm90IGpzb24", "e30", "W10", "Mw"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not valid"):
        place_of("tasks", text, (int,))


@pytest.mark.parametrize("part", [2**63, -(2**63), 10**40, "\ud800"])
def test_a_place_that_no_store_can_be_asked_for_is_refused(part: int | str) -> None:
    with pytest.raises(UsageError, match="not valid"):
        place_of("jobs", cursor_to("jobs", part), (type(part),))
