"""An observer watches an agent: it hears everything, says what matters, and is never in the way."""

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast

import pytest
from claude_agent_sdk import (
    HookInput,
    RateLimitEvent,
    RateLimitInfo,
    ResultMessage,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from claude_agent_sdk.types import ServerToolResultBlock, ServerToolUseBlock

from longshore.core.agents.prices import TokenCounts
from longshore.execution.runners.agent.tracing import StepTracer
from longshore.execution.runners.channel import BURST, Send
from tests.agents.tracing_samples import (
    USAGE,
    RecordingReports,
    assistant_message,
    result_message,
    system_message,
)


def _step_tracer(step: str, send: Send, now: Callable[[], datetime]) -> StepTracer:
    return StepTracer(
        step, send, now, on_change=lambda: None, on_summary=lambda line: send("log", text=line)
    )


@pytest.fixture
def reports() -> RecordingReports:
    return RecordingReports()


@pytest.fixture
def tracer(reports: RecordingReports) -> StepTracer:
    return _step_tracer("review", reports.send, reports.now)


def hook(observer: StepTracer, event: str, **payload: Any) -> dict[str, Any]:
    """What the hook of an event answers."""
    (matcher,) = observer.hooks()[cast("Any", event)]
    given = cast("HookInput", {"hook_event_name": event, **payload})
    answered = asyncio.run(cast("Any", matcher.hooks[0](given, None, {"signal": None})))
    return cast("dict[str, Any]", answered)


def tool(observer: StepTracer, name: str, tool_input: Any, response: Any) -> None:
    """A call of a tool, as hooks see it."""
    told = {"tool_name": name, "tool_input": tool_input, "tool_use_id": f"id of {name}"}
    hook(observer, "PreToolUse", **told)
    hook(observer, "PostToolUse", **told, tool_response=response, duration_ms=5)


# Never in the way -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event", _step_tracer("s", RecordingReports().send, RecordingReports().now).hooks()
)
@pytest.mark.parametrize(
    "told",
    [
        {},
        {"tool_name": 5, "tool_input": "text", "tool_use_id": None, "tool_response": 7},
        {"tool_name": "TodoWrite", "tool_input": [], "tool_response": {"newTodos": [1, {}]}},
        {"tool_name": "TaskList", "tool_response": {"tasks": [None, {"status": []}]}},
        {"tool_name": ["unhashable"], "task_id": {}, "agent_id": [], "duration_ms": "long"},
    ],
)
def test_a_hook_decides_nothing_whatever_it_is_told(
    tracer: StepTracer, event: str, told: Mapping[str, Any]
) -> None:
    assert hook(tracer, event, **told) == {}
    assert tracer.document()["leftOut"] == {}


def test_hooks_cannot_fail_or_be_late_although_nobody_listens(reports: RecordingReports) -> None:
    def broken(kind: str, /, **content: Any) -> None:
        raise BrokenPipeError

    observer = _step_tracer("review", broken, reports.now)

    assert hook(observer, "PreToolUse", tool_name="Bash", tool_use_id="t1", tool_input={}) == {}
    observer.on_message(assistant_message(TextBlock("hi")))
    observer.on_response(TokenCounts(input=10), 0.1)
    observer.finish()
    document = observer.document()
    assert document["leftOut"] == {"faults": 4}
    assert document["end"]["how"] == "interrupted"
    timeouts = {matcher.timeout for (matcher,) in observer.hooks().values()}
    assert min(timeout or 0 for timeout in timeouts) >= 3600


def test_what_cannot_be_followed_is_said_once_and_counted(
    reports: RecordingReports, tracer: StepTracer
) -> None:
    class Odd(SystemMessage):
        @property
        def __class__(self) -> type:
            raise ValueError("password=hunter2abc")

    for _ in range(3):
        tracer.on_message(Odd(subtype="init", data={}))
    tracer.on_message(assistant_message(TextBlock("on I go")))

    said, after = reports.lines
    assert said == "review: longshore could not trace everything (ValueError: password=[masked])"
    assert after == "review: on I go"
    assert tracer.document()["leftOut"] == {"faults": 3}


# What is heard ----------------------------------------------------------------------------------


def test_messages_that_tell_nothing_add_nothing(
    reports: RecordingReports, tracer: StepTracer
) -> None:
    empty = tracer.document()
    for message in (
        object(),
        system_message("thinking_tokens", estimated_tokens=1),
        system_message("task_started", task_type="local_bash", task_id="b1"),
        system_message("task_updated", task_id="a1", patch={"status": "running"}),
        UserMessage(content="a prompt"),
        UserMessage(content=[TextBlock("a prompt")]),
    ):
        tracer.on_message(message)

    same = {**tracer.document(), "durationMs": empty["durationMs"]}
    assert (same, reports.sent) == (empty, [])


def test_thinking_is_not_kept(reports: RecordingReports, tracer: StepTracer) -> None:
    tracer.on_message(assistant_message(ThinkingBlock(thinking="between us", signature="x")))
    tracer.on_message(assistant_message(TextBlock("done")))

    assert "between us" not in json.dumps([tracer.document(), reports.sent])
    (turn,) = tracer.document()["turns"]
    assert turn["text"] == "done"


def test_tools_without_hooks_have_their_results(tracer: StepTracer) -> None:
    tracer.on_message(
        assistant_message(
            ToolUseBlock("t1", "NoSuch", {}),
            ServerToolUseBlock("t2", "web_search", {"query": "x"}),
            ServerToolResultBlock("t2", {"type": "x"}),
            ToolUseBlock("t3", "Look", {}),
        )
    )
    tracer.on_message(
        UserMessage(
            content=[
                ToolResultBlock("t1", "<tool_use_error>No such tool</tool_use_error>", True),
                ToolResultBlock("t3", [{"type": "image"}, {"type": "text", "text": "a cat"}]),
            ]
        )
    )

    tools = tracer.document()["tools"]
    assert [(one["outcome"], one["output"]) for one in tools] == [
        ("failed", "No such tool"),
        ("ok", ""),
        ("ok", "a cat"),
    ]


@pytest.mark.parametrize(
    ("event", "told", "outcome"),
    [
        ("PostToolUse", {"tool_response": "ok"}, "ok"),
        ("PostToolUse", {"tool_response": {"interrupted": True}}, "interrupted"),
        ("PostToolUseFailure", {"error": "Exit code 3"}, "failed"),
        ("PostToolUseFailure", {"error": "stopped", "is_interrupt": True}, "interrupted"),
    ],
)
def test_hooks_tell_how_a_tool_ended(
    tracer: StepTracer, event: str, told: dict[str, Any], outcome: str
) -> None:
    call = {"tool_name": "Bash", "tool_input": {"command": "x"}, "tool_use_id": "t1"}
    hook(tracer, "PreToolUse", **call)
    hook(tracer, event, **call, **told, duration_ms=42)

    (found,) = tracer.document()["tools"]
    assert (found["outcome"], found["durationMs"]) == (outcome, 42)


def test_both_kinds_of_lists_are_understood(tracer: StepTracer) -> None:
    tool(tracer, "TaskCreate", {}, {"task": {"id": "1", "subject": "Look"}})
    hook(tracer, "TaskCreated", task_id="1", task_subject="Look")
    tool(tracer, "TaskUpdate", {"taskId": "1", "status": "in_progress"}, {"success": True})
    hook(tracer, "TaskCompleted", task_id="1", task_subject="Look")
    tool(tracer, "TaskUpdate", {"taskId": "1", "status": "deleted"}, {"success": False})
    # Read while the item was being moved.
    listed = [{"id": "1", "status": "in_progress"}, {"id": "2", "subject": "Write"}]
    tool(tracer, "TaskList", {}, {"tasks": listed})

    todos = tracer.document()["todos"]

    assert [(one["subject"], one["state"]) for one in todos] == [
        ("Look", "completed"),
        ("Write", "pending"),
    ]
    assert todos[0]["inProgressMs"] > 0


def test_a_list_that_is_written_anew_is_understood(tracer: StepTracer) -> None:
    first = [{"content": "a", "status": "pending"}, {"content": "b", "status": "odd"}]
    second = [{"content": "a", "status": "completed"}]
    tool(tracer, "TodoWrite", {"todos": first}, {"newTodos": first})
    tool(tracer, "TodoWrite", {"todos": second}, "done")

    todos = tracer.document()["todos"]

    states = [(one["subject"], one["state"]) for one in todos]
    assert states == [("a", "completed"), ("b", "deleted")]


def test_what_the_api_does_is_heard(reports: RecordingReports, tracer: StepTracer) -> None:
    retry = {"attempt": 1, "max_retries": 2, "retry_delay_ms": 581.5, "error_status": None}
    tracer.on_message(system_message("api_retry", **retry, error="unknown"))
    models = {"original_model": "opus", "fallback_model": "sonnet", "trigger": "overloaded"}
    tracer.on_message(system_message("model_fallback", **models))
    limit = RateLimitInfo(status="rejected", resets_at=1893456000, rate_limit_type="five_hour")
    tracer.on_message(RateLimitEvent(rate_limit_info=limit, uuid="u", session_id="s"))
    tracer.on_message(RateLimitEvent(RateLimitInfo(status="allowed"), uuid="u", session_id="s"))

    document = tracer.document()

    assert document["retries"][0]["delayMs"] == 581
    assert document["model"] == "sonnet"
    assert document["rateLimits"][0]["resetsAt"] == "2030-01-01T00:00:00.000Z"
    assert reports.lines == [
        "review: the API failed (unknown): retry 1 of 2 in 581 ms",
        "review: goes on with sonnet instead of opus: overloaded",
        "review: rate limit five_hour: rejected until 2030-01-01 00:00 UTC",
    ]
    assert reports.activities[0] == "waiting"


@pytest.mark.parametrize(
    ("message", "end"),
    [
        (
            result_message(terminal_reason="completed", result="42"),
            ("completed", "completed", None, None),
        ),
        (result_message(result="42"), ("completed", "success", None, None)),
        (result_message(terminal_reason="hook_stopped"), ("failed", "hook_stopped", None, None)),
        (
            result_message(
                is_error=True, terminal_reason="api_error", api_error_status=500, result="API Error"
            ),
            ("failed", "api_error", "API Error", 500),
        ),
        (
            result_message(subtype="error_max_turns", is_error=True, errors=["too", "many"]),
            ("failed", "error_max_turns", "too; many", None),
        ),
    ],
)
def test_how_a_query_ended_is_how_the_step_ended(
    tracer: StepTracer, message: ResultMessage, end: tuple[Any, ...]
) -> None:
    tracer.on_message(message)
    tracer.finish()

    assert tuple(tracer.document()["end"].values()) == end


def test_a_refusal_that_only_the_result_tells_of_is_one(
    reports: RecordingReports, tracer: StepTracer
) -> None:
    tracer.on_message(assistant_message(ToolUseBlock("t1", "Bash", {"command": "rm x"})))
    tracer.on_message(UserMessage(content=[ToolResultBlock("t1", "hook error: not that", True)]))
    denial = {"tool_name": "Bash", "tool_use_id": "t1", "tool_input": {"command": "rm x"}}
    tracer.on_message(result_message(permission_denials=[denial, "odd"]))

    document = tracer.document()
    assert document["tools"][0]["outcome"] == "denied"
    assert document["tools"][0]["output"] == "hook error: not that"
    assert "review: Bash was denied: hook error: not that" in reports.lines


def test_an_error_of_the_api_has_no_model_and_no_tokens(tracer: StepTracer) -> None:
    tracer.on_message(
        assistant_message(
            TextBlock("API Error: 500"), model="<synthetic>", error="server_error", usage=USAGE
        )
    )

    (turn,) = tracer.document()["turns"]
    assert (turn["model"], turn["tokens"], turn["error"]) == (None, None, "server_error")


def test_figures_of_the_gateway_are_those_of_the_step(tracer: StepTracer) -> None:
    tracer.on_message(assistant_message(TextBlock("hi")))
    tracer.on_response(TokenCounts(input=10, output=40, cache_read=90), 0.25)
    tracer.on_message(assistant_message(TextBlock("ho"), message_id="m2"))
    tracer.on_response(TokenCounts(input=10, output=2, cache_read=90), 0.5)
    tracer.on_response(TokenCounts(), 0)
    tracer.on_message(result_message(usage=USAGE, total_cost_usd=99.0))

    document = tracer.document()
    assert document["tokens"]["output"] == 42
    assert document["costUsd"] == 0.75
    assert [turn["costUsd"] for turn in document["turns"]] == [0.25, 0.5]


# Signs of life ----------------------------------------------------------------------------------


def test_heartbeats_learn_what_the_agent_is_doing(
    reports: RecordingReports, tracer: StepTracer
) -> None:
    tracer.on_message(system_message("init", session_id="s1", model="opus"))
    tool(tracer, "Bash", {"command": "ls"}, {"stdout": ""})
    tracer.on_message(system_message("api_retry", attempt=1))

    assert reports.activities == ["sdk_query", "tool", "sdk_query", "waiting"]
    assert {content["step"] for kind, content in reports.sent if kind == "activity"} == {"review"}


def test_an_agent_that_talks_on_and_on_is_not_repeated_without_end(
    reports: RecordingReports, tracer: StepTracer
) -> None:
    for number in range(10 * BURST):
        tracer.on_message(assistant_message(TextBlock("hi"), message_id=f"m{number}"))

    assert len(reports.activities) < 5 * BURST
