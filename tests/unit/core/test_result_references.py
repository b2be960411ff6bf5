"""A reference at any position is replaced by the result that it names."""

import pytest

from longshore.core.documents import (
    RESULT_REFERENCE,
    resolve_references,
    result_reference,
)
from longshore.errors import UsageError

RESULTS = {"a": [1, 2], "b": None}


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "a", [], {}, [1, {"a": "b"}], {"x": [[]]}])
def test_a_value_without_references_stays_as_it_is(value: object) -> None:
    assert resolve_references(value, RESULTS) == value


def test_a_reference_becomes_the_result() -> None:
    assert resolve_references(result_reference("a"), RESULTS) == [1, 2]


def test_references_deep_inside_become_results() -> None:
    value = {"first": [result_reference("a"), {"second": result_reference("b")}], "own": 3}

    assert resolve_references(value, RESULTS) == {"first": [[1, 2], {"second": None}], "own": 3}


def test_a_result_that_looks_like_a_reference_is_not_looked_into() -> None:
    results = {"a": result_reference("b"), "b": "secret"}

    assert resolve_references([result_reference("a")], results) == [{RESULT_REFERENCE: "b"}]


@pytest.mark.parametrize("key", ["c", 5, None, ["a"]])
def test_a_reference_to_a_result_that_is_not_there_is_refused(key: object) -> None:
    with pytest.raises(UsageError, match="does not depend on"):
        resolve_references({"x": {RESULT_REFERENCE: key}}, RESULTS)
