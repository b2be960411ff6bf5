"""What is said of an agent while it works: who, what, how long."""

from typing import Any

import pytest

from longshore.core.agents.happenings import (
    Began,
    Denied,
    FellBack,
    Finished,
    Happening,
    RateLimited,
    Resulted,
    Retried,
    SubagentBegan,
    SubagentEnded,
    TodoKnown,
    TodoMoved,
    TodosListed,
    TodoState,
    Tokens,
    ToolOutcome,
)
from longshore.core.agents.trace import StepTrace
from longshore.core.agents.trace_words import dollars, line_of, summary_of, took
from tests.unit.core.agents.trace_play import (
    NOON,
    a_step,
    at,
    began,
    called,
    counted,
    ended,
    lines,
    said,
)

FAILED, INTERRUPTED = ToolOutcome.FAILED, ToolOutcome.INTERRUPTED
AGENT = SubagentBegan(at=at(1), agent_id="a1", kind="Explore", tool_id="t0", description="count")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([Began(at=at(0))], ["begins"]),
        (
            [Began(at=at(0), session_id="49412a8d-274b-4d0b", model="opus")],
            ["begins with opus, session 49412a8d"],
        ),
        ([said("one\n\x1b[31mtwo\n")], ["one\n  [31mtwo"]),
        ([said("")], []),
        (
            [said("API Error: 500", error="server_error")],
            ["the API failed (server_error): API Error: 500"],
        ),
        ([called(), began(), ended(duration_ms=1300)], ["Bash: ls", "Bash took 1.3 s"]),
        ([called(given={}), ended()], ["Bash", "Bash is done"]),
        (
            [called(), ended(outcome=FAILED, output="Exit code 3\n", duration_ms=13)],
            ["Bash: ls", "Bash failed after 13 ms: Exit code 3"],
        ),
        ([called(), ended(outcome=FAILED)], ["Bash: ls", "Bash failed"]),
        (
            [began(), ended(outcome=INTERRUPTED, output="cut")],
            ["Bash: ls", "Bash was interrupted after 2.0 s: cut"],
        ),
        ([called(), ended(outcome=INTERRUPTED)], ["Bash: ls", "Bash was interrupted"]),
        (
            [called(), Denied(at=at(4), tool_id="t1", name="Bash", reason="not that")],
            ["Bash: ls", "Bash was denied: not that"],
        ),
        ([Denied(at=at(4), tool_id="t9", name="Write")], ["Write was denied"]),
        (
            [called("t1"), called("t2", given={"command": "pwd"}), ended("t2"), ended("t1")],
            ["Bash: ls", "Bash: pwd", "Bash (pwd) is done", "Bash (ls) is done"],
        ),
        (
            [called("t1", given={}), called("t2", given={}), ended("t1")],
            ["Bash", "Bash", "Bash is done"],
        ),
        ([called(name="TaskCreate"), ended()], []),
        (
            [called(name="TaskUpdate"), ended(outcome=FAILED, output="no such task")],
            ["TaskUpdate failed: no such task"],
        ),
        (
            [called(name="StructuredOutput", given={"tides": [1, 2]}), ended()],
            ['hands in its result: {"tides": [1, 2]}'],
        ),
        (
            [
                called("t0", name="Agent"),
                AGENT,
                SubagentEnded(at=at(3), agent_id="a1"),
                ended("t0"),
            ],
            ["subagent Explore begins: count", "subagent Explore took 2.0 s"],
        ),
        ([SubagentBegan(at=at(1), agent_id="a1")], ["subagent begins"]),
        (
            [
                Retried(at=at(1), attempt=1, limit=2, delay_ms=581, status=529, error="overloaded"),
                Retried(at=at(1), attempt=2, limit=2, delay_ms=1231),
            ],
            [
                "the API failed (529, overloaded): retry 1 of 2 in 581 ms",
                "the API failed: retry 2 of 2 in 1.2 s",
            ],
        ),
        (
            [
                FellBack(at=at(1), model="opus", to_model="sonnet", why="overloaded"),
                FellBack(at=at(1), model="opus", to_model="sonnet"),
            ],
            [
                "goes on with sonnet instead of opus: overloaded",
                "goes on with sonnet instead of opus",
            ],
        ),
        (
            [
                RateLimited(at=at(1), status="allowed"),
                RateLimited(at=at(1), status="rejected", window="five_hour", resets_at=at(60)),
                RateLimited(at=at(1), status="allowed_warning"),
            ],
            [
                "rate limit five_hour: rejected until 2030-01-31 12:01 UTC",
                "rate limit: allowed_warning",
            ],
        ),
        ([Resulted(at=at(1), completed=True), counted()], []),
    ],
)
def test_each_happening_is_a_line_that_begins_with_the_step(
    told: list[Happening], expected: list[str]
) -> None:
    assert lines(a_step(), *told) == [f"review: {line}" for line in expected]


def test_a_session_that_is_gone_on_with_says_so() -> None:
    trace = StepTrace("review", at=NOON, session_id="49412a8d-274b", resumed=True)

    assert lines(trace, Began(at=at(0), model="opus")) == [
        "review: goes on with opus, session 49412a8d"
    ]


def test_what_a_subagent_does_begins_with_its_kind() -> None:
    trace = a_step(called("t0", name="Agent"), AGENT)
    nameless = SubagentBegan(at=at(1), agent_id="a2", tool_id="t8")

    told = lines(
        trace,
        began("t1", agent_id="a1"),
        ended("t1"),
        said("found it", parent="t0"),
        nameless,
        called("t3", parent="t8"),
        called("t4", parent="gone"),
    )

    assert told == [
        "review/Explore: Bash: ls",
        "review/Explore: Bash took 2.0 s",
        "review/Explore: found it",
        "review: subagent begins",
        "review/subagent: Bash: ls",
        "review: Bash: ls",
    ]


def test_the_list_of_the_agent_is_told_as_it_moves() -> None:
    def moved(id_: str, state: TodoState, seconds: float) -> TodoMoved:
        return TodoMoved(at=at(seconds), todo_id=id_, state=state)

    told = lines(
        a_step(),
        TodoKnown(at=at(1), todo_id="1", subject="Look"),
        TodoKnown(at=at(1), todo_id="2", subject="Write"),
        TodoKnown(at=at(1), todo_id="3", subject="Send"),
        moved("1", TodoState.IN_PROGRESS, 2),
        moved("3", TodoState.DELETED, 3),
        moved("1", TodoState.COMPLETED, 5.5),
    )

    assert told == [
        "review: todo: Look",
        "review: todo: Write",
        "review: todo: Send",
        "review: todo begun: Look",
        "review: todo dropped: Send",
        "review: todo 1/2 done after 3.5 s: Look",
    ]


def test_a_list_that_is_written_anew_is_one_line() -> None:
    pending, begun, done = TodoState.PENDING, TodoState.IN_PROGRESS, TodoState.COMPLETED

    told = lines(
        a_step(),
        TodosListed(at=at(1), items=(("a", begun), ("b", pending))),
        TodosListed(at=at(2), items=(("a", done), ("b", done))),
    )

    assert told == ["review: todo 0/2 done, now: a", "review: todo 2/2 done"]


@pytest.mark.parametrize(
    "forgotten",
    [
        ended("t9"),
        SubagentEnded(at=at(1), agent_id="a9"),
        TodoMoved(at=at(1), todo_id="9", state=TodoState.COMPLETED),
    ],
    ids=lambda one: type(one).__name__,
)
def test_nothing_is_said_of_what_is_not_kept(forgotten: Happening) -> None:
    assert line_of(forgotten, a_step()) is None


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
def test_durations_are_told_as_people_say_them(duration_ms: int, text: str) -> None:
    assert took(duration_ms) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "$0.00"), (0.00406, "$0.0041"), (0.5, "$0.5000"), (12.345, "$12.35")]
)
def test_little_money_has_more_digits(amount: float, text: str) -> None:
    assert dollars(amount) == text


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([], "running after 0 ms: 0 turns, 0 tools, 0 tokens in, 0 out"),
        (
            [
                said("a", tokens=Tokens(input=100, cache_read=900)),
                counted(cost=0.0586, input=100, cache_read=900, output=70),
                began("t1"),
                ended("t1"),
                Resulted(at=at(2), completed=True),
                Finished(at=at(2.2)),
            ],
            "completed after 2.2 s: 1 turn, 1 tool, 1,000 tokens in (90% from the cache),"
            " 70 out, $0.0586",
        ),
        (
            [
                began("t1"),
                ended("t1", FAILED),
                began("t2"),
                Denied(at=at(1), tool_id="t2", name="Bash"),
                began("t3"),
                Finished(at=at(61), how="timeout", error="no result within 60 s"),
            ],
            "timeout after 1 min 1 s: 0 turns, 3 tools (1 failed, 1 denied, 1 interrupted),"
            " 0 tokens in, 0 out; no result within 60 s",
        ),
    ],
)
def test_a_step_is_summed_up_in_a_line(told: list[Any], expected: str) -> None:
    assert summary_of(a_step(*told)) == f"review: {expected}"


def test_a_summary_is_one_line_of_500_characters_at_most() -> None:
    summary = summary_of(a_step(Finished(at=at(1), error="one\ntwo " * 200)))

    assert len(summary) <= 500
    assert "\n" not in summary
