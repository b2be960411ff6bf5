"""Translates the SDK's messages and hooks into agent events.

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
from claude_agent_sdk.types import ServerToolResultBlock, ServerToolUseBlock

from longshore.core.agents import events
from longshore.core.agents.events import AgentEvent, TodoState, ToolOutcome
from longshore.core.agents.prices import as_mapping, parse_tokens

HOOKS = (
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "TaskCreated",
    "TaskCompleted",
    "SubagentStart",
    "SubagentStop",
    "Stop",
)
"""The hook events that are translated."""

# The model name of messages that no model wrote, such as API errors.
_SYNTHETIC_MODEL = "<synthetic>"
_ENDED = frozenset({"completed", "failed", "stopped", "killed"})
_STATES = {state.value: state for state in TodoState}
# After this the CLI instructs the model how to handle a denial.
_MODEL_INSTRUCTION = " IMPORTANT:"
_ERROR_OPEN_TAG, _ERROR_CLOSE_TAG = "<tool_use_error>", "</tool_use_error>"


def translate_message(message: object, at: datetime) -> Iterator[AgentEvent]:
    """Yields the events of an SDK message; none for irrelevant messages."""
    match message:
        case AssistantMessage():
            yield from _translate_answer(message, at)
        case UserMessage(content=list(blocks)):
            for block in blocks:
                if isinstance(block, ToolResultBlock):
                    outcome = ToolOutcome.FAILED if block.is_error else ToolOutcome.OK
                    output = _result_text(block.content)
                    yield events.ToolFinished(
                        at=at, tool_id=block.tool_use_id, outcome=outcome, output=output
                    )
        case SystemMessage(subtype=subtype, data=data):
            yield from _translate_system(subtype, data, at)
        case RateLimitEvent(rate_limit_info=limit):
            yield events.RateLimited(
                at=at,
                status=str(limit.status),
                window=limit.rate_limit_type,
                resets_at=datetime.fromtimestamp(limit.resets_at, UTC) if limit.resets_at else None,
            )
        case ResultMessage():
            yield from _translate_result(message, at)


def _translate_answer(message: AssistantMessage, at: datetime) -> Iterator[AgentEvent]:
    turn_id = message.message_id or message.uuid or ""
    parent = message.parent_tool_use_id
    model = None if message.model == _SYNTHETIC_MODEL else message.model
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    yield events.AnswerReceived(
        at=at,
        turn_id=turn_id,
        model=model,
        text="\n".join(texts),
        tokens=parse_tokens(message.usage) if model and message.usage else None,
        parent=parent,
        error=message.error,
    )
    for block in message.content:
        match block:
            case (
                ToolUseBlock(id=id_, name=name, input=tool_input)
                | ServerToolUseBlock(id=id_, name=name, input=tool_input)
            ):
                yield events.ToolRequested(
                    at=at, tool_id=id_, name=name, input=tool_input, turn_id=turn_id, parent=parent
                )
            case ServerToolResultBlock(tool_use_id=id_):
                yield events.ToolFinished(at=at, tool_id=id_, outcome=ToolOutcome.OK)


def _translate_system(subtype: str, data: Mapping[str, Any], at: datetime) -> Iterator[AgentEvent]:
    match subtype:
        case "init":
            yield events.SessionStarted(
                at=at, session_id=data.get("session_id"), model=data.get("model")
            )
        case "api_retry":
            yield events.ApiRetried(
                at=at,
                attempt=_integer(data.get("attempt")) or 0,
                limit=_integer(data.get("max_retries")) or 0,
                delay_ms=_integer(data.get("retry_delay_ms")) or 0,
                status=_integer(data.get("error_status")),
                error=_text(data.get("error")),
            )
        case "model_fallback":
            models = _text(data.get("original_model")), _text(data.get("fallback_model"))
            reason = _text(data.get("trigger"))
            yield events.ModelFallback(at=at, model=models[0], to_model=models[1], reason=reason)
        case "permission_denied":
            yield events.ToolDenied(
                at=at,
                tool_id=str(data.get("tool_use_id")),
                name=str(data.get("tool_name")),
                reason=str(data.get("message") or "").partition(_MODEL_INSTRUCTION)[0],
            )
        case "task_started" if data.get("task_type") == "local_agent":
            yield events.SubagentStarted(
                at=at,
                agent_id=str(data.get("task_id")),
                kind=_text(data.get("subagent_type")),
                tool_id=_text(data.get("tool_use_id")),
                description=str(data.get("description") or ""),
            )
        case "task_notification" | "task_updated":
            status = data.get("status") or as_mapping(data.get("patch")).get("status")
            if status in _ENDED:
                yield events.SubagentFinished(at=at, agent_id=str(data.get("task_id")))


def _translate_result(message: ResultMessage, at: datetime) -> Iterator[AgentEvent]:
    for denial in message.permission_denials or ():
        refused = as_mapping(denial)
        yield events.ToolDenied(
            at=at,
            tool_id=str(refused.get("tool_use_id")),
            name=str(refused.get("tool_name")),
            input=refused.get("tool_input"),
        )
    reason = message.terminal_reason or message.subtype
    # A query that a hook stopped, or that deferred a tool, reports success too.
    completed = not message.is_error and reason in ("completed", "success")
    yield events.QueryFinished(
        at=at,
        completed=completed,
        reason=reason,
        status=message.api_error_status,
        error="; ".join(message.errors or ()) or message.result or "",
    )


def translate_hook(payload: Mapping[str, Any], at: datetime) -> Iterator[AgentEvent]:
    """Yields the events of a hook's payload."""
    match payload.get("hook_event_name"):
        case "PreToolUse":
            yield events.ToolStarted(
                at=at,
                tool_id=str(payload.get("tool_use_id")),
                name=str(payload.get("tool_name")),
                input=payload.get("tool_input"),
                agent_id=_text(payload.get("agent_id")),
            )
        case "PostToolUse":
            tool_input, response = payload.get("tool_input"), payload.get("tool_response")
            cut_off = as_mapping(response).get("interrupted") is True
            outcome = ToolOutcome.INTERRUPTED if cut_off else ToolOutcome.OK
            yield _tool_ended(payload, at, outcome, response if isinstance(response, str) else "")
            yield from _translate_todo_tool(
                payload.get("tool_name"), as_mapping(tool_input), as_mapping(response), at
            )
        case "PostToolUseFailure":
            stopped = payload.get("is_interrupt") is True
            outcome = ToolOutcome.INTERRUPTED if stopped else ToolOutcome.FAILED
            yield _tool_ended(payload, at, outcome, str(payload.get("error") or ""))
        case "TaskCreated" | "TaskCompleted" as name:
            todo_id, subject = str(payload.get("task_id")), str(payload.get("task_subject") or "")
            if name == "TaskCreated":
                yield events.TodoSeen(at=at, todo_id=todo_id, subject=subject)
            else:
                state = TodoState.COMPLETED
                yield events.TodoUpdated(at=at, todo_id=todo_id, subject=subject, state=state)
        case "SubagentStart":
            kind = _text(payload.get("agent_type"))
            yield events.SubagentStarted(at=at, agent_id=str(payload.get("agent_id")), kind=kind)
        case "SubagentStop":
            yield events.SubagentFinished(at=at, agent_id=str(payload.get("agent_id")))


def _tool_ended(
    payload: Mapping[str, Any], at: datetime, outcome: ToolOutcome, output: str
) -> events.ToolFinished:
    tool_id, duration_ms = str(payload.get("tool_use_id")), _integer(payload.get("duration_ms"))
    return events.ToolFinished(
        at=at, tool_id=tool_id, outcome=outcome, output=output, duration_ms=duration_ms
    )


def _translate_todo_tool(
    name: Any, tool_input: Mapping[str, Any], response: Mapping[str, Any], at: datetime
) -> Iterator[AgentEvent]:
    """Yields the events of both kinds of todo tools: item by item, or the whole list."""
    match name:
        case "TaskCreate":
            yield from _listed_todos([response.get("task")], at)
        case "TaskList":
            yield from _listed_todos(response.get("tasks"), at)
        case "TaskUpdate" if response.get("success") is not False:
            todo_id, subject = str(tool_input.get("taskId")), str(tool_input.get("subject") or "")
            state = _todo_state(tool_input, None)
            yield events.TodoUpdated(at=at, todo_id=todo_id, subject=subject, state=state)
        case "TodoWrite":
            todos = map(as_mapping, _items(response.get("newTodos") or tool_input.get("todos")))
            listed = tuple((str(todo.get("content")), _todo_state(todo)) for todo in todos)
            yield events.TodosReplaced(at=at, items=listed)


def _listed_todos(tasks: Any, at: datetime) -> Iterator[AgentEvent]:
    for task in map(as_mapping, _items(tasks)):
        todo_id, subject = str(task.get("id")), str(task.get("subject") or "")
        yield events.TodoSeen(at=at, todo_id=todo_id, subject=subject, state=_todo_state(task))


def _result_text(content: Any) -> str:
    """Returns the text of a tool's result, without its images."""
    if isinstance(content, str):
        return content.removeprefix(_ERROR_OPEN_TAG).removesuffix(_ERROR_CLOSE_TAG)
    texts = [as_mapping(part).get("text") for part in _items(content)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _todo_state(todo: Mapping[str, Any], default: Any = TodoState.PENDING) -> Any:
    """Returns the state of a todo; the default if it has none or an unknown one."""
    status = todo.get("status")
    return _STATES.get(status, default) if isinstance(status, str) else default


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None
