"""Tools in the trace of a step: one entry for each call, however often it is reported."""

from typing import Any

import pytest

from longshore.core.agents.trace import ToolOutcome
from tests.unit.core.agents.trace_samples import (
    Report,
    a_step,
    at,
    report,
    subagent_started,
    text_event,
    tool_called,
    tool_denied,
    tool_ended,
    tool_started,
)

FAILED, INTERRUPTED = ToolOutcome.FAILED, ToolOutcome.INTERRUPTED


def tool_of(*events: Report) -> dict[str, Any]:
    """The only tool of a step to which this has happened."""
    (tool,) = a_step(*events).document(at(9))["tools"]
    return tool


def test_all_events_of_a_tool_call_make_one_entry() -> None:
    tool = tool_of(
        text_event("I look", turn="m1"),
        tool_called(turn_id="m1"),
        tool_started(at=at(3)),
        tool_started(at=at(4)),
        tool_ended(duration_ms=118, output=""),
        tool_ended(at=at(6), outcome=FAILED, output="a.txt"),
    )

    assert tool == {
        "id": "t1",
        "name": "Bash",
        "input": '{"command": "ls"}',
        "summary": "ls",
        "startedAt": "2030-01-31T12:00:03.000Z",
        "turn": 1,
        "parent": None,
        "outcome": "ok",
        "output": "a.txt",
        "durationMs": 118,
    }


def test_a_hook_may_arrive_before_the_answer() -> None:
    trace = a_step(
        subagent_started("a1", tool="t0"),
        tool_started(agent_id="a1", at=at(2)),
        text_event(turn="m1", at=at(3), parent="t0"),
        tool_called(turn_id="m1", parent="t0"),
        tool_started("t2", agent_id="unknown"),
        tool_called("t2", turn_id="nowhere", parent="t0"),
    )

    document = trace.document(at(9))

    assert [(tool["turn"], tool["parent"]) for tool in document["tools"]] == [(1, "t0"), (1, "t0")]
    # A tool call is not earlier than the answer that requested it.
    assert document["turns"][0]["at"] == document["tools"][0]["startedAt"]


@pytest.mark.parametrize(
    ("reported", "outcome", "duration_ms"),
    [
        ((tool_started(), tool_ended()), "ok", 2000),
        ((tool_called(), tool_ended(outcome=FAILED)), "failed", None),
        ((tool_started(), tool_ended(outcome=INTERRUPTED, duration_ms=7)), "interrupted", 7),
        ((tool_started(),), "running", None),
        ((tool_started(), report("finish", at=at(4))), "interrupted", 1000),
        ((tool_called(), report("finish", at=at(4))), "interrupted", None),
        (
            (
                tool_started(),
                tool_denied(4, reason="no"),
            ),
            "denied",
            None,
        ),
        (
            (
                tool_started(),
                tool_ended(outcome=FAILED),
                tool_denied(6),
            ),
            "denied",
            None,
        ),
        (
            (
                tool_started(),
                tool_denied(4, reason="no"),
                tool_ended(outcome=FAILED, output="for the model: no"),
                tool_denied(6),
            ),
            "denied",
            None,
        ),
    ],
)
def test_the_outcome_of_a_tool_is_traced(
    reported: tuple[Report, ...], outcome: str, duration_ms: int | None
) -> None:
    tool = tool_of(*reported)

    assert (tool["outcome"], tool["durationMs"]) == (outcome, duration_ms)


def test_outcomes_are_counted_once_each() -> None:
    trace = a_step(
        *(tool_started(f"t{n}") for n in range(6)),
        tool_ended("t0"),
        tool_ended("t0", FAILED),
        tool_ended("t1", FAILED),
        tool_ended("t2", FAILED),
        tool_denied(6, "t2"),
        report("finish", at=at(7)),
    )

    counts = trace.document(at(9))["counts"]

    assert (counts["tools"], counts["ok"], counts["failed"]) == (6, 1, 1)
    assert (counts["denied"], counts["interrupted"]) == (1, 3)
    assert not trace.tools_running


def test_a_denial_is_traced_with_its_reason_also_for_an_unknown_tool_call() -> None:
    trace = a_step(
        tool_started(),
        tool_denied(4, tool_input={"command": "rm"}, reason="not that"),
        tool_denied(5, "t9", "Write"),
    )

    document = trace.document(at(9))

    assert [(tool["name"], tool["outcome"], tool["output"]) for tool in document["tools"]] == [
        ("Bash", "denied", "not that"),
        ("Write", "denied", ""),
    ]
    assert (document["counts"]["tools"], document["counts"]["denied"]) == (2, 2)


def test_the_end_of_a_tool_that_is_not_known_is_passed_over() -> None:
    trace = a_step()

    assert tool_ended("t9")(trace) is None
    assert trace.document(at(9))["tools"] == []
