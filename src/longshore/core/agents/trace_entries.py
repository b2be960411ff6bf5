"""What stands in the lists of a trace: turns, calls of tools, subagents, and how a step ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from longshore.core.agents.happenings import Counted, Tokens, ToolOutcome
from longshore.core.agents.trace_forms import line, milliseconds, moment

NAME_CHARACTERS = 200
_MONEY_DIGITS = 6


@dataclass(slots=True, kw_only=True)
class Turn:
    """One answer of the model."""

    number: int
    id: str
    at: datetime
    model: str | None
    parent: str | None  # the call of a tool whose subagent said it
    error: str | None  # no answer: the API failed so
    text: str = ""
    tokens: Tokens | None = None
    cost_usd: float | None = None  # None: nobody has counted it

    def is_counted_by(self, told: Counted) -> bool:
        """Whether these are the figures of this answer, for one that has none yet.

        What went in is told when an answer begins and again when it was counted.
        """
        if self.cost_usd is not None or self.error is not None:
            return False
        if told.turn_id is not None:
            return told.turn_id == self.id
        return self.tokens is not None and self.tokens.input_side == told.tokens.input_side

    def count(self, told: Counted) -> None:
        """Take the figures."""
        self.tokens, self.cost_usd = told.tokens, told.cost_usd

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "number": self.number,
            "at": moment(self.at),
            "model": name_of(self.model),
            "text": self.text,
            "error": name_of(self.error),
            "parent": self.parent,
            "tokens": tokens_document(self.tokens) if self.tokens else None,
            "costUsd": money(self.cost_usd),
        }


@dataclass(slots=True, kw_only=True)
class Tool:
    """One call of a tool."""

    id: str
    name: str
    input: str
    summary: str
    at: datetime
    turn: int  # the number of the answer that wanted it; 0: none was seen
    parent: str | None
    begun: bool = False
    outcome: ToolOutcome = ToolOutcome.RUNNING
    output: str = ""
    duration_ms: int | None = None

    def end(self, outcome: ToolOutcome, at: datetime, duration_ms: int | None) -> None:
        """Have an outcome; without a duration it is the time since the call was seen to begin."""
        self.outcome = outcome
        if outcome is ToolOutcome.DENIED:
            self.duration_ms = None
        elif duration_ms is not None:
            self.duration_ms = duration_ms
        elif self.begun:
            self.duration_ms = milliseconds(at - self.at)

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "id": self.id,
            "name": self.name,
            "input": self.input,
            "summary": self.summary,
            "startedAt": moment(self.at),
            "turn": self.turn,
            "parent": self.parent,
            "outcome": self.outcome.value,
            "output": self.output,
            "durationMs": self.duration_ms,
        }


@dataclass(slots=True, kw_only=True)
class Subagent:
    """Another agent that worked for this one."""

    id: str
    at: datetime
    kind: str = ""
    tool_id: str | None = None
    description: str = ""
    ended_at: datetime | None = None

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        took = milliseconds(self.ended_at - self.at) if self.ended_at else None
        return {
            "id": self.id,
            "kind": self.kind,
            "tool": self.tool_id,
            "description": self.description,
            "startedAt": moment(self.at),
            "endedAt": moment(self.ended_at),
            "durationMs": took,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a step ended."""

    how: str
    reason: str | None = None
    error: str = ""
    status: int | None = None

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "how": self.how,
            "reason": self.reason,
            "error": self.error or None,
            "apiStatus": self.status,
        }


def tokens_document(tokens: Tokens) -> dict[str, Any]:
    """Figures as they are kept."""
    return {
        "input": tokens.input,
        "output": tokens.output,
        "cacheRead": tokens.cache_read,
        "cacheCreation": tokens.cache_creation,
        "cacheEfficiency": tokens.cache_efficiency,
    }


def money(amount: float | None) -> float | None:
    """Dollars, without the dust of adding them up."""
    return None if amount is None else round(amount, _MONEY_DIGITS)


def name_of(text: str | None) -> str | None:
    """A short text that came from elsewhere."""
    return None if text is None else line(text, limit=NAME_CHARACTERS)
