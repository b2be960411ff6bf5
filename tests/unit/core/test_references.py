"""A reference is replaced by the result that it names, wherever it stands."""

import pytest

from longshore.core.child_places import RESULT_REFERENCE
from longshore.core.references import reference_to, with_results
from longshore.errors import UsageError

RESULTS = {"a": [1, 2], "b": None}


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "a", [], {}, [1, {"a": "b"}], {"x": [[]]}])
def test_a_value_without_references_stays_as_it_is(value: object) -> None:
    assert with_results(value, RESULTS) == value


def test_a_reference_becomes_the_result() -> None:
    assert with_results(reference_to("a"), RESULTS) == [1, 2]


def test_references_deep_inside_become_results() -> None:
    value = {"first": [reference_to("a"), {"second": reference_to("b")}], "own": 3}

    assert with_results(value, RESULTS) == {"first": [[1, 2], {"second": None}], "own": 3}


def test_a_result_that_looks_like_a_reference_is_not_looked_into() -> None:
    results = {"a": reference_to("b"), "b": "secret"}

    assert with_results([reference_to("a")], results) == [{RESULT_REFERENCE: "b"}]


@pytest.mark.parametrize("key", ["c", 5, None, ["a"]])
def test_a_reference_to_a_result_that_is_not_there_is_refused(key: object) -> None:
    with pytest.raises(UsageError, match="does not depend on"):
        with_results({"x": {RESULT_REFERENCE: key}}, RESULTS)
