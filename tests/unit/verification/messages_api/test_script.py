"""Scripts: which one a request takes, how far it is walked, and how it is written as JSON."""

import pytest

from tests.unit.verification.messages_api.client import AGENT, SESSION, request
from verification.messages_api import (
    BadScript,
    Request,
    Script,
    Usage,
    error,
    hang,
    raw,
    read_scripts,
    reset,
    sse_error,
    stall,
    structured,
    text,
    tool_use,
    tool_uses,
    truncate,
)
from verification.messages_api.scenarios import NoScript, Scenario
from verification.messages_api.script import ReadyStep, ScriptSource, as_scripts

A, B, C = text("a"), text("b"), text("c")


def _scenario(scripted: ScriptSource, agents: ScriptSource = ()) -> Scenario:
    return Scenario(as_scripts(scripted, agents=agents))


def _make_request(
    prompt: str = "do it", *, session: str = "s1", agent: str | None = None
) -> Request:
    headers = {SESSION: session} | ({AGENT: agent} if agent else {})
    return request(("user", prompt), headers=headers)


def test_each_request_takes_the_next_step_and_the_last_repeats() -> None:
    scenario = _scenario([A, B])

    assert [scenario.next_step(_make_request()) for _ in range(4)] == [A, B, B, B]


def test_a_word_of_the_first_prompt_picks_the_script() -> None:
    scenario = _scenario([Script.of(A, when="store"), Script.of(B, when="scrape-store")])

    taken = [scenario.next_step(_make_request(prompt)) for prompt in ("scrape-store!", "the store")]

    assert taken == [B, A]


def test_a_word_of_the_last_prompt_picks_among_the_rounds_of_one_conversation() -> None:
    scenario = _scenario([Script.of(B, prompt="feedback"), Script.of(A)])
    revised = request(("user", "do it"), ("assistant", "so"), ("user", "feedback: no"))

    assert [scenario.next_step(_make_request()), scenario.next_step(revised)] == [A, B]


def test_a_session_picks_its_script() -> None:
    scenario = _scenario([Script.of(A, session="s1"), Script.of(B, session="s2")])

    assert scenario.next_step(_make_request(session="s2")) == B


def test_a_function_of_the_request_picks_the_script() -> None:
    scenario = _scenario(
        [Script.of(A, when=lambda request: request.session_id == "s2"), Script.of(B)]
    )

    assert [scenario.next_step(_make_request(session=name)) for name in ("s1", "s2")] == [B, A]


def test_sessions_share_a_script_unless_each_walks_it_by_itself() -> None:
    together, apart = _scenario([A, B]), _scenario([Script.of(A, B, per_session=True)])

    sessions = [_make_request(session="s1"), _make_request(session="s2")]

    assert [together.next_step(request) for request in sessions] == [A, B]
    assert [apart.next_step(request) for request in sessions] == [A, A]


def test_subagents_walk_the_script_of_their_conversation_each_from_its_start() -> None:
    scenario = _scenario([A, B], agents=[C, text("d")])
    scenario.next_step(_make_request())

    first, second = _make_request("sub", agent="a1"), _make_request("sub", agent="a2")

    assert [scenario.next_step(request) for request in (first, second)] == [C, C]
    assert scenario.next_step(_make_request()) == B


def test_subagents_without_a_script_of_their_own_take_any_that_fits() -> None:
    scenario = _scenario([Script.of(A, when="parent"), Script.of(B, when="child")])
    scenario.next_step(_make_request("parent"))

    assert scenario.next_step(_make_request("child", agent="a1")) == B


def test_the_error_for_a_request_without_a_script_names_its_prompt() -> None:
    with pytest.raises(NoScript, match="fits the prompt 'do it'"):
        _scenario([Script.of(A, when="other")]).next_step(_make_request())


def test_a_new_script_begins_at_its_start() -> None:
    scenario = _scenario([A, B])
    scenario.next_step(_make_request())

    scenario.set_scripts(as_scripts([A, B]))

    assert scenario.next_step(_make_request()) == A


def test_steps_and_scripts_do_not_mix() -> None:
    with pytest.raises(ValueError, match="either steps"):
        as_scripts([A, Script.of(B)])


USAGE = Usage(input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4)

STEPS = [
    ({"kind": "text", "text": "hi", "delayS": 0.5, "gate": "g"}, text("hi", delay_s=0.5, gate="g")),
    (
        {
            "kind": "tool_use",
            "name": "Bash",
            "input": {"command": "ls"},
            "preamble": "so",
            "thinking": "hm",
            "usage": {
                "inputTokens": 1,
                "outputTokens": 2,
                "cacheReadTokens": 3,
                "cacheWriteTokens": 4,
            },
        },
        tool_use("Bash", {"command": "ls"}, preamble="so", thinking="hm", usage=USAGE),
    ),
    (
        {"kind": "tool_uses", "calls": [{"name": "Read", "input": {"a": 1}}, {"name": "Bash"}]},
        tool_uses(("Read", {"a": 1}), ("Bash", {})),
    ),
    ({"kind": "structured", "value": {"answer": 1}}, structured({"answer": 1})),
    (
        {"kind": "error", "status": 429, "headers": {"retry-after": "9"}},
        error(429, headers={"retry-after": "9"}),
    ),
    (
        {"kind": "raw", "status": 502, "body": "<html>", "contentType": "text/html"},
        raw(502, "<html>"),
    ),
    ({"kind": "hang"}, hang()),
    ({"kind": "stall", "after": 2, "of": {"kind": "text", "text": "x"}}, stall(2, of=text("x"))),
    ({"kind": "reset", "after": 3}, reset(3)),
    ({"kind": "truncate"}, truncate()),
    ({"kind": "sse_error", "errorType": "api_error"}, sse_error("api_error")),
    ({"kind": "text", "stopReason": "refusal", "eventDelayS": 1},
     text(stop_reason="refusal", event_delay_s=1)),
]  # fmt: skip


@pytest.mark.parametrize(("document", "step"), STEPS, ids=lambda value: str(value)[:30])
def test_a_step_can_be_written_as_json(document: dict[str, object], step: ReadyStep) -> None:
    assert read_scripts([document]) == (Script(steps=(step,)),)


def test_scripts_with_conditions_can_be_written_as_json() -> None:
    step = {"kind": "text", "text": "a"}
    document = {
        "scripts": [
            {"when": "w", "steps": [step], "agents": [step], "perSession": True},
            {"prompt": "x", "session": "s", "steps": [step]},
        ]
    }

    assert read_scripts(document) == (
        Script.of(A, when="w", agents=[A], per_session=True),
        Script.of(A, prompt="x", session="s"),
    )


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (7, "script: a list, and not 7"),
        ({"scripts": 7}, r"script\.scripts: a list"),
        ({"scripts": [], "more": 1}, "does not have more"),
        ({"scripts": [{"steps": [], "whn": "x"}]}, r"scripts\[0\]: does not have whn"),
        ({"scripts": [{"steps": [], "perSession": 1}]}, "perSession: true or false"),
        ([{"kind": "txt"}], r"script\[0\]\.kind: one of error, hang.*not 'txt'"),
        ([{"kind": []}], "kind: one of"),
        ([{"kind": "text", "txt": "x"}], r"script\[0\]: does not have txt; it has delay_s"),
        ([{"kind": "hang", "usage": {}}], "does not have usage"),
        ([{"kind": "error", "status": "429"}], r"script\[0\]\.status: a number, and not '429'"),
        ([{"kind": "error", "status": True}], "status: a number"),
        ([{"kind": "error"}], r"script\[0\]: error\(\) missing"),
        ([{"kind": "text", "usage": {"inputTokens": "x"}}], r"usage\.input_tokens: a number"),
        ([{"kind": "stall", "of": {"kind": "hang"}}], "of: an answer"),
        ([{"kind": "structured", "value": []}], r"value: an object, and not \[\]"),
    ],
    ids=str,
)
def test_a_script_that_cannot_be_read_says_where(document: object, problem: str) -> None:
    with pytest.raises(BadScript, match=problem):
        read_scripts(document)
