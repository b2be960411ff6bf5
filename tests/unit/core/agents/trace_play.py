"""A step of an agent, told at moments that a test chooses."""

from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.core.agents.happenings import (
    Counted,
    Happening,
    Said,
    Tokens,
    ToolBegan,
    ToolCalled,
    ToolEnded,
    ToolOutcome,
)
from longshore.core.agents.trace import StepTrace
from longshore.core.agents.trace_words import line_of

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """So long after the step began."""
    return NOON + timedelta(seconds=seconds)


def a_step(*told: Happening, **how: Any) -> StepTrace:
    """A step to which this has happened."""
    trace = StepTrace("review", at=NOON, **how)
    for happening in told:
        trace.take(happening)
    return trace


def lines(trace: StepTrace, *told: Happening) -> list[str]:
    """What is said while it happens."""
    news = [line_of(one, trace) if trace.take(one) else None for one in told]
    return [line for line in news if line is not None]


def said(text: str = "", turn: str = "msg-1", **more: Any) -> Said:
    return Said(**{"at": at(1), "turn_id": turn, "model": "opus", "text": text, **more})


def called(tool: str = "t1", name: str = "Bash", given: Any = None, **more: Any) -> ToolCalled:
    given = {"command": "ls"} if given is None else given
    return ToolCalled(**{"at": at(2), "tool_id": tool, "name": name, "input": given, **more})


def began(tool: str = "t1", name: str = "Bash", given: Any = None, **more: Any) -> ToolBegan:
    given = {"command": "ls"} if given is None else given
    return ToolBegan(**{"at": at(3), "tool_id": tool, "name": name, "input": given, **more})


def ended(
    tool: str = "t1", outcome: ToolOutcome = ToolOutcome.OK, output: str = "", **more: Any
) -> ToolEnded:
    return ToolEnded(**{"at": at(5), "tool_id": tool, "outcome": outcome, "output": output, **more})


def counted(turn: str | None = None, cost: float = 0.01, **tokens: int) -> Counted:
    return Counted(at=at(1), model="opus", tokens=Tokens(**tokens), cost_usd=cost, turn_id=turn)
