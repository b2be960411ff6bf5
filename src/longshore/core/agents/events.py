"""The events of an agent's step, independent of the agent SDK.

``sdk_events`` translates the SDK's messages into these events; ``trace`` folds them into the stored
document, and ``trace_text`` formats them as log lines. So a new version of the SDK changes only the
translation.

A hook and a message may report the same event twice: ids identify the duplicates.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from longshore.core.agents.prices import TokenCounts


class ToolOutcome(StrEnum):
    """The outcome of a tool call; ``running`` until it has one."""

    RUNNING = "running"
    OK = "ok"
    FAILED = "failed"
    DENIED = "denied"  # it never ran
    INTERRUPTED = "interrupted"  # whether it took effect is unknown


class TodoState(StrEnum):
    """The state of an item of the agent's todo list."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted(_Event):
    """A session started or was resumed; once for each query."""

    session_id: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReceived(_Event):
    """A part of an answer of the model, which may arrive in several parts."""

    turn_id: str
    model: str | None = None
    text: str = ""
    tokens: TokenCounts | None = None
    parent: str | None = None  # the tool call of the subagent that answered
    error: str | None = None  # the API's error, in place of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequested(_Event):
    """The model requested a tool call, which may wait for others."""

    tool_id: str
    name: str
    input: Any = None
    turn_id: str | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(_Event):
    """A tool call is about to run or to be denied."""

    tool_id: str
    name: str
    input: Any = None
    agent_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished(_Event):
    """A tool call succeeded, failed or was denied."""

    tool_id: str
    outcome: ToolOutcome
    output: str = ""
    duration_ms: int | None = None  # None: measured by the trace


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageCounted(_Event):
    """The usage and cost of one API response, as the gateway measured them."""

    tokens: TokenCounts
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRetried(_Event):
    """An API request failed and will be retried."""

    attempt: int
    limit: int
    delay_ms: int
    status: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFallback(_Event):
    """The agent switched to another model."""

    model: str | None
    to_model: str | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimited(_Event):
    """The rate limit status of the account changed."""

    status: str
    window: str | None = None  # the limit's period
    resets_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentStarted(_Event):
    """A subagent started."""

    agent_id: str
    kind: str | None = None
    tool_id: str | None = None
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentFinished(_Event):
    """A subagent finished."""

    agent_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDenied(_Event):
    """A tool call was denied."""

    tool_id: str
    name: str
    input: Any = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TodoSeen(_Event):
    """An item is on the agent's todo list; for an existing item the state may be out of date."""

    todo_id: str
    subject: str = ""
    state: TodoState = TodoState.PENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class TodoUpdated(_Event):
    """An item changed its state or subject."""

    todo_id: str
    subject: str = ""
    state: TodoState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TodosReplaced(_Event):
    """The agent replaced its whole todo list; such items have no ids, only their text."""

    items: tuple[tuple[str, TodoState], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFinished(_Event):
    """A query ended with a result message."""

    completed: bool
    reason: str | None = None
    status: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished(_Event):
    """The step ended.

    Args:
        outcome: The outcome as the runner names it; None: as the last query reported.
    """

    outcome: str | None = None
    error: str = ""


ToolEvent = ToolRequested | ToolStarted | ToolFinished | ToolDenied
SubagentEvent = SubagentStarted | SubagentFinished
TodoEvent = TodoSeen | TodoUpdated | TodosReplaced
ApiEvent = ApiRetried | ModelFallback | RateLimited
AgentEvent = (
    SessionStarted
    | AnswerReceived
    | UsageCounted
    | QueryFinished
    | StepFinished
    | ToolEvent
    | SubagentEvent
    | TodoEvent
    | ApiEvent
)
