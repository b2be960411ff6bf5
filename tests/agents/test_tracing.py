"""A tracer records everything, logs what matters, and never affects the agent."""

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
from longshore.core.agents.trace import StepTrace
from longshore.execution.runners.agent.tracing import AgentTracer
from longshore.execution.runners.channel import BURST, Send
from tests.agents.tracing_samples import (
    USAGE,
    RecordingReports,
    assistant_message,
    result_message,
    system_message,
)


def _step_tracer(step: str, send: Send, now: Callable[[], datetime]) -> AgentTracer:
    # A folder in which nothing can be written.
    tracer = AgentTracer("/dev/null", send, now, lambda line: send("log", text=line))
    tracer.step = StepTrace(step, started_at=now())
    return tracer


@pytest.fixture
def reports() -> RecordingReports:
    return RecordingReports()


@pytest.fixture
def tracer(reports: RecordingReports) -> AgentTracer:
    return _step_tracer("review", reports.send, reports.now)


def hook(step_tracer: AgentTracer, event: str, **payload: Any) -> dict[str, Any]:
    """Returns the output of the hook for an event."""
    (matcher,) = step_tracer.hooks()[cast("Any", event)]
    fields = cast("HookInput", {"hook_event_name": event, **payload})
    model_response = asyncio.run(cast("Any", matcher.hooks[0](fields, None, {"signal": None})))
    return cast("dict[str, Any]", model_response)


def tool(step_tracer: AgentTracer, name: str, tool_input: Any, response: Any) -> None:
    """Report a tool call through the hooks."""
    reported = {"tool_name": name, "tool_input": tool_input, "tool_use_id": f"id of {name}"}
    hook(step_tracer, "PreToolUse", **reported)
    hook(step_tracer, "PostToolUse", **reported, tool_response=response, duration_ms=5)


# The tracer never affects the agent -------------------------------------------------------------


@pytest.mark.parametrize(
    "event", _step_tracer("s", RecordingReports().send, RecordingReports().now).hooks()
)
@pytest.mark.parametrize(
    "reported",
    [
        {},
        {"tool_name": 5, "tool_input": "text", "tool_use_id": None, "tool_response": 7},
        {"tool_name": "TodoWrite", "tool_input": [], "tool_response": {"newTodos": [1, {}]}},
        {"tool_name": "TaskList", "tool_response": {"tasks": [None, {"status": []}]}},
        {"tool_name": ["unhashable"], "task_id": {}, "agent_id": [], "duration_ms": "long"},
    ],
)
def test_a_hook_decides_nothing_for_any_payload(
    tracer: AgentTracer, event: str, reported: Mapping[str, Any]
) -> None:
    assert hook(tracer, event, **reported) == {}
    assert tracer.document()["leftOut"] == {}


def test_hooks_neither_fail_nor_time_out_when_the_worker_is_gone(reports: RecordingReports) -> None:
    def broken(kind: str, /, **content: Any) -> None:
        raise BrokenPipeError

    step_tracer = _step_tracer("review", broken, reports.now)

    assert hook(step_tracer, "PreToolUse", tool_name="Bash", tool_use_id="t1", tool_input={}) == {}
    step_tracer.on_message(assistant_message(TextBlock("hi")))
    step_tracer.on_response("m1", TokenCounts(input=10), 0.1)
    step_tracer.finish()
    document = step_tracer.document()
    assert document["leftOut"] == {"faults": 3}
    assert document["end"]["how"] == "interrupted"
    timeouts = {matcher.timeout for (matcher,) in step_tracer.hooks().values()}
    assert min(timeout or 0 for timeout in timeouts) >= 3600


def test_errors_of_the_tracer_are_counted_and_the_first_is_logged(
    reports: RecordingReports, tracer: AgentTracer
) -> None:
    class Odd(SystemMessage):
        @property
        def __class__(self) -> type:
            raise ValueError("password=hunter2abc")

    for _ in range(3):
        tracer.on_message(Odd(subtype="init", data={}))
    tracer.on_message(assistant_message(TextBlock("on I go")))

    shown, after = reports.lines
    assert shown == "review: longshore could not trace everything (ValueError: password=[masked])"
    assert after == "review: on I go"
    assert tracer.document()["leftOut"] == {"faults": 3}


# What is traced ---------------------------------------------------------------------------------


def test_irrelevant_messages_are_ignored(reports: RecordingReports, tracer: AgentTracer) -> None:
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


def test_thinking_is_not_stored(reports: RecordingReports, tracer: AgentTracer) -> None:
    tracer.on_message(assistant_message(ThinkingBlock(thinking="between us", signature="x")))
    tracer.on_message(assistant_message(TextBlock("done")))

    assert "between us" not in json.dumps([tracer.document(), reports.sent])
    (turn,) = tracer.document()["turns"]
    assert turn["text"] == "done"


def test_tools_without_hooks_have_their_results(tracer: AgentTracer) -> None:
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
    assert [(item["outcome"], item["output"]) for item in tools] == [
        ("failed", "No such tool"),
        ("ok", ""),
        ("ok", "a cat"),
    ]


@pytest.mark.parametrize(
    ("event", "reported", "outcome"),
    [
        ("PostToolUse", {"tool_response": "ok"}, "ok"),
        ("PostToolUse", {"tool_response": {"interrupted": True}}, "interrupted"),
        ("PostToolUseFailure", {"error": "Exit code 3"}, "failed"),
        ("PostToolUseFailure", {"error": "stopped", "is_interrupt": True}, "interrupted"),
    ],
)
def test_hooks_report_the_outcome_of_a_tool(
    tracer: AgentTracer, event: str, reported: dict[str, Any], outcome: str
) -> None:
    call = {"tool_name": "Bash", "tool_input": {"command": "x"}, "tool_use_id": "t1"}
    hook(tracer, "PreToolUse", **call)
    hook(tracer, event, **call, **reported, duration_ms=42)

    (match,) = tracer.document()["tools"]
    assert (match["outcome"], match["durationMs"]) == (outcome, 42)


def test_all_reports_of_todos_are_understood(tracer: AgentTracer) -> None:
    tool(tracer, "TaskCreate", {}, {"task": {"id": "1", "subject": "Look"}})
    tool(tracer, "TaskUpdate", {"taskId": "1", "status": "in_progress"}, {"success": True})
    tool(tracer, "TaskUpdate", {"taskId": "1", "status": "completed"}, {"success": True})
    tool(tracer, "TaskUpdate", {"taskId": "1", "status": "deleted"}, {"success": False})
    # Read while the item was being moved.
    listed = [{"id": "1", "status": "in_progress"}, {"id": "2", "subject": "Write"}]
    tool(tracer, "TaskList", {}, {"tasks": listed})

    todos = tracer.document()["todos"]

    assert [(item["subject"], item["state"]) for item in todos] == [
        ("Look", "completed"),
        ("Write", "pending"),
    ]
    assert todos[0]["inProgressMs"] > 0


def test_retries_fallbacks_and_rate_limits_are_traced(
    reports: RecordingReports, tracer: AgentTracer
) -> None:
    retry = {"attempt": 1, "max_retries": 2, "retry_delay_ms": 581.5, "error_status": None}
    tracer.on_message(system_message("api_retry", **retry, error="unknown"))
    models = {"original_model": "opus", "fallback_model": "sonnet", "trigger": "overloaded"}
    tracer.on_message(system_message("model_fallback", **models))
    limit = RateLimitInfo(status="rejected", resets_at=1893456000, rate_limit_type="five_hour")
    tracer.on_message(RateLimitEvent(rate_limit_info=limit, uuid="u", session_id="s"))
    tracer.on_message(RateLimitEvent(RateLimitInfo(status="allowed"), uuid="u", session_id="s"))

    document = tracer.document()

    assert [note["kind"] for note in document["notes"]] == ["retry", "fallback", "rateLimit"]
    assert document["model"] == "sonnet"
    assert reports.lines == [
        "review: the API failed (unknown): retry 1 of 2 in 581 ms",
        "review: switched from opus to sonnet: overloaded",
        "review: rate limit five_hour: rejected until 2030-01-01 00:00 UTC",
    ]
    assert reports.activities[0] == "waiting"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            system_message(
                "api_retry",
                attempt=1,
                max_retries=2,
                retry_delay_ms=581,
                error_status=529,
                error="overloaded",
            ),
            ["the API failed (529, overloaded): retry 1 of 2 in 581 ms"],
        ),
        (
            system_message("api_retry", attempt=2, max_retries=2, retry_delay_ms=1231),
            ["the API failed: retry 2 of 2 in 1.2 s"],
        ),
        (
            system_message("model_fallback", original_model="opus", fallback_model="sonnet"),
            ["switched from opus to sonnet"],
        ),
        (
            system_message("model_fallback", original_model="sonnet", trigger="overloaded"),
            ["switched from sonnet to None: overloaded"],
        ),
        (
            RateLimitEvent(RateLimitInfo(status="allowed_warning"), uuid="u", session_id="s"),
            ["rate limit: allowed_warning"],
        ),
    ],
)
def test_retries_fallbacks_and_rate_limits_are_logged_as_far_as_they_are_known(
    reports: RecordingReports, tracer: AgentTracer, message: object, expected: list[str]
) -> None:
    tracer.on_message(message)

    assert reports.lines == [f"review: {line}" for line in expected]
    assert [note["text"] for note in tracer.document()["notes"]] == expected


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
def test_a_step_ends_as_its_last_query_did(
    tracer: AgentTracer, message: ResultMessage, end: tuple[Any, ...]
) -> None:
    tracer.on_message(message)
    tracer.finish()

    assert tuple(tracer.document()["end"].values()) == end


def test_a_denial_that_only_the_result_reports_is_traced(
    reports: RecordingReports, tracer: AgentTracer
) -> None:
    tracer.on_message(assistant_message(ToolUseBlock("t1", "Bash", {"command": "rm x"})))
    tracer.on_message(UserMessage(content=[ToolResultBlock("t1", "hook error: not that", True)]))
    denial = {"tool_name": "Bash", "tool_use_id": "t1", "tool_input": {"command": "rm x"}}
    tracer.on_message(result_message(permission_denials=[denial, "odd"]))

    document = tracer.document()
    assert document["tools"][0]["outcome"] == "denied"
    assert document["tools"][0]["output"] == "hook error: not that"
    assert "review: Bash was denied: hook error: not that" in reports.lines


def test_an_error_of_the_api_has_no_model_and_no_tokens(tracer: AgentTracer) -> None:
    tracer.on_message(
        assistant_message(
            TextBlock("API Error: 500"), model="<synthetic>", error="server_error", usage=USAGE
        )
    )

    (turn,) = tracer.document()["turns"]
    assert (turn["model"], turn["tokens"], turn["error"]) == (None, None, "server_error")


def test_the_usage_of_a_step_is_what_the_gateway_measured(tracer: AgentTracer) -> None:
    tracer.on_message(assistant_message(TextBlock("hi")))
    tracer.on_response("m1", TokenCounts(input=10, output=40, cache_read=90), 0.25)
    tracer.on_message(assistant_message(TextBlock("ho"), message_id="m2"))
    tracer.on_response("m2", TokenCounts(input=10, output=2, cache_read=90), 0.5)
    tracer.on_response(None, TokenCounts(), 0)
    tracer.on_message(result_message(usage=USAGE, total_cost_usd=99.0))

    document = tracer.document()
    assert document["tokens"]["output"] == 42
    assert document["costUsd"] == 0.75
    assert [turn["costUsd"] for turn in document["turns"]] == [0.25, 0.5]


# Activity reports -------------------------------------------------------------------------------


def test_the_current_activity_is_reported(reports: RecordingReports, tracer: AgentTracer) -> None:
    tracer.on_message(system_message("init", session_id="s1", model="opus"))
    tool(tracer, "Bash", {"command": "ls"}, {"stdout": ""})
    tracer.on_message(system_message("api_retry", attempt=1))

    assert reports.activities == ["sdk_query", "step_running", "sdk_query", "waiting"]
    assert {content["step"] for kind, content in reports.sent if kind == "activity"} == {"review"}


def test_the_activity_of_a_talkative_agent_is_throttled(
    reports: RecordingReports, tracer: AgentTracer
) -> None:
    for number in range(10 * BURST):
        tracer.on_message(assistant_message(TextBlock("hi"), message_id=f"m{number}"))

    assert len(reports.activities) < 5 * BURST
