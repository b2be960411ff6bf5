"""The log lines of a running agent."""

import pytest

from longshore.core.agents.trace import StepTrace, TodoState, ToolOutcome
from longshore.core.agents.trace_text import format_elapsed, format_usd
from tests.unit.core.agents.trace_samples import (
    NOON,
    Report,
    a_step,
    at,
    format_lines,
    report,
    subagent_started,
    text_event,
    tool_called,
    tool_denied,
    tool_ended,
    tool_started,
    usage_event,
)

FAILED, INTERRUPTED = ToolOutcome.FAILED, ToolOutcome.INTERRUPTED
AGENT = subagent_started("a1", "Explore", "t0", "count")


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ([report("session_started")], ["started"]),
        (
            [report("session_started", session_id="49412a8d-274b-4d0b", model="opus")],
            ["started with opus, session 49412a8d"],
        ),
        ([text_event("one\n\x1b[31mtwo\n")], ["one\n  [31mtwo"]),
        ([text_event("")], []),
        (
            [text_event("API Error: 500", error="server_error")],
            ["the API failed (server_error): API Error: 500"],
        ),
        (
            [tool_called(), tool_started(), tool_ended(duration_ms=1300)],
            ["Bash: ls", "Bash took 1.3 s"],
        ),
        ([tool_called(tool_input={}), tool_ended()], ["Bash", "Bash finished"]),
        (
            [tool_called(), tool_ended(outcome=FAILED, output="Exit code 3\n", duration_ms=13)],
            ["Bash: ls", "Bash failed after 13 ms: Exit code 3"],
        ),
        ([tool_called(), tool_ended(outcome=FAILED)], ["Bash: ls", "Bash failed"]),
        (
            [tool_started(), tool_ended(outcome=INTERRUPTED, output="cut")],
            ["Bash: ls", "Bash was interrupted after 2.0 s: cut"],
        ),
        ([tool_called(), tool_ended(outcome=INTERRUPTED)], ["Bash: ls", "Bash was interrupted"]),
        (
            [
                tool_called(),
                tool_denied(4, reason="not that"),
            ],
            ["Bash: ls", "Bash was denied: not that"],
        ),
        ([tool_denied(4, "t9", "Write")], ["Write was denied"]),
        (
            [
                tool_called("t1"),
                tool_called("t2", tool_input={"command": "pwd"}),
                tool_ended("t2"),
                tool_ended("t1"),
            ],
            ["Bash: ls", "Bash: pwd", "Bash (pwd) finished", "Bash (ls) finished"],
        ),
        (
            [tool_called("t1", tool_input={}), tool_called("t2", tool_input={}), tool_ended("t1")],
            ["Bash", "Bash", "Bash finished"],
        ),
        ([tool_called(name="TaskCreate"), tool_ended()], []),
        (
            [tool_called(name="TaskUpdate"), tool_ended(outcome=FAILED, output="no such task")],
            ["TaskUpdate failed: no such task"],
        ),
        (
            [tool_called(name="StructuredOutput", tool_input={"tides": [1, 2]}), tool_ended()],
            ['returned its result: {"tides": [1, 2]}'],
        ),
        (
            [
                tool_called("t0", name="Agent"),
                AGENT,
                report("subagent_finished", at=at(3), agent_id="a1"),
                tool_ended("t0"),
            ],
            ["subagent Explore started: count", "subagent Explore took 2.0 s"],
        ),
        ([subagent_started("a1")], ["subagent started"]),
        (
            [report("noted", at=at(1), kind="retry", text="the API failed:\n\x1b[31mretry")],
            ["the API failed: [31mretry"],
        ),
        ([report("query_finished", completed=True), usage_event()], []),
    ],
)
def test_each_event_is_a_line_that_starts_with_the_step(
    reported: list[Report], expected: list[str]
) -> None:
    assert format_lines(a_step(), *reported) == [f"review: {line}" for line in expected]


def test_a_session_that_is_gone_on_with_says_so() -> None:
    trace = StepTrace("review", started_at=NOON, session_id="49412a8d-274b", resumed=True)

    assert format_lines(trace, report("session_started", model="opus")) == [
        "review: resumed with opus, session 49412a8d"
    ]


def test_the_lines_of_a_subagent_start_with_its_kind() -> None:
    trace = a_step(tool_called("t0", name="Agent"), AGENT)
    nameless = subagent_started("a2", tool="t8")

    reported = format_lines(
        trace,
        tool_started("t1", agent_id="a1"),
        tool_ended("t1"),
        text_event("found it", parent="t0"),
        nameless,
        tool_called("t3", parent="t8"),
        tool_called("t4", parent="gone"),
    )

    assert reported == [
        "review/Explore: Bash: ls",
        "review/Explore: Bash took 2.0 s",
        "review/Explore: found it",
        "review: subagent started",
        "review/subagent: Bash: ls",
        "review: Bash: ls",
    ]


def test_changes_of_the_todo_list_are_logged() -> None:
    def moved(id_: str, state: TodoState, seconds: float) -> Report:
        return report("todo_updated", at=at(seconds), todo_id=id_, state=state)

    reported = format_lines(
        a_step(),
        report("todo_seen", at=at(1), todo_id="1", subject="Look"),
        report("todo_seen", at=at(1), todo_id="2", subject="Write"),
        report("todo_seen", at=at(1), todo_id="3", subject="Send"),
        moved("1", TodoState.IN_PROGRESS, 2),
        moved("3", TodoState.DELETED, 3),
        moved("1", TodoState.COMPLETED, 5.5),
    )

    assert reported == [
        "review: todo: Look",
        "review: todo: Write",
        "review: todo: Send",
        "review: todo started: Look",
        "review: todo deleted: Send",
        "review: todo 1/2 done after 3.5 s: Look",
    ]


@pytest.mark.parametrize(
    "forgotten",
    [
        tool_ended("t9"),
        report("subagent_finished", at=at(1), agent_id="a9"),
    ],
    ids=["a tool", "a subagent"],
)
def test_events_of_omitted_entries_are_not_logged(forgotten: Report) -> None:
    assert forgotten(a_step()) is None


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (9949, "9.9 s"),
        (12_300, "12 s"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
    ],
)
def test_durations_are_formatted_with_fitting_units(duration_ms: int, text: str) -> None:
    assert format_elapsed(duration_ms) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "$0.00"), (0.00406, "$0.0041"), (0.5, "$0.5000"), (12.345, "$12.35")]
)
def test_little_money_has_more_digits(amount: float, text: str) -> None:
    assert format_usd(amount) == text


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (
            [report("finish", at=at(0))],
            "interrupted after 0 ms: 0 turns, 0 tools, 0 tokens in, 0 out",
        ),
        (
            [
                text_event("a"),
                usage_event(cost=0.0586, input=100, cache_read=900, output=70),
                tool_started("t1"),
                tool_ended("t1"),
                report("query_finished", completed=True),
                report("finish", at=at(2.2)),
            ],
            "completed after 2.2 s: 1 turn, 1 tool, 1,000 tokens in (90% from the cache),"
            " 70 out, $0.0586",
        ),
        (
            [
                tool_started("t1"),
                tool_ended("t1", FAILED),
                tool_started("t2"),
                tool_denied(1, "t2"),
                tool_started("t3"),
                report("finish", at=at(61), outcome="timeout", error="timed out after 60 s"),
            ],
            "timeout after 1 min 1 s: 0 turns, 3 tools (1 failed, 1 denied, 1 interrupted),"
            " 0 tokens in, 0 out; timed out after 60 s",
        ),
    ],
)
def test_a_step_is_summed_up_in_a_line(reported: list[Report], expected: str) -> None:
    *before, last = reported

    assert last(a_step(*before)) == f"review: {expected}"


def test_a_summary_is_one_line_of_500_characters_at_most() -> None:
    summary = report("finish", at=at(1), error="one\ntwo " * 200)(a_step()) or ""

    assert 0 < len(summary) <= 500
    assert "\n" not in summary
