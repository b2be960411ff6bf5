"""The trace of an agent's steps: what happened, folded into the document that is kept of it.

A step is told happening by happening and can be written down at any moment, so that also an attempt
that was killed leaves what it had done by then. Nothing here reads a clock or a file. Thinking is
never stored; texts are excerpts, masked; lists have limits, and what was left out is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, assert_never

from longshore.core.agents import happenings as h
from longshore.core.agents.happenings import Happening, ToolOutcome
from longshore.core.agents.todos import Todos
from longshore.core.agents.trace_entries import (
    NAME_CHARACTERS,
    End,
    Subagent,
    Tool,
    money,
    name_of,
    tokens_document,
)
from longshore.core.agents.trace_forms import (
    Ends,
    input_excerpt,
    input_summary,
    line,
    milliseconds,
    moment,
)
from longshore.core.agents.trace_turns import TEXT_CHARACTERS, Turns
from longshore.core.sanitise import safe_excerpt

VERSION: Final = 1
FILE: Final = "traces/session_trace.json"
"""Where it is kept, below the folder of the attempt."""

OUTPUT_CHARACTERS: Final = 200
TOOLS_KEPT: Final = 400
NOTES_KEPT: Final = 50
"""Of retries, denials, subagents and the like."""

_NOTES = ("retries", "fallbacks", "rateLimits", "denials")
_COUNTS = ("tools", "ok", "failed", "denied", "interrupted", "subagents", "retries")


def trace_document(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The trace of an attempt, of the documents of its steps."""
    return {"version": VERSION, "steps": list(steps)}


class StepTrace:
    """One step, as far as it has come.

    Args:
        resumed: Whether its session is one that an earlier attempt began.
    """

    def __init__(
        self, step: str, *, at: datetime, session_id: str | None = None, resumed: bool = False
    ) -> None:
        self.step = line(step, limit=NAME_CHARACTERS)
        self.session_id = session_id
        self.resumed = resumed
        self.model: str | None = None
        self.started_at = at
        self.ended_at: datetime | None = None
        self.turns = Turns()
        self.todos = Todos()
        self.counts: Counter[str] = Counter()
        self._begun = False
        self._end: End | None = None
        self._tools: Ends[Tool] = Ends(TOOLS_KEPT)
        self._subagents: Ends[Subagent] = Ends(NOTES_KEPT)
        self._notes: dict[str, Ends[dict[str, Any]]] = {name: Ends(NOTES_KEPT) for name in _NOTES}
        self._tool: dict[str, Tool] = {}
        self._subagent: dict[str, Subagent] = {}

    def take(self, happening: Happening) -> bool:
        """Take in what happened; whether it was news, and not the same told once more."""
        match happening:
            case h.Began():
                return self._began(happening)
            case h.Said():
                return self.turns.say(happening)
            case h.ToolCalled():
                return self._tool_called(happening)
            case h.ToolBegan():
                return self._tool_began(happening)
            case h.ToolEnded():
                return self._tool_ended(happening)
            case h.Counted():
                return self.turns.count(happening)
            case h.Retried() | h.FellBack() | h.RateLimited():
                return self._noted(happening)
            case h.Denied():
                return self._denied(happening)
            case h.SubagentBegan():
                return self._subagent_began(happening)
            case h.SubagentEnded():
                return self._subagent_ended(happening)
            case h.TodoKnown():
                return self.todos.know(happening)
            case h.TodoMoved():
                return self.todos.move(happening)
            case h.TodosListed():
                return self.todos.replace(happening)
            case h.Resulted():
                return self._query_resulted(happening)
            case h.Finished():
                return self._finished(happening)
            case _:
                assert_never(happening)

    # What is known ------------------------------------------------------------------------------

    @property
    def end(self) -> End | None:
        """How it ended; None while it has not."""
        return self._end if self.ended_at else None

    def tool(self, tool_id: str) -> Tool | None:
        """A call of a tool, if it is kept."""
        return self._tool.get(tool_id)

    def has_like(self, tool: Tool) -> bool:
        """Whether the same answer asked for the same tool more than once."""
        asked = (tool.name, tool.turn)
        return sum((one.name, one.turn) == asked for one in self._tools) > 1

    @property
    def tools_running(self) -> bool:
        """Whether any call of a tool is under way."""
        ended = ("ok", "failed", "denied", "interrupted")
        return self.counts["tools"] > sum(self.counts[name] for name in ended)

    def subagent(self, agent_id: str) -> Subagent | None:
        """A subagent, if it is kept."""
        return self._subagent.get(agent_id)

    def subagent_of(self, tool_id: str | None) -> Subagent | None:
        """The subagent that a call of a tool began."""
        return next((one for one in self._subagents if tool_id and one.tool_id == tool_id), None)

    @property
    def cost_usd(self) -> float | None:
        """What it cost; None if that cannot be told."""
        told_of_whole_session = self.resumed and not self.turns.counted
        return None if told_of_whole_session else self.turns.cost_usd

    # Folding ------------------------------------------------------------------------------------

    def _began(self, told: h.Began) -> bool:
        news, self._begun = not self._begun, True
        self.session_id = self.session_id or told.session_id
        self.model = self.model or told.model
        return news

    def _tool_called(self, told: h.ToolCalled) -> bool:
        tool = self._tool.get(told.tool_id)
        number = self.turns.number_of(told.turn_id, by=tool.at if tool else told.at)
        if tool is None:
            self._add_tool(told, turn=number, parent=told.parent)
            return True
        tool.turn, tool.parent = number, tool.parent or told.parent
        return False

    def _tool_began(self, told: h.ToolBegan) -> bool:
        tool = self._tool.get(told.tool_id)
        news = tool is None
        if tool is None:
            agent = self._subagent.get(told.agent_id or "")
            parent = agent.tool_id if agent else None
            tool = self._add_tool(told, turn=self.turns.last_number, parent=parent)
        if not tool.begun:
            tool.begun, tool.at = True, told.at
        return news

    def _add_tool(self, told: h.ToolCalled | h.ToolBegan, *, turn: int, parent: str | None) -> Tool:
        tool = Tool(
            id=told.tool_id,
            name=line(told.name, limit=NAME_CHARACTERS),
            input=input_excerpt(told.input),
            summary=input_summary(told.input),
            at=told.at,
            turn=turn,
            parent=parent,
        )
        self.counts["tools"] += 1
        self._tool[tool.id] = tool
        if (dropped := self._tools.add(tool)) is not None:
            del self._tool[dropped.id]
        return tool

    def _tool_ended(self, told: h.ToolEnded) -> bool:
        tool = self._tool.get(told.tool_id)
        if tool is None:
            return False
        news = tool.outcome is ToolOutcome.RUNNING
        # The last word on it is what the model was given, unless it never ran.
        if tool.outcome is not ToolOutcome.DENIED:
            tool.output = safe_excerpt(told.output, limit=OUTPUT_CHARACTERS) or tool.output
        if news:
            self._end_tool(tool, told.outcome, told.at, told.duration_ms)
        return news

    def _end_tool(
        self, tool: Tool, outcome: ToolOutcome, at: datetime, duration_ms: int | None = None
    ) -> None:
        if tool.outcome is not ToolOutcome.RUNNING:
            self.counts[tool.outcome.value] -= 1
        self.counts[outcome.value] += 1
        tool.end(outcome, at, duration_ms)

    def _denied(self, told: h.Denied) -> bool:
        reason = safe_excerpt(told.reason, limit=OUTPUT_CHARACTERS)
        tool = self._tool.get(told.tool_id)
        if tool is not None:
            if tool.outcome is ToolOutcome.DENIED:
                return False
            # A refusal that is told late has looked like a failure so far.
            self._end_tool(tool, ToolOutcome.DENIED, told.at)
            tool.output = reason or tool.output
        name = line(told.name, limit=NAME_CHARACTERS)
        self._note("denials", told.at, tool=name, input=input_excerpt(told.input), reason=reason)
        return True

    def _noted(self, told: h.Retried | h.FellBack | h.RateLimited) -> bool:
        if isinstance(told, h.Retried):
            what = {"attempt": told.attempt, "limit": told.limit, "delayMs": told.delay_ms}
            error = name_of(told.error)
            self._note("retries", told.at, **what, status=told.status, error=error)
        elif isinstance(told, h.FellBack):
            models = {"from": name_of(told.model), "to": name_of(told.to_model)}
            self._note("fallbacks", told.at, **models, why=name_of(told.why))
            self.model = told.to_model or self.model
        else:
            limit = {"status": name_of(told.status), "window": name_of(told.window)}
            self._note("rateLimits", told.at, **limit, resetsAt=moment(told.resets_at))
        return True

    def _note(self, kind: str, at: datetime, **what: Any) -> None:
        self.counts[kind] += 1
        self._notes[kind].add({"at": moment(at), **what})

    def _subagent_began(self, told: h.SubagentBegan) -> bool:
        agent = self._subagent.get(told.agent_id)
        news = agent is None
        if agent is None:
            agent = self._subagent[told.agent_id] = Subagent(id=told.agent_id, at=told.at)
            self.counts["subagents"] += 1
            if (dropped := self._subagents.add(agent)) is not None:
                del self._subagent[dropped.id]
        agent.kind = agent.kind or line(told.kind or "", limit=NAME_CHARACTERS)
        agent.tool_id = agent.tool_id or told.tool_id
        agent.description = agent.description or line(told.description, limit=OUTPUT_CHARACTERS)
        return news

    def _subagent_ended(self, told: h.SubagentEnded) -> bool:
        agent = self._subagent.get(told.agent_id)
        if agent is None or agent.ended_at is not None:
            return False
        agent.ended_at = told.at
        return True

    def _query_resulted(self, told: h.Resulted) -> bool:
        self.turns.account(told)
        self._end = End(
            how="completed" if told.completed else "failed",
            reason=name_of(told.reason),
            error="" if told.completed else safe_excerpt(told.error, limit=TEXT_CHARACTERS),
            status=told.status,
        )
        return True

    def _finished(self, told: h.Finished) -> bool:
        if self.ended_at is not None:
            return False
        for tool in self._tools:
            if tool.outcome is ToolOutcome.RUNNING:
                self._end_tool(tool, ToolOutcome.INTERRUPTED, told.at)
        said = self._end or End(how="interrupted")
        self.ended_at = told.at
        self._end = End(
            how=name_of(told.how) or said.how,
            reason=said.reason,
            error=safe_excerpt(told.error, limit=TEXT_CHARACTERS) or said.error,
            status=said.status,
        )
        return True

    def document(self, now: datetime) -> dict[str, Any]:
        """The step as it is kept, seen at a moment; from its end on, always the same."""
        now = self.ended_at or now
        return {
            "step": self.step,
            "sessionId": self.session_id,
            "resumed": self.resumed,
            "model": name_of(self.model),
            "startedAt": moment(self.started_at),
            "endedAt": moment(self.ended_at),
            "durationMs": milliseconds(now - self.started_at),
            "end": self.end.document() if self.end else None,
            "counts": {"turns": self.turns.total, **{name: self.counts[name] for name in _COUNTS}},
            "tokens": tokens_document(self.turns.tokens),
            "costUsd": money(self.cost_usd),
            "turns": [turn.document() for turn in self.turns.kept],
            "tools": [tool.document() for tool in self._tools],
            "todos": self.todos.document(now),
            "subagents": [agent.document() for agent in self._subagents],
            **{name: list(notes) for name, notes in self._notes.items()},
            "leftOut": self._left_out(),
        }

    def _left_out(self) -> dict[str, int]:
        """How many entries each list lacks; lists that are whole are not named."""
        lists: dict[str, Ends[Any] | Todos] = {
            "turns": self.turns.kept,
            "tools": self._tools,
            "todos": self.todos,
            "subagents": self._subagents,
            **self._notes,
        }
        return {name: kept.left_out for name, kept in lists.items() if kept.left_out}
