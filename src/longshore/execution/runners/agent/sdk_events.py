"""Records the SDK's messages and hooks in the trace of a step.

A tool call is reported up to four times: when the model requests it, when hooks report its start
and end, and when the model receives its result. A tool that does not exist or is denied has no end
in the hooks, and a subagent's messages arrive only in part: so both sources are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    RateLimitEvent,
    ResultMessage,
    SystemMessage,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from claude_agent_sdk.types import HookEvent, ServerToolResultBlock, ServerToolUseBlock

from longshore.core.agents.prices import as_mapping
from longshore.core.agents.trace import StepTrace, TodoState, ToolCall, ToolOutcome
from longshore.core.agents.trace_text import format_elapsed

HOOKS: tuple[HookEvent, ...] = ("PreToolUse", "PostToolUse", "PostToolUseFailure")
"""The hook events that are recorded."""

# The model name of messages that no model wrote, such as API errors.
_SYNTHETIC_MODEL = "<synthetic>"
_ENDED = frozenset({"completed", "failed", "stopped", "killed"})
_STATES = {state.value: state for state in TodoState}
# After this the CLI instructs the model how to handle a denial.
_MODEL_INSTRUCTION = " IMPORTANT:"
_ERROR_OPEN_TAG, _ERROR_CLOSE_TAG = "<tool_use_error>", "</tool_use_error>"

Lines = Iterator[str | None]
"""The log line of each fact as it is recorded; None for a fact without one."""


def record_message(trace: StepTrace, message: object, at: datetime) -> Lines:
    """Record an SDK message; irrelevant messages are ignored."""
    match message:
        case AssistantMessage():
            yield from _record_answer(trace, message, at)
        case UserMessage(content=list(blocks)):
            for block in blocks:
                if isinstance(block, ToolResultBlock):
                    outcome = ToolOutcome.FAILED if block.is_error else ToolOutcome.OK
                    output = _result_text(block.content)
                    yield trace.tool_finished(at, block.tool_use_id, outcome, output)
        case SystemMessage(subtype=subtype, data=data):
            yield from _record_system(trace, subtype, data, at)
        case RateLimitEvent(rate_limit_info=limit) if limit.status != "allowed":
            period = f" {limit.rate_limit_type}" if limit.rate_limit_type else ""
            until = ""
            if limit.resets_at:
                resets_at = datetime.fromtimestamp(limit.resets_at, UTC)
                until = f" until {resets_at:%Y-%m-%d %H:%M} UTC"
            yield trace.noted(at, "rateLimit", f"rate limit{period}: {limit.status}{until}")
        case ResultMessage():
            yield from _record_result(trace, message, at)


def _record_answer(trace: StepTrace, message: AssistantMessage, at: datetime) -> Lines:
    turn_id = message.message_id or message.uuid or ""
    parent = message.parent_tool_use_id
    yield trace.answer_received(
        at,
        turn_id,
        "\n".join(block.text for block in message.content if isinstance(block, TextBlock)),
        model=None if message.model == _SYNTHETIC_MODEL else message.model,
        parent=parent,
        error=message.error,
    )
    for block in message.content:
        match block:
            case ToolUseBlock() | ServerToolUseBlock():
                call = ToolCall(block.id, block.name, block.input)
                yield trace.tool_requested(at, call, turn_id=turn_id, parent=parent)
            case ServerToolResultBlock():
                yield trace.tool_finished(at, block.tool_use_id, ToolOutcome.OK)


def _record_system(trace: StepTrace, subtype: str, data: Mapping[str, Any], at: datetime) -> Lines:
    match subtype:
        case "init":
            yield trace.session_started(data.get("session_id"), data.get("model"))
        case "api_retry":
            facts = [str(data[name]) for name in ("error_status", "error") if data.get(name)]
            why = f" ({', '.join(facts)})" if facts else ""
            delay = format_elapsed(_integer(data.get("retry_delay_ms")) or 0)
            retry = f"retry {data.get('attempt')} of {data.get('max_retries')} in {delay}"
            yield trace.noted(at, "retry", f"the API failed{why}: {retry}")
        case "model_fallback":
            new_model = _text(data.get("fallback_model"))
            why = f": {data['trigger']}" if data.get("trigger") else ""
            switch = f"switched from {data.get('original_model')} to {new_model}{why}"
            yield trace.noted(at, "fallback", switch, new_model=new_model)
        case "permission_denied":
            reason = str(data.get("message") or "").partition(_MODEL_INSTRUCTION)[0]
            yield trace.tool_denied(at, _tool(data), reason)
        case "task_started" if data.get("task_type") == "local_agent":
            yield trace.subagent_started(
                at,
                str(data.get("task_id")),
                str(data.get("subagent_type") or ""),
                _text(data.get("tool_use_id")),
                str(data.get("description") or ""),
            )
        case "task_notification" | "task_updated":
            status = data.get("status") or as_mapping(data.get("patch")).get("status")
            if status in _ENDED:
                yield trace.subagent_finished(at, str(data.get("task_id")))


def _record_result(trace: StepTrace, message: ResultMessage, at: datetime) -> Lines:
    for denial in map(as_mapping, message.permission_denials or ()):
        yield trace.tool_denied(at, _tool(denial))
    reason = message.terminal_reason or message.subtype
    trace.query_finished(
        # A query that a hook stopped, or that deferred a tool, reports success too.
        completed=not message.is_error and reason in ("completed", "success"),
        reason=reason,
        status=message.api_error_status,
        error="; ".join(message.errors or ()) or message.result or "",
    )


def record_hook(trace: StepTrace, payload: Mapping[str, Any], at: datetime) -> Lines:
    """Record a hook's payload."""
    match payload.get("hook_event_name"):
        case "PreToolUse":
            agent_id = _text(payload.get("agent_id"))
            yield trace.tool_started(at, _tool(payload), agent_id=agent_id)
        case "PostToolUse" | "PostToolUseFailure" as event:
            call, response = _tool(payload), payload.get("tool_response")
            succeeded, answer = event == "PostToolUse", as_mapping(response)
            outcome, output = ToolOutcome.FAILED, payload.get("error")
            if succeeded:
                outcome, output = ToolOutcome.OK, response
            if payload.get("is_interrupt") is True or answer.get("interrupted") is True:
                outcome = ToolOutcome.INTERRUPTED
            text = output if isinstance(output, str) else ""
            duration_ms = _integer(payload.get("duration_ms"))
            yield trace.tool_finished(at, call.id, outcome, text, duration_ms=duration_ms)
            if succeeded:
                yield from _record_todo_tool(trace, call, answer, at)


def _tool(document: Mapping[str, Any]) -> ToolCall:
    id_, name = str(document.get("tool_use_id")), str(document.get("tool_name"))
    return ToolCall(id_, name, document.get("tool_input"))


def _record_todo_tool(
    trace: StepTrace, call: ToolCall, response: Mapping[str, Any], at: datetime
) -> Lines:
    """Record the use of a todo tool."""
    match call.name:
        case "TaskCreate" | "TaskList":
            for task in map(as_mapping, (response.get("task"), *_items(response.get("tasks")))):
                if task:
                    state = _todo_state(task, TodoState.PENDING)
                    yield trace.todo_seen(at, str(task.get("id")), _subject(task), state)
        case "TaskUpdate" if response.get("success") is not False:
            todo = as_mapping(call.input)
            state = _todo_state(todo, None)
            yield trace.todo_updated(at, str(todo.get("taskId")), _subject(todo), state)


def _subject(todo: Mapping[str, Any]) -> str:
    return str(todo.get("subject") or "")


def _result_text(content: Any) -> str:
    """Returns the text of a tool's result, without its images."""
    if isinstance(content, str):
        return content.removeprefix(_ERROR_OPEN_TAG).removesuffix(_ERROR_CLOSE_TAG)
    texts = [as_mapping(part).get("text") for part in _items(content)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _todo_state(todo: Mapping[str, Any], default: Any) -> Any:
    """Returns the state of a todo; the default if it has none or an unknown one."""
    status = todo.get("status")
    return _STATES.get(status, default) if isinstance(status, str) else default


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None
