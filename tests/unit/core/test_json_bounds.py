"""Checks of JSON text that make no values."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.text import json_bounds
from longshore.core.text.json_bounds import has_more_values, has_unusable_number, is_utf8

PLAIN = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a,[{"\\\\é'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='b,["'), inner),
)


def count(value: object) -> int:
    """Each object and list, and each comma in them."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return 0
    return 1 + max(len(value) - 1, 0) + sum(count(item) for item in value)


@given(PLAIN)
def test_values_are_counted_and_what_is_in_strings_is_not(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False).encode()

    assert not has_more_values(text, count(value))
    assert not has_more_values(bytearray(text), count(value))
    if count(value):
        assert has_more_values(text, count(value) - 1)


@pytest.mark.parametrize(
    "text",
    ["1e999", "[-1E+309]", "9" * 4301, '{"a": ' + "1" * 400 + ".0}", "9" * 309 + "e0", "1e0400"],
)
def test_a_number_that_python_reads_as_infinite_or_not_at_all_is_found(text: str) -> None:
    assert has_unusable_number(text.encode())
    assert not has_unusable_number(json.dumps([text, "x"]).encode())
    try:
        value = json.loads(text)
    except ValueError:
        return
    while isinstance(value, list | dict):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    assert math.isinf(value)


@pytest.mark.parametrize("text", ["1e-999", "0e999", "9" * 4300, "[1, 2.5, 1e308]", "[1-2e999]"])
def test_other_numbers_are_not(text: str) -> None:
    assert not has_unusable_number(text.encode())


@pytest.mark.parametrize("size", [0, 1, 300, json_bounds._PIECE_BYTES])
def test_a_number_is_found_wherever_the_text_is_divided(size: int) -> None:
    for offset in (-600, -512, -400, -300, -4, -1, 0, 1):
        before = b" " * (size + offset)
        assert has_unusable_number(before + b"1e999")
        assert has_unusable_number(before + b"1" * 310 + b".0")
    assert not has_unusable_number(b" " * size)


@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xc3"])
def test_text_that_is_not_utf8_is_found_wherever_it_is_divided(bad: bytes) -> None:
    for size in (0, json_bounds._PIECE_BYTES - 1, json_bounds._PIECE_BYTES):
        assert not is_utf8(b"x" * size + bad)
        assert is_utf8(b"x" * size + "é€🙂".encode())
