"""A result that is dressed up is found; the plainest reading comes first."""

from typing import Any

import pytest

from longshore.execution.runners.agent.results import result_candidates


@pytest.mark.parametrize(
    ("structured", "text", "meant"),
    [
        ({"a": 1}, None, {"a": 1}),
        ({"result": {"a": 1}}, None, {"a": 1}),
        ({"output": '{"a": 1}'}, None, {"a": 1}),
        ('{"a": 1}', None, {"a": 1}),
        ({"a": "[1, 2]", "b": "x"}, None, {"a": [1, 2], "b": "x"}),
        (None, '{"a": 1}', {"a": 1}),
        (None, 'Here:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}),
        (None, '```\n{"a": 1}\n```', {"a": 1}),
        ({"x": {"y": {"z": {"a": 1}}}}, None, {"a": 1}),
    ],
)
def test_the_intended_result_is_a_candidate(structured: Any, text: str, meant: Any) -> None:
    assert meant in list(result_candidates(structured, text))


def test_structured_output_is_the_first_candidate() -> None:
    assert next(result_candidates({"result": {"a": 1}}, '{"b": 2}')) == {"result": {"a": 1}}


@pytest.mark.parametrize("text", [None, "prose", "", "[" * 100_000])
def test_prose_has_no_reading(text: str | None) -> None:
    assert list(result_candidates(None, text)) == []


def test_it_is_not_looked_for_without_end() -> None:
    deep: Any = {"a": 1}
    for _ in range(10):
        deep = {"x": deep}

    assert {"a": 1} not in list(result_candidates(deep, None))
    assert list(result_candidates("plain", None)) == ["plain"]
    assert list(result_candidates({"a": 1, "b": 2}, None)) == [{"a": 1, "b": 2}]
    assert list(result_candidates([1], None)) == [[1]]
