"""What happens in an agent's step, at times that a test chooses."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.core.agents.prices import TokenCounts
from longshore.core.agents.trace import StepTrace, ToolCall, ToolOutcome

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)

Report = Callable[[StepTrace], str | None]
"""Records something in a trace, and returns its log line."""


def at(seconds: float) -> datetime:
    """Returns the time ``seconds`` after the start of the step."""
    return NOON + timedelta(seconds=seconds)


def report(method: str, **fields: Any) -> Report:
    """Returns a call of a trace's method."""

    def record(trace: StepTrace) -> str | None:
        line: str | None = getattr(trace, method)(**fields)
        return line

    return record


def a_step(*reports: Report, **how: Any) -> StepTrace:
    """Returns a trace with these reports."""
    trace = StepTrace("review", started_at=NOON, **how)
    for record in reports:
        record(trace)
    return trace


def format_lines(trace: StepTrace, *reports: Report) -> list[str]:
    """Returns the log lines of the reports."""
    lines = [record(trace) for record in reports]
    return [line for line in lines if line is not None]


def text_event(text: str = "", turn: str = "msg-1", **more_: Any) -> Report:
    fields = {"at": at(1), "turn_id": turn, "model": "opus", "text": text, **more_}
    return report("answer_received", **fields)


def tool_called(
    tool: str = "t1", name: str = "Bash", tool_input: Any = None, **more_: Any
) -> Report:
    tool_input = {"command": "ls"} if tool_input is None else tool_input
    fields = {"at": at(2), "call": ToolCall(tool, name, tool_input), **more_}
    return report("tool_requested", **fields)


def tool_started(
    tool: str = "t1", name: str = "Bash", tool_input: Any = None, **more_: Any
) -> Report:
    tool_input = {"command": "ls"} if tool_input is None else tool_input
    fields = {"at": at(3), "call": ToolCall(tool, name, tool_input), **more_}
    return report("tool_started", **fields)


def tool_denied(
    seconds: float, tool: str = "t1", name: str = "Bash", tool_input: Any = None, reason: str = ""
) -> Report:
    call = ToolCall(tool, name, tool_input)
    return report("tool_denied", at=at(seconds), call=call, reason=reason)


def tool_ended(
    tool: str = "t1", outcome: ToolOutcome = ToolOutcome.OK, output: str = "", **more_: Any
) -> Report:
    fields = {"at": at(5), "tool_id": tool, "outcome": outcome, "output": output, **more_}
    return report("tool_finished", **fields)


def subagent_started(
    agent: str, kind: str = "", tool: str | None = None, description: str = ""
) -> Report:
    fields = {"kind": kind, "tool_id": tool, "description": description}
    return report("subagent_started", at=at(1), agent_id=agent, **fields)


def usage_event(cost: float = 0.01, turn: str | None = "msg-1", **tokens: int) -> Report:
    return report("usage_measured", turn_id=turn, tokens=TokenCounts(**tokens), cost_usd=cost)
