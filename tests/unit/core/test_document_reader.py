"""The number of values of a JSON value is limited."""

import tracemalloc

import pytest

from longshore.core.document_reader import MAX_PROBLEMS, DocumentReader, check_json
from longshore.errors import Problem


def test_as_many_values_as_the_limit_are_accepted() -> None:
    check_json([1, [2]], max_values=4)


def test_more_values_than_the_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at most 4 values"):
        check_json([1, [2, 3]], max_values=4)


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1 << 70, "b": None},
        {"a": True, "b": "text", "c": {"d": 1}, "e": 2.5},
        {"ä": "ü", "list": [{"a": 1}]},
    ],
    ids=repr,
)
def test_json_is_accepted(value: object) -> None:
    check_json(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 1, "b": {"c": float("nan")}}, "a finite number"),
        ({"a": 1, "b": {"c": 1 << 9000}}, "a number of at most"),
        ({"a": {"b": "\ud800"}}, "valid Unicode"),
        ({"a": {"\ud800": 1}}, "valid Unicode"),
        ({"a": {1: 1}}, "text as a key"),
        ({"a": {"b": {1}}}, "a JSON value"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_value_inside_that_is_not_json_is_refused(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_json(value)


@pytest.mark.parametrize("value", [[0.5] * 100_000, dict.fromkeys(map(str, range(100_000)), 0.5)])
def test_a_check_needs_no_memory_for_the_values(value: object) -> None:
    tracemalloc.start()
    try:
        check_json([value])
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_problems_beyond_the_limit_are_not_listed() -> None:
    reader = DocumentReader()
    reader.reject_unknown({f"f{number}": 0 for number in range(3 * MAX_PROBLEMS)}, ("a",), "x")
    reader.add("y", "one more")

    assert len(reader.problems) == MAX_PROBLEMS + 1
    assert reader.problems[0] == Problem("x.f0", "unknown field; expected only a")
    assert reader.problems[-1] == Problem("", "more problems are not shown")
