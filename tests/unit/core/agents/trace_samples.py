"""Events of an agent's step at times that a test chooses."""

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
    """Returns the time ``seconds`` after the start of the step."""
    return NOON + timedelta(seconds=seconds)


def a_step(*events: AgentEvent, **how: Any) -> StepTrace:
    """Returns a trace with these events."""
    trace = StepTrace("review", at=NOON, **how)
    for event in events:
        trace.apply(event)
    return trace


def format_lines(trace: StepTrace, *events: AgentEvent) -> list[str]:
    """Returns the log lines of the events."""
    lines = [event_line(item, trace) if trace.apply(item) else None for item in events]
    return [line for line in lines if line is not None]


def text_event(text: str = "", turn: str = "msg-1", **more_: Any) -> AnswerReceived:
    return AnswerReceived(**{"at": at(1), "turn_id": turn, "model": "opus", "text": text, **more_})


def tool_called(
    tool: str = "t1", name: str = "Bash", tool_input: Any = None, **more_: Any
) -> ToolRequested:
    tool_input = {"command": "ls"} if tool_input is None else tool_input
    return ToolRequested(
        **{"at": at(2), "tool_id": tool, "name": name, "input": tool_input, **more_}
    )


def tool_started(
    tool: str = "t1", name: str = "Bash", tool_input: Any = None, **more_: Any
) -> ToolStarted:
    tool_input = {"command": "ls"} if tool_input is None else tool_input
    return ToolStarted(**{"at": at(3), "tool_id": tool, "name": name, "input": tool_input, **more_})


def tool_ended(
    tool: str = "t1", outcome: ToolOutcome = ToolOutcome.OK, output: str = "", **more_: Any
) -> ToolFinished:
    return ToolFinished(
        **{"at": at(5), "tool_id": tool, "outcome": outcome, "output": output, **more_}
    )


def usage_event(cost: float = 0.01, **tokens: int) -> UsageCounted:
    return UsageCounted(at=at(1), tokens=TokenCounts(**tokens), cost_usd=cost)
