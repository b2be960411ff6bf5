"""A step of an agent, told at moments that a test chooses."""

from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.core.agents.events import (
    AgentEvent,
    AnswerReceived,
    ToolFinished,
    ToolOutcome,
    ToolRequested,
    ToolStarted,
    UsageCounted,
)
from longshore.core.agents.prices import TokenCounts
from longshore.core.agents.trace import StepTrace
from longshore.core.agents.trace_text import event_line

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """So long after the step began."""
    return NOON + timedelta(seconds=seconds)


def a_step(*events: AgentEvent, **how: Any) -> StepTrace:
    """A step to which this has happened."""
    trace = StepTrace("review", at=NOON, **how)
    for happening in events:
        trace.apply(happening)
    return trace


def format_lines(trace: StepTrace, *events: AgentEvent) -> list[str]:
    """What is said while it happens."""
    news = [event_line(one, trace) if trace.apply(one) else None for one in events]
    return [line for line in news if line is not None]


def text_event(text: str = "", turn: str = "msg-1", **more: Any) -> AnswerReceived:
    return AnswerReceived(**{"at": at(1), "turn_id": turn, "model": "opus", "text": text, **more})


def tool_called(
    tool: str = "t1", name: str = "Bash", tool_input: Any = None, **more: Any
) -> ToolRequested:
    tool_input = {"command": "ls"} if tool_input is None else tool_input
    return ToolRequested(
        **{"at": at(2), "tool_id": tool, "name": name, "input": tool_input, **more}
    )


def tool_started(
    tool: str = "t1", name: str = "Bash", tool_input: Any = None, **more: Any
) -> ToolStarted:
    tool_input = {"command": "ls"} if tool_input is None else tool_input
    return ToolStarted(**{"at": at(3), "tool_id": tool, "name": name, "input": tool_input, **more})


def tool_ended(
    tool: str = "t1", outcome: ToolOutcome = ToolOutcome.OK, output: str = "", **more: Any
) -> ToolFinished:
    return ToolFinished(
        **{"at": at(5), "tool_id": tool, "outcome": outcome, "output": output, **more}
    )


def usage_event(cost: float = 0.01, **tokens: int) -> UsageCounted:
    return UsageCounted(at=at(1), tokens=TokenCounts(**tokens), cost_usd=cost)
