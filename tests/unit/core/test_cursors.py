"""Cursors lead back to their place, and nowhere else."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.pages import decode_cursor, encode_cursor
from longshore.errors import UsageError

LARGEST = 2**63 - 1
POSITIONS = st.lists(
    st.integers(-LARGEST, LARGEST) | st.text(st.characters(exclude_categories=["Cs"])), max_size=4
)


@given(st.text(st.characters(exclude_categories=["Cs"])), POSITIONS)
def test_a_cursor_gives_back_the_place_it_was_made_of(
    listing: str, position: list[str | int]
) -> None:
    cursor = encode_cursor(listing, *position)

    assert decode_cursor(listing, cursor, tuple(type(part) for part in position)) == position
    assert cursor.isascii()
    assert "=" not in cursor


@given(st.text())
def test_any_text_is_a_cursor_or_refused_in_one_way(text: str) -> None:
    try:
        position = decode_cursor("tasks", text, (int, str))
    except UsageError:
        pass
    else:
        assert [type(part) for part in position] == [int, str]


def test_a_cursor_of_another_listing_is_refused() -> None:
    cursor = encode_cursor("tasks", 3)

    with pytest.raises(UsageError, match="another listing"):
        decode_cursor("jobs", cursor, (int,))


@pytest.mark.parametrize(
    "kinds", [(str,), (int, int), ()], ids=["other kind", "more parts", "fewer parts"]
)
def test_a_place_of_another_shape_is_refused(kinds: tuple[type, ...]) -> None:
    with pytest.raises(UsageError, match="another listing"):
        decode_cursor("tasks", encode_cursor("tasks", 3), kinds)


def test_a_boolean_is_not_taken_for_a_number() -> None:
    with pytest.raises(UsageError):
        decode_cursor("tasks", encode_cursor("tasks", True), (int,))


def test_a_cursor_made_to_exhaust_the_stack_is_refused() -> None:
    text = base64.urlsafe_b64encode(b"[" * 100_000).decode()

    with pytest.raises(UsageError, match="not valid"):
        decode_cursor("tasks", text, (int,))


@pytest.mark.parametrize("text", ["", "!", "é", "bm90IGpzb24", "e30", "W10", "Mw"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not valid"):
        decode_cursor("tasks", text, (int,))


@pytest.mark.parametrize("part", [2**63, -(2**63), 10**40, "\ud800"])
def test_a_place_that_no_store_can_be_asked_for_is_refused(part: int | str) -> None:
    with pytest.raises(UsageError, match="not valid"):
        decode_cursor("jobs", encode_cursor("jobs", part), (type(part),))
