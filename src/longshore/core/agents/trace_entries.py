"""The entries of a trace: turns, tool calls, subagents, and the end of a step."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from longshore.core.agents.events import TokenCounts, ToolOutcome, UsageCounted
from longshore.core.agents.trace_format import format_time, one_line, to_milliseconds

NAME_CHARACTERS = 200
_MONEY_DIGITS = 6


@dataclass(slots=True, kw_only=True)
class TracedTurn:
    """One answer of the model."""

    number: int
    id: str
    at: datetime
    model: str | None
    parent: str | None  # the tool call of the subagent that answered
    error: str | None  # the API's error, in place of an answer
    text: str = ""
    tokens: TokenCounts | None = None
    cost_usd: float | None = None  # None: not measured

    def matches_usage(self, event: UsageCounted) -> bool:
        """Whether the usage belongs to this turn, if the turn has none yet.

        Without an id they are matched by the input counts, which both contain.
        """
        if self.cost_usd is not None or self.error is not None:
            return False
        if event.turn_id is not None:
            return event.turn_id == self.id
        return self.tokens is not None and self.tokens.input_counts == event.tokens.input_counts

    def set_usage(self, event: UsageCounted) -> None:
        """Set the measured usage."""
        self.tokens, self.cost_usd = event.tokens, event.cost_usd

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "number": self.number,
            "at": format_time(self.at),
            "model": short_name(self.model),
            "text": self.text,
            "error": short_name(self.error),
            "parent": self.parent,
            "tokens": tokens_document(self.tokens) if self.tokens else None,
            "costUsd": round_usd(self.cost_usd),
        }


@dataclass(slots=True, kw_only=True)
class TracedTool:
    """One tool call."""

    id: str
    name: str
    input: str
    summary: str
    at: datetime
    turn: int  # the number of the turn that requested it; 0: unknown
    parent: str | None
    started: bool = False
    outcome: ToolOutcome = ToolOutcome.RUNNING
    output: str = ""
    duration_ms: int | None = None

    def end(self, outcome: ToolOutcome, at: datetime, duration_ms: int | None) -> None:
        """Set the outcome; without a duration it is the time since the reported start."""
        self.outcome = outcome
        if outcome is ToolOutcome.DENIED:
            self.duration_ms = None
        elif duration_ms is not None:
            self.duration_ms = duration_ms
        elif self.started:
            self.duration_ms = to_milliseconds(at - self.at)

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "id": self.id,
            "name": self.name,
            "input": self.input,
            "summary": self.summary,
            "startedAt": format_time(self.at),
            "turn": self.turn,
            "parent": self.parent,
            "outcome": self.outcome.value,
            "output": self.output,
            "durationMs": self.duration_ms,
        }


@dataclass(slots=True, kw_only=True)
class TracedSubagent:
    """One subagent."""

    id: str
    at: datetime
    kind: str = ""
    tool_id: str | None = None
    description: str = ""
    ended_at: datetime | None = None

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        duration_ms = to_milliseconds(self.ended_at - self.at) if self.ended_at else None
        return {
            "id": self.id,
            "kind": self.kind,
            "tool": self.tool_id,
            "description": self.description,
            "startedAt": format_time(self.at),
            "endedAt": format_time(self.ended_at),
            "durationMs": duration_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """How a step ended."""

    outcome: str
    reason: str | None = None
    error: str = ""
    status: int | None = None

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "how": self.outcome,
            "reason": self.reason,
            "error": self.error or None,
            "apiStatus": self.status,
        }


def tokens_document(tokens: TokenCounts) -> dict[str, Any]:
    """Returns the token counts for the document."""
    return {
        "input": tokens.input,
        "output": tokens.output,
        "cacheRead": tokens.cache_read,
        "cacheCreation": tokens.cache_creation,
        "cacheEfficiency": tokens.cache_efficiency,
    }


def round_usd(amount: float | None) -> float | None:
    """Returns the amount rounded, without floating-point noise."""
    return None if amount is None else round(amount, _MONEY_DIGITS)


def short_name(text: str | None) -> str | None:
    """Returns an external text as one short line."""
    return None if text is None else one_line(text, limit=NAME_CHARACTERS)
