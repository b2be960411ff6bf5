"""The inputs of tools in a trace: short, masked, summarised."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.core.agents.trace import BoundedList
from longshore.core.agents.trace_text import (
    format_time,
    input_excerpt,
    input_summary,
    to_milliseconds,
)
from tests.unit.core.agents.trace_samples import NOON
from tests.unit.core.secret_samples import ANTHROPIC


@pytest.mark.parametrize(
    ("fields", "excerpt"),
    [
        (None, "null"),
        ("text", '"text"'),
        ({"command": "ls", "timeout": 5}, '{"command": "ls", "timeout": 5}'),
        ({"password": "hunter2", "user": "me"}, '{"password": "[masked]", "user": "me"}'),
        ({"credentials": {"of": "a friend"}}, '{"credentials": "[masked]"}'),
        ({"command": f"curl -H 'x-api-key: {ANTHROPIC}'"}, None),
        ({"todos": [{"content": "ä"}, ("b", 1)]}, '{"todos": [{"content": "ä"}, ["b", 1]]}'),
        ({"what": NOON}, '{"what": "2030-01-31 12:00:00+00:00"}'),
        ({"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}}, None),
        ({"content": "long " * 100_000}, None),
        ({str(number): number for number in range(10_000)}, None),
    ],
)
def test_an_input_is_json_masked_and_short(fields: Any, excerpt: str | None) -> None:
    result = input_excerpt(fields)

    assert len(result) <= 200
    assert ANTHROPIC not in result
    assert excerpt in (None, result)


def test_deeply_nested_inputs_are_truncated() -> None:
    fields: Any = "bottom"
    for _ in range(5_000):
        fields = [fields]

    assert input_excerpt(fields) == "[" * 6 + '"…"' + "]" * 6


@pytest.mark.parametrize(
    ("fields", "summary"),
    [
        (None, ""),
        ("as it is", "as it is"),
        ({}, ""),
        ({"description": "List files", "command": "ls\n -la"}, "ls -la"),
        ({"content": "all of it", "file_path": "report.md"}, "report.md"),
        ({"description": "d", "subject": "Look around"}, "Look around"),
        ({"command": "", "url": "http://x"}, "http://x"),
        ({"command": 5, "taskId": "1", "status": "in_progress", "more": None}, "5 1 in_progress"),
        ({"prompt": f"use {ANTHROPIC}"}, "use [masked]"),
        ({"secret": "hunter2"}, "[masked]"),
    ],
)
def test_a_summary_is_the_most_informative_field_of_an_input(fields: Any, summary: str) -> None:
    assert input_summary(fields) == summary


def test_a_summary_is_short() -> None:
    assert len(input_summary({"command": "x " * 1000})) == 100


def test_moments_and_durations() -> None:
    assert format_time(NOON + timedelta(microseconds=1500)) == "2030-01-31T12:00:00.001Z"
    assert to_milliseconds(timedelta(seconds=1.5)) == 1500
    assert to_milliseconds(timedelta(seconds=-1)) == 0


def test_a_list_with_a_limit_drops_from_its_middle() -> None:
    ends: BoundedList[int] = BoundedList(4)

    for number in range(7):
        ends.add(number, None if number % 2 else f"id {number}")

    assert [ends.get(item_id) for item_id in ("id 0", "id 2", None)] == [0, None, None]
    assert (list(ends), ends.omitted) == ([0, 1, 5, 6], 3)
