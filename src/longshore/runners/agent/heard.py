"""What the SDK says of a running agent, in our own words: messages and hooks become happenings.

A tool is told of up to four times: when the model asks for it, when a hook sees it begin and end,
and when the model is given its result. One that does not exist, or that is denied, has no end in
the hooks, and what a subagent says reaches us only in part: so both are listened to.
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

from longshore.core.agents import happenings as h
from longshore.core.agents.happenings import Happening, TodoState, ToolOutcome, tokens_of

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
"""The hooks that are listened to."""

# The model of what is no answer of a model, such as an error of the API.
_NO_MODEL = "<synthetic>"
_ENDED = frozenset({"completed", "failed", "stopped", "killed"})
_STATES = {state.value: state for state in TodoState}
# Behind this the command line tells the model what to make of a refusal.
_TO_THE_MODEL = " IMPORTANT:"
_ERROR_BEGINS, _ERROR_ENDS = "<tool_use_error>", "</tool_use_error>"


def from_message(message: object, at: datetime) -> Iterator[Happening]:
    """What a message tells; nothing for those that tell nothing of interest."""
    match message:
        case AssistantMessage():
            yield from _from_answer(message, at)
        case UserMessage(content=list(blocks)):
            for block in blocks:
                if isinstance(block, ToolResultBlock):
                    outcome = ToolOutcome.FAILED if block.is_error else ToolOutcome.OK
                    output = _text_in(block.content)
                    yield h.ToolEnded(
                        at=at, tool_id=block.tool_use_id, outcome=outcome, output=output
                    )
        case SystemMessage(subtype=subtype, data=data):
            yield from _from_system(subtype, data, at)
        case RateLimitEvent(rate_limit_info=limit):
            yield h.RateLimited(
                at=at,
                status=str(limit.status),
                window=limit.rate_limit_type,
                resets_at=datetime.fromtimestamp(limit.resets_at, UTC) if limit.resets_at else None,
            )
        case ResultMessage():
            yield from _from_result(message, at)


def _from_answer(message: AssistantMessage, at: datetime) -> Iterator[Happening]:
    turn_id = message.message_id or message.uuid or ""
    parent = message.parent_tool_use_id
    model = None if message.model == _NO_MODEL else message.model
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    yield h.Said(
        at=at,
        turn_id=turn_id,
        model=model,
        text="\n".join(texts),
        tokens=tokens_of(message.usage) if model else None,
        parent=parent,
        error=message.error,
    )
    for block in message.content:
        match block:
            case (
                ToolUseBlock(id=id_, name=name, input=given)
                | ServerToolUseBlock(id=id_, name=name, input=given)
            ):
                yield h.ToolCalled(
                    at=at, tool_id=id_, name=name, input=given, turn_id=turn_id, parent=parent
                )
            case ServerToolResultBlock(tool_use_id=id_):
                yield h.ToolEnded(at=at, tool_id=id_, outcome=ToolOutcome.OK)


def _from_system(subtype: str, data: Mapping[str, Any], at: datetime) -> Iterator[Happening]:
    match subtype:
        case "init":
            yield h.Began(at=at, session_id=data.get("session_id"), model=data.get("model"))
        case "api_retry":
            yield h.Retried(
                at=at,
                attempt=_whole(data.get("attempt")) or 0,
                limit=_whole(data.get("max_retries")) or 0,
                delay_ms=_whole(data.get("retry_delay_ms")) or 0,
                status=_whole(data.get("error_status")),
                error=_text(data.get("error")),
            )
        case "model_fallback":
            models = _text(data.get("original_model")), _text(data.get("fallback_model"))
            why = _text(data.get("trigger"))
            yield h.FellBack(at=at, model=models[0], to_model=models[1], why=why)
        case "permission_denied":
            yield h.Denied(
                at=at,
                tool_id=str(data.get("tool_use_id")),
                name=str(data.get("tool_name")),
                reason=str(data.get("message") or "").partition(_TO_THE_MODEL)[0],
            )
        case "task_started" if data.get("task_type") == "local_agent":
            yield h.SubagentBegan(
                at=at,
                agent_id=str(data.get("task_id")),
                kind=_text(data.get("subagent_type")),
                tool_id=_text(data.get("tool_use_id")),
                description=str(data.get("description") or ""),
            )
        case "task_notification" | "task_updated":
            status = data.get("status") or _mapping(data.get("patch")).get("status")
            if status in _ENDED:
                yield h.SubagentEnded(at=at, agent_id=str(data.get("task_id")))


def _from_result(message: ResultMessage, at: datetime) -> Iterator[Happening]:
    for denial in message.permission_denials or ():
        refused = _mapping(denial)
        yield h.Denied(
            at=at,
            tool_id=str(refused.get("tool_use_id")),
            name=str(refused.get("tool_name")),
            input=refused.get("tool_input"),
        )
    reason = message.terminal_reason or message.subtype
    # A query that a hook stopped, or that put a tool off, calls itself a success too.
    completed = not message.is_error and reason in ("completed", "success")
    yield h.Resulted(
        at=at,
        completed=completed,
        reason=reason,
        status=message.api_error_status,
        error="; ".join(message.errors or ()) or message.result or "",
        tokens=tokens_of(message.usage),
        cost_usd=message.total_cost_usd,
    )


def from_hook(told: Mapping[str, Any], at: datetime) -> Iterator[Happening]:
    """What a hook tells."""
    match told.get("hook_event_name"):
        case "PreToolUse":
            yield h.ToolBegan(
                at=at,
                tool_id=str(told.get("tool_use_id")),
                name=str(told.get("tool_name")),
                input=told.get("tool_input"),
                agent_id=_text(told.get("agent_id")),
            )
        case "PostToolUse":
            given, answer = told.get("tool_input"), told.get("tool_response")
            cut_off = _mapping(answer).get("interrupted") is True
            outcome = ToolOutcome.INTERRUPTED if cut_off else ToolOutcome.OK
            yield _ended(told, at, outcome, answer if isinstance(answer, str) else "")
            yield from _from_todo_tool(told.get("tool_name"), _mapping(given), _mapping(answer), at)
        case "PostToolUseFailure":
            stopped = told.get("is_interrupt") is True
            outcome = ToolOutcome.INTERRUPTED if stopped else ToolOutcome.FAILED
            yield _ended(told, at, outcome, str(told.get("error") or ""))
        case "TaskCreated":
            subject = str(told.get("task_subject") or "")
            yield h.TodoKnown(at=at, todo_id=str(told.get("task_id")), subject=subject)
        case "TaskCompleted":
            yield h.TodoMoved(
                at=at,
                todo_id=str(told.get("task_id")),
                subject=str(told.get("task_subject") or ""),
                state=TodoState.COMPLETED,
            )
        case "SubagentStart":
            kind = _text(told.get("agent_type"))
            yield h.SubagentBegan(at=at, agent_id=str(told.get("agent_id")), kind=kind)
        case "SubagentStop":
            yield h.SubagentEnded(at=at, agent_id=str(told.get("agent_id")))


def _ended(told: Mapping[str, Any], at: datetime, outcome: ToolOutcome, output: str) -> h.ToolEnded:
    tool_id, took = str(told.get("tool_use_id")), _whole(told.get("duration_ms"))
    return h.ToolEnded(at=at, tool_id=tool_id, outcome=outcome, output=output, duration_ms=took)


def _from_todo_tool(
    name: Any, given: Mapping[str, Any], answer: Mapping[str, Any], at: datetime
) -> Iterator[Happening]:
    """Both ways in which an agent keeps a list: item by item, or as a whole."""
    match name:
        case "TaskCreate":
            yield from _known([answer.get("task")], at)
        case "TaskList":
            yield from _known(answer.get("tasks"), at)
        case "TaskUpdate" if answer.get("success") is not False:
            yield h.TodoMoved(
                at=at,
                todo_id=str(given.get("taskId")),
                subject=str(given.get("subject") or ""),
                state=_state(given.get("status")),
            )
        case "TodoWrite":
            todos = [
                _mapping(todo) for todo in _items(answer.get("newTodos") or given.get("todos"))
            ]
            pairs = [(str(todo.get("content")), _state(todo.get("status"))) for todo in todos]
            listed = tuple((content, state or TodoState.PENDING) for content, state in pairs)
            yield h.TodosListed(at=at, items=listed)


def _known(tasks: Any, at: datetime) -> Iterator[Happening]:
    for task in map(_mapping, _items(tasks)):
        state = _state(task.get("status")) or TodoState.PENDING
        subject = str(task.get("subject") or "")
        yield h.TodoKnown(at=at, todo_id=str(task.get("id")), subject=subject, state=state)


def _text_in(content: Any) -> str:
    """The words in a tool's result, which may be pictures as well."""
    if isinstance(content, str):
        return content.removeprefix(_ERROR_BEGINS).removesuffix(_ERROR_ENDS)
    texts = [_mapping(part).get("text") for part in _items(content)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _state(value: Any) -> TodoState | None:
    return _STATES.get(value) if isinstance(value, str) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None
