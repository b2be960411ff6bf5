"""Tools in the trace of a step: one entry each, however often and by whomever they are told of."""

from typing import Any

import pytest

from longshore.core.agents.happenings import Denied, Finished, Happening, SubagentBegan, ToolOutcome
from tests.unit.core.agents.trace_play import a_step, at, began, called, ended, said

FAILED, INTERRUPTED = ToolOutcome.FAILED, ToolOutcome.INTERRUPTED


def tool_of(*told: Happening) -> dict[str, Any]:
    """The only tool of a step to which this has happened."""
    (tool,) = a_step(*told).document(at(9))["tools"]
    return tool


def test_a_tool_is_one_entry_however_often_it_is_told_of() -> None:
    tool = tool_of(
        said("I look", turn="m1"),
        called(turn_id="m1"),
        began(at=at(3)),
        began(at=at(4)),
        ended(duration_ms=118, output=""),
        ended(at=at(6), outcome=FAILED, output="a.txt"),
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


def test_a_hook_may_come_before_the_answer() -> None:
    trace = a_step(
        SubagentBegan(at=at(1), agent_id="a1", tool_id="t0"),
        began(agent_id="a1", at=at(2)),
        said(turn="m1", at=at(3), parent="t0"),
        called(turn_id="m1", parent="t0"),
        began("t2", agent_id="unknown"),
        called("t2", turn_id="nowhere", parent="t0"),
    )

    document = trace.document(at(9))

    assert [(tool["turn"], tool["parent"]) for tool in document["tools"]] == [(1, "t0"), (1, "t0")]
    # No tool stands before the answer that wanted it.
    assert document["turns"][0]["at"] == document["tools"][0]["startedAt"]


@pytest.mark.parametrize(
    ("told", "outcome", "duration_ms"),
    [
        ((began(), ended()), "ok", 2000),
        ((called(), ended(outcome=FAILED)), "failed", None),
        ((began(), ended(outcome=INTERRUPTED, duration_ms=7)), "interrupted", 7),
        ((began(),), "running", None),
        ((began(), Finished(at=at(4))), "interrupted", 1000),
        ((called(), Finished(at=at(4))), "interrupted", None),
        ((began(), Denied(at=at(4), tool_id="t1", name="Bash", reason="no")), "denied", None),
        (
            (began(), ended(outcome=FAILED), Denied(at=at(6), tool_id="t1", name="Bash")),
            "denied",
            None,
        ),
        (
            (
                began(),
                Denied(at=at(4), tool_id="t1", name="Bash", reason="no"),
                ended(outcome=FAILED, output="told the model: no"),
                Denied(at=at(6), tool_id="t1", name="Bash"),
            ),
            "denied",
            None,
        ),
    ],
)
def test_how_a_tool_ends(
    told: tuple[Happening, ...], outcome: str, duration_ms: int | None
) -> None:
    tool = tool_of(*told)

    assert (tool["outcome"], tool["durationMs"]) == (outcome, duration_ms)


def test_outcomes_are_counted_once_each() -> None:
    trace = a_step(
        *(began(f"t{n}") for n in range(6)),
        ended("t0"),
        ended("t0", FAILED),
        ended("t1", FAILED),
        ended("t2", FAILED),
        Denied(at=at(6), tool_id="t2", name="Bash"),
        Finished(at=at(7)),
    )

    counts = trace.document(at(9))["counts"]

    assert (counts["tools"], counts["ok"], counts["failed"]) == (6, 1, 1)
    assert (counts["denied"], counts["interrupted"]) == (1, 3)
    assert not trace.tools_running


def test_a_denial_is_kept_with_its_reason_also_of_a_tool_that_was_not_seen() -> None:
    trace = a_step(
        began(),
        Denied(at=at(4), tool_id="t1", name="Bash", input={"command": "rm"}, reason="not that"),
        Denied(at=at(5), tool_id="t9", name="Write"),
    )

    document = trace.document(at(9))

    assert document["denials"] == [
        {
            "at": "2030-01-31T12:00:04.000Z",
            "tool": "Bash",
            "input": '{"command": "rm"}',
            "reason": "not that",
        },
        {"at": "2030-01-31T12:00:05.000Z", "tool": "Write", "input": "null", "reason": ""},
    ]
    assert document["tools"][0]["output"] == "not that"


def test_the_end_of_a_tool_that_is_not_known_is_passed_over() -> None:
    trace = a_step()

    assert not trace.take(ended("t9"))
    assert trace.document(at(9))["tools"] == []
