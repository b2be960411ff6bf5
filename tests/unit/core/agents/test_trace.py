"""The trace of a step: events folded into the stored document."""

import json
from typing import Any

import pytest

from longshore.core.agents.prices import TokenCounts, parse_tokens
from longshore.core.agents.trace import (
    MAX_NOTES,
    MAX_TODOS,
    MAX_TOOLS,
    MAX_TURNS,
    StepTrace,
)
from tests.unit.core.agents.trace_samples import (
    NOON,
    Report,
    a_step,
    at,
    report,
    subagent_started,
    text_event,
    tool_called,
    tool_ended,
    usage_event,
)
from tests.unit.core.secret_samples import ANTHROPIC


def test_a_started_step_has_a_complete_document() -> None:
    trace = a_step(report("session_started", session_id="s1", model="opus"))

    document = trace.document(at(4))

    assert document == {
        "step": "review",
        "sessionId": "s1",
        "resumed": False,
        "model": "opus",
        "startedAt": "2030-01-31T12:00:00.000Z",
        "endedAt": None,
        "durationMs": 4000,
        "end": None,
        "counts": {
            "turns": 0,
            "tools": 0,
            "ok": 0,
            "failed": 0,
            "denied": 0,
            "interrupted": 0,
            "subagents": 0,
            "retries": 0,
        },
        "tokens": {
            "input": 0,
            "output": 0,
            "cacheRead": 0,
            "cacheCreation": 0,
            "cacheEfficiency": None,
        },
        "costUsd": None,
        "turns": [],
        "tools": [],
        "todos": [],
        "subagents": [],
        "notes": [],
        "leftOut": {},
    }


def test_only_the_first_beginning_is_news_and_its_session_stays() -> None:
    trace = StepTrace("review", started_at=NOON, session_id="mine", resumed=True)

    lines = [report("session_started", session_id=f"s{n}", model=f"m{n}")(trace) for n in (1, 2)]

    assert lines == ["review: resumed with m1, session mine", None]
    assert (trace.session_id, trace.model, trace.resumed) == ("mine", "m1", True)


def test_pieces_of_one_answer_are_one_turn() -> None:
    trace = a_step(
        text_event("first"),
        text_event(),
        text_event("second"),
        text_event("other", turn="msg-2", at=at(7)),
    )

    turns = trace.document(at(9))["turns"]

    assert [(turn["number"], turn["text"]) for turn in turns] == [
        (1, "first\nsecond"),
        (2, "other"),
    ]
    assert turns[1]["at"] == "2030-01-31T12:00:07.000Z"
    assert trace.document(at(9))["counts"]["turns"] == 2


def test_an_answer_is_stored_as_a_masked_excerpt() -> None:
    trace = a_step(text_event(f"the key is {ANTHROPIC} " + "word " * 200))

    (turn,) = trace.document(at(9))["turns"]

    assert len(turn["text"]) == 500
    assert ANTHROPIC not in turn["text"]
    assert turn["text"].startswith("the key is [masked]")


def test_an_error_of_the_api_is_no_answer() -> None:
    trace = a_step(
        text_event("API Error: 500", error="server_error", model=None),
        usage_event(turn=None, input=0, output=0),
    )

    document = trace.document(at(9))

    assert document["counts"]["turns"] == 0
    assert document["turns"][0]["error"] == "server_error"
    assert document["turns"][0]["costUsd"] is None


@pytest.mark.parametrize("late", [True, False], ids=["after the answer", "before the answer"])
def test_measured_usage_belongs_to_its_turn(late: bool) -> None:
    first = text_event("hi")
    figures = usage_event(0.25, input=10, output=40, cache_read=90)
    reported = (first, figures) if late else (figures, first)

    document = a_step(*reported).document(at(9))

    assert document["turns"][0]["tokens"]["output"] == 40
    assert document["turns"][0]["costUsd"] == 0.25
    assert document["tokens"] == {
        "input": 10,
        "output": 40,
        "cacheRead": 90,
        "cacheCreation": 0,
        "cacheEfficiency": 90.0,
    }


def test_usage_of_equal_turns_is_matched_by_their_ids() -> None:
    trace = a_step(
        text_event("a", turn="m1"),
        text_event("b", turn="m2"),
        usage_event(0.2, "m2", input=5, output=8),
        usage_event(0.1, "m1", input=5, output=7),
        text_event("more of a", turn="m1"),
    )

    turns = trace.document(at(9))["turns"]

    assert [turn["tokens"]["output"] for turn in turns] == [7, 8]
    assert [turn["costUsd"] for turn in turns] == [0.1, 0.2]


def test_usage_without_a_matching_turn_counts_for_the_step() -> None:
    trace = a_step(
        text_event("a", turn="m1"),
        text_event("nothing is known of what this took", turn="m2"),
        usage_event(0.1, "m7", input=7, output=7),
        usage_event(0.2, None, input=6, output=1),
    )

    document = trace.document(at(9))

    assert [turn["costUsd"] for turn in document["turns"]] == [None, None]
    assert (document["tokens"]["input"], document["costUsd"]) == (13, 0.3)


def test_usage_that_was_not_measured_is_unknown() -> None:
    trace = a_step(text_event("a"), text_event("b", turn="m2"))

    document = trace.document(at(9))

    assert (document["tokens"]["input"], document["costUsd"]) == (0, None)


def test_the_cache_efficiency_of_a_step_is_that_of_all_its_turns() -> None:
    trace = a_step(usage_event(input=5, cache_write=5), usage_event(turn="m2", cache_read=30))

    assert trace.tokens == TokenCounts(input=5, cache_write=5, cache_read=30)
    assert trace.tokens.cache_efficiency == 75.0


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({}, TokenCounts()),
        (
            {
                "input_tokens": 1,
                "output_tokens": 2,
                "cache_read_input_tokens": 3,
                "cache_creation_input_tokens": 4,
            },
            TokenCounts(input=1, output=2, cache_read=3, cache_write=4),
        ),
        ({"input_tokens": "many", "output_tokens": -1, "x": 1}, TokenCounts()),
    ],
)
def test_usage_of_wrong_types_is_ignored(usage: Any, tokens: TokenCounts) -> None:
    assert parse_tokens(usage) == tokens


def test_api_events_are_stored_with_their_times() -> None:
    trace = a_step(
        report("noted", at=at(1), kind="retry", text="the API failed:\nagain"),
        report("noted", at=at(2), kind="fallback", text="switched", new_model="sonnet"),
        report("noted", at=at(3), kind="fallback", text="switched to None", new_model=None),
        report("noted", at=at(4), kind="rateLimit", text=f"rate limit of {ANTHROPIC}"),
    )

    document = trace.document(at(9))

    assert document["model"] == "sonnet"
    assert document["counts"]["retries"] == 1
    assert [(note["at"][17:19], note["kind"], note["text"]) for note in document["notes"]] == [
        ("01", "retry", "the API failed: again"),
        ("02", "fallback", "switched"),
        ("03", "fallback", "switched to None"),
        ("04", "rateLimit", "rate limit of [masked]"),
    ]


def test_all_events_of_a_subagent_make_one_entry() -> None:
    trace = a_step(
        subagent_started("a1", "Explore", "t1", "count"),
        subagent_started("a1", "Plan", "t2", "again"),
        report("subagent_finished", at=at(3), agent_id="a1"),
        report("subagent_finished", at=at(4), agent_id="a1"),
        report("subagent_finished", at=at(4), agent_id="a9"),
        subagent_started("a2"),
    )

    first, second = trace.document(at(9))["subagents"]

    assert first == {
        "id": "a1",
        "kind": "Explore",
        "tool": "t1",
        "description": "count",
        "startedAt": "2030-01-31T12:00:01.000Z",
        "endedAt": "2030-01-31T12:00:03.000Z",
        "durationMs": 2000,
    }
    assert (second["kind"], second["endedAt"], second["durationMs"]) == ("", None, None)


LISTS = ("turns", "tools", "todos", "subagents", "notes")
DONE = report("query_finished", completed=True, reason="completed", error="the answer itself")
BROKEN = report(
    "query_finished", completed=False, reason="api_error", status=500, error="API Error: 500"
)


@pytest.mark.parametrize(
    ("reported", "end"),
    [
        ((DONE, report("finish", at=at(8))), ("completed", "completed", None, None)),
        ((BROKEN, report("finish", at=at(8))), ("failed", "api_error", "API Error: 500", 500)),
        ((BROKEN, DONE, report("finish", at=at(8))), ("completed", "completed", None, None)),
        (
            (BROKEN, report("finish", at=at(8), outcome="parked", error="no money")),
            ("parked", "api_error", "no money", 500),
        ),
        ((report("finish", at=at(8)),), ("interrupted", None, None, None)),
        (
            (report("finish", at=at(8), outcome="timeout", error="late"),),
            ("timeout", None, "late", None),
        ),
        (
            (
                report("finish", at=at(8), outcome="timeout"),
                report("finish", at=at(9), outcome="completed"),
            ),
            ("timeout", None, None, None),
        ),
    ],
)
def test_the_end_of_a_step_is_traced(reported: tuple[Report, ...], end: tuple[Any, ...]) -> None:
    document = a_step(*reported).document(at(99))

    assert tuple(document["end"].values()) == end
    assert list(document["end"]) == ["how", "reason", "error", "apiStatus"]
    assert (document["endedAt"], document["durationMs"]) == ("2030-01-31T12:00:08.000Z", 8000)


def test_a_query_that_is_over_does_not_end_the_step() -> None:
    trace = a_step(DONE)

    assert trace.end is None
    assert trace.document(at(9))["end"] is None


def test_a_bounded_list_keeps_both_ends_and_counts_the_rest() -> None:
    trace = a_step()
    for number in range(1, 501):
        text_event(f"turn {number}", turn=f"m{number}")(trace)
        tool_called(f"t{number}", turn_id=f"m{number}")(trace)
        tool_ended(f"t{number}")(trace)
        report("noted", at=at(1), kind="retry", text=f"retry {number}")(trace)
        report("todo_seen", at=at(1), todo_id=f"{number}", subject=f"todo {number}")(trace)
        subagent_started(f"a{number}")(trace)

    document = trace.document(at(9))

    assert [len(document[name]) for name in LISTS] == [
        MAX_TURNS,
        MAX_TOOLS,
        MAX_TODOS,
        MAX_NOTES,
        MAX_NOTES,
    ]
    assert document["leftOut"] == {
        "turns": 500 - MAX_TURNS,
        "tools": 500 - MAX_TOOLS,
        "todos": 500 - MAX_TODOS,
        "subagents": 500 - MAX_NOTES,
        "notes": 500 - MAX_NOTES,
    }
    for name, half in (("turns", MAX_TURNS // 2), ("todos", MAX_TODOS // 2)):
        numbers = [entry["number"] for entry in document[name]]
        assert numbers == [*range(1, half + 1), *range(501 - half, 501)]
    assert (document["counts"]["turns"], document["counts"]["ok"]) == (500, 500)


def test_a_trace_of_endless_texts_stays_small() -> None:
    trace = a_step()
    for number in range(MAX_TURNS + 1):
        text_event("word " * 110, turn=f"m{number}")(trace)
    for number in range(MAX_TOOLS + 1):
        tool_called(f"t{number}", tool_input={"command": "word " * 50})(trace)
        tool_ended(f"t{number}", output="word " * 50)(trace)

    assert len(json.dumps(trace.document(at(9)))) < 512 * 1024
