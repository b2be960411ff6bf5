"""What can happen in a step of an agent, in our own words.

Whoever watches an agent translates what its library says into these; ``trace`` folds them into the
document that is kept, and ``trace_words`` into lines for whoever looks on. So neither knows the
library, and a new version of it changes one translation.

The same thing may be told twice, by a hook and by a message: ids say which happenings are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class ToolOutcome(StrEnum):
    """How a call of a tool ended, or that it has not."""

    RUNNING = "running"
    OK = "ok"
    FAILED = "failed"
    DENIED = "denied"  # it never ran
    INTERRUPTED = "interrupted"  # whether it did its work is not known


class TodoState(StrEnum):
    """Where an item of the agent's own list stands."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What one answer, or many, took; the three input figures do not overlap."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_creation: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_creation=self.cache_creation + other.cache_creation,
        )

    @property
    def input_side(self) -> tuple[int, int, int]:
        """What went in, which is known as soon as an answer begins."""
        return (self.input, self.cache_read, self.cache_creation)

    @property
    def cache_efficiency(self) -> float | None:
        """How many percent of what went in came from the cache; None if nothing went in."""
        went_in = sum(self.input_side)
        return round(100 * self.cache_read / went_in, 1) if went_in else None


def tokens_of(usage: Mapping[str, Any] | None) -> Tokens | None:
    """The figures of a ``usage`` as the Messages API has it; None if there is none."""
    if not usage:
        return None
    return Tokens(
        input=_count(usage.get("input_tokens")),
        output=_count(usage.get("output_tokens")),
        cache_read=_count(usage.get("cache_read_input_tokens")),
        cache_creation=_count(usage.get("cache_creation_input_tokens")),
    )


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A session began, or was taken up again; once for each query."""

    at: datetime
    session_id: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A piece of an answer of the model; an answer may come in several."""

    at: datetime
    turn_id: str
    model: str | None = None
    text: str = ""
    tokens: Tokens | None = None
    parent: str | None = None  # the tool call whose subagent said it
    error: str | None = None  # it is no answer: the API failed so


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """The model wants a tool; it may have to wait for others."""

    at: datetime
    tool_id: str
    name: str
    input: Any = None
    turn_id: str | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolBegan:
    """A tool is about to run, or to be refused."""

    at: datetime
    tool_id: str
    name: str
    input: Any = None
    agent_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded:
    """A tool has run, failed or been refused."""

    at: datetime
    tool_id: str
    outcome: ToolOutcome
    output: str = ""
    duration_ms: int | None = None  # None: as it was seen from here


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one answer of the API took and cost, by whoever passed it on."""

    at: datetime
    model: str | None
    tokens: Tokens
    cost_usd: float
    turn_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The API failed and will be asked again."""

    at: datetime
    attempt: int
    limit: int
    delay_ms: int
    status: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBack:
    """Another model goes on."""

    at: datetime
    model: str | None
    to_model: str | None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimited:
    """What the API lets this account do has changed."""

    at: datetime
    status: str
    window: str | None = None  # of which limit
    resets_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentBegan:
    """Another agent works for this one."""

    at: datetime
    agent_id: str
    kind: str | None = None
    tool_id: str | None = None
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentEnded:
    """It has done so."""

    at: datetime
    agent_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """A tool was refused."""

    at: datetime
    tool_id: str
    name: str
    input: Any = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TodoKnown:
    """An item is on the agent's list. What is told of one that is known already may be old."""

    at: datetime
    todo_id: str
    subject: str = ""
    state: TodoState = TodoState.PENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class TodoMoved:
    """An item was moved on, or renamed."""

    at: datetime
    todo_id: str
    subject: str = ""
    state: TodoState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TodosListed:
    """The agent wrote its whole list anew; items have no ids there, only what they say."""

    at: datetime
    items: tuple[tuple[str, TodoState], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resulted:
    """A query came to an end and said so."""

    at: datetime
    completed: bool
    reason: str | None = None
    status: int | None = None
    error: str = ""
    tokens: Tokens | None = None
    cost_usd: float | None = None  # of the whole session, as far as it knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The step is over.

    Args:
        how: What became of it, in the words of whoever ran it; None: as the last query said.
    """

    at: datetime
    how: str | None = None
    error: str = ""


Happening = (
    Began
    | Said
    | ToolCalled
    | ToolBegan
    | ToolEnded
    | Counted
    | Retried
    | FellBack
    | RateLimited
    | SubagentBegan
    | SubagentEnded
    | Denied
    | TodoKnown
    | TodoMoved
    | TodosListed
    | Resulted
    | Finished
)
