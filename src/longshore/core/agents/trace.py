"""The trace of an agent's steps: folds events into the document that is stored.

A step's document can be written after any event, so that a killed attempt leaves a trace too.
Nothing here reads a clock or a file. Thinking is never stored; texts are masked excerpts; lists are
bounded, and omitted entries are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, assert_never

from longshore.core.agents import events as h
from longshore.core.agents.events import AgentEvent, ToolOutcome
from longshore.core.agents.todos import Todos
from longshore.core.agents.trace_entries import (
    NAME_CHARACTERS,
    StepEnd,
    TracedSubagent,
    TracedTool,
    round_usd,
    short_name,
    tokens_document,
)
from longshore.core.agents.trace_format import (
    BoundedList,
    format_time,
    input_excerpt,
    input_summary,
    one_line,
    to_milliseconds,
)
from longshore.core.agents.trace_turns import TEXT_CHARACTERS, TurnHistory
from longshore.core.text.sanitise import safe_excerpt

TRACE_VERSION: Final = 1
TRACE_FILE: Final = "traces/session_trace.json"
"""The path of the trace, relative to the attempt's folder."""

OUTPUT_CHARACTERS: Final = 200
MAX_TOOLS: Final = 400
MAX_NOTES: Final = 50
"""The limit for retries, denials, subagents and similar lists."""

_NOTES = ("retries", "fallbacks", "rateLimits", "denials")
_COUNTS = ("tools", "ok", "failed", "denied", "interrupted", "subagents", "retries")


def trace_document(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the trace of an attempt, built from the documents of its steps."""
    return {"version": TRACE_VERSION, "steps": list(steps)}


class StepTrace:
    """The trace of one step.

    Args:
        resumed: Whether an earlier attempt started its session.
    """

    def __init__(
        self, step: str, *, at: datetime, session_id: str | None = None, resumed: bool = False
    ) -> None:
        self.step = one_line(step, limit=NAME_CHARACTERS)
        self.session_id = session_id
        self.resumed = resumed
        self.model: str | None = None
        self.started_at = at
        self.ended_at: datetime | None = None
        self.turns = TurnHistory()
        self.todos = Todos()
        self.counts: Counter[str] = Counter()
        self._started = False
        self._end: StepEnd | None = None
        self._tools: BoundedList[TracedTool] = BoundedList(MAX_TOOLS)
        self._subagents: BoundedList[TracedSubagent] = BoundedList(MAX_NOTES)
        self._notes: dict[str, BoundedList[dict[str, Any]]] = {
            name: BoundedList(MAX_NOTES) for name in _NOTES
        }
        self._tool_by_id: dict[str, TracedTool] = {}
        self._subagent_by_id: dict[str, TracedSubagent] = {}

    def apply(self, event: AgentEvent) -> bool:
        """Apply an event. Returns whether it is new, and not a duplicate."""
        match event:
            case h.SessionStarted():
                return self._session_started(event)
            case h.AnswerReceived():
                return self.turns.add_text(event)
            case h.ToolRequested():
                return self._tool_requested(event)
            case h.ToolStarted():
                return self._tool_started(event)
            case h.ToolFinished():
                return self._tool_finished(event)
            case h.UsageCounted():
                return self.turns.add_usage(event)
            case h.ApiRetried() | h.ModelFallback() | h.RateLimited():
                return self._add_note(event)
            case h.ToolDenied():
                return self._tool_denied(event)
            case h.SubagentStarted():
                return self._subagent_started(event)
            case h.SubagentFinished():
                return self._subagent_finished(event)
            case h.TodoSeen():
                return self.todos.add_seen(event)
            case h.TodoUpdated():
                return self.todos.update(event)
            case h.TodosReplaced():
                return self.todos.replace_all(event)
            case h.QueryFinished():
                return self._query_finished(event)
            case h.StepFinished():
                return self._step_finished(event)
            case _:
                assert_never(event)

    # Queries ------------------------------------------------------------------------------------

    @property
    def end(self) -> StepEnd | None:
        """How the step ended; None while it runs."""
        return self._end if self.ended_at else None

    def tool(self, tool_id: str) -> TracedTool | None:
        """Returns a tool call; None if it is unknown or was omitted."""
        return self._tool_by_id.get(tool_id)

    def has_duplicate(self, tool: TracedTool) -> bool:
        """Whether the same answer requested the same tool more than once."""
        key = (tool.name, tool.turn)
        return sum((other.name, other.turn) == key for other in self._tools) > 1

    @property
    def tools_running(self) -> bool:
        """Whether any tool call is running."""
        ended = ("ok", "failed", "denied", "interrupted")
        return self.counts["tools"] > sum(self.counts[name] for name in ended)

    def subagent(self, agent_id: str) -> TracedSubagent | None:
        """Returns a subagent; None if it is unknown or was omitted."""
        return self._subagent_by_id.get(agent_id)

    def subagent_of(self, tool_id: str | None) -> TracedSubagent | None:
        """Returns the subagent that a tool call started, if any."""
        return next(
            (agent for agent in self._subagents if tool_id and agent.tool_id == tool_id), None
        )

    @property
    def cost_usd(self) -> float | None:
        """The cost of the step; None if unknown."""
        covers_whole_session = self.resumed and not self.turns.has_counts
        return None if covers_whole_session else self.turns.cost_usd

    # Folding ------------------------------------------------------------------------------------

    def _session_started(self, event: h.SessionStarted) -> bool:
        is_new, self._started = not self._started, True
        self.session_id = self.session_id or event.session_id
        self.model = self.model or event.model
        return is_new

    def _tool_requested(self, event: h.ToolRequested) -> bool:
        tool = self._tool_by_id.get(event.tool_id)
        number = self.turns.number_of(event.turn_id, by=tool.at if tool else event.at)
        if tool is None:
            self._add_tool(event, turn=number, parent=event.parent)
            return True
        tool.turn, tool.parent = number, tool.parent or event.parent
        return False

    def _tool_started(self, event: h.ToolStarted) -> bool:
        tool = self._tool_by_id.get(event.tool_id)
        is_new = tool is None
        if tool is None:
            agent = self._subagent_by_id.get(event.agent_id or "")
            parent = agent.tool_id if agent else None
            tool = self._add_tool(event, turn=self.turns.last_number, parent=parent)
        if not tool.started:
            tool.started, tool.at = True, event.at
        return is_new

    def _add_tool(
        self, event: h.ToolRequested | h.ToolStarted, *, turn: int, parent: str | None
    ) -> TracedTool:
        tool = TracedTool(
            id=event.tool_id,
            name=one_line(event.name, limit=NAME_CHARACTERS),
            input=input_excerpt(event.input),
            summary=input_summary(event.input),
            at=event.at,
            turn=turn,
            parent=parent,
        )
        self.counts["tools"] += 1
        self._tool_by_id[tool.id] = tool
        if (dropped := self._tools.add(tool)) is not None:
            del self._tool_by_id[dropped.id]
        return tool

    def _tool_finished(self, event: h.ToolFinished) -> bool:
        tool = self._tool_by_id.get(event.tool_id)
        if tool is None:
            return False
        is_new = tool.outcome is ToolOutcome.RUNNING
        # The last report is what the model received, unless the tool never ran.
        if tool.outcome is not ToolOutcome.DENIED:
            tool.output = safe_excerpt(event.output, limit=OUTPUT_CHARACTERS) or tool.output
        if is_new:
            self._end_tool(tool, event.outcome, event.at, event.duration_ms)
        return is_new

    def _end_tool(
        self, tool: TracedTool, outcome: ToolOutcome, at: datetime, duration_ms: int | None = None
    ) -> None:
        if tool.outcome is not ToolOutcome.RUNNING:
            self.counts[tool.outcome.value] -= 1
        self.counts[outcome.value] += 1
        tool.end(outcome, at, duration_ms)

    def _tool_denied(self, event: h.ToolDenied) -> bool:
        reason = safe_excerpt(event.reason, limit=OUTPUT_CHARACTERS)
        tool = self._tool_by_id.get(event.tool_id)
        if tool is not None:
            if tool.outcome is ToolOutcome.DENIED:
                return False
            # A denial that is reported late was recorded as a failure so far.
            self._end_tool(tool, ToolOutcome.DENIED, event.at)
            tool.output = reason or tool.output
        name = one_line(event.name, limit=NAME_CHARACTERS)
        self._note("denials", event.at, tool=name, input=input_excerpt(event.input), reason=reason)
        return True

    def _add_note(self, event: h.ApiRetried | h.ModelFallback | h.RateLimited) -> bool:
        if isinstance(event, h.ApiRetried):
            fields = {"attempt": event.attempt, "limit": event.limit, "delayMs": event.delay_ms}
            error = short_name(event.error)
            self._note("retries", event.at, **fields, status=event.status, error=error)
        elif isinstance(event, h.ModelFallback):
            models = {"from": short_name(event.model), "to": short_name(event.to_model)}
            self._note("fallbacks", event.at, **models, why=short_name(event.reason))
            self.model = event.to_model or self.model
        else:
            limit = {"status": short_name(event.status), "window": short_name(event.window)}
            self._note("rateLimits", event.at, **limit, resetsAt=format_time(event.resets_at))
        return True

    def _note(self, kind: str, at: datetime, **fields: Any) -> None:
        self.counts[kind] += 1
        self._notes[kind].add({"at": format_time(at), **fields})

    def _subagent_started(self, event: h.SubagentStarted) -> bool:
        agent = self._subagent_by_id.get(event.agent_id)
        is_new = agent is None
        if agent is None:
            agent = self._subagent_by_id[event.agent_id] = TracedSubagent(
                id=event.agent_id, at=event.at
            )
            self.counts["subagents"] += 1
            if (dropped := self._subagents.add(agent)) is not None:
                del self._subagent_by_id[dropped.id]
        agent.kind = agent.kind or one_line(event.kind or "", limit=NAME_CHARACTERS)
        agent.tool_id = agent.tool_id or event.tool_id
        agent.description = agent.description or one_line(
            event.description, limit=OUTPUT_CHARACTERS
        )
        return is_new

    def _subagent_finished(self, event: h.SubagentFinished) -> bool:
        agent = self._subagent_by_id.get(event.agent_id)
        if agent is None or agent.ended_at is not None:
            return False
        agent.ended_at = event.at
        return True

    def _query_finished(self, event: h.QueryFinished) -> bool:
        self.turns.add_query_result(event)
        self._end = StepEnd(
            outcome="completed" if event.completed else "failed",
            reason=short_name(event.reason),
            error="" if event.completed else safe_excerpt(event.error, limit=TEXT_CHARACTERS),
            status=event.status,
        )
        return True

    def _step_finished(self, event: h.StepFinished) -> bool:
        if self.ended_at is not None:
            return False
        for tool in self._tools:
            if tool.outcome is ToolOutcome.RUNNING:
                self._end_tool(tool, ToolOutcome.INTERRUPTED, event.at)
        reported = self._end or StepEnd(outcome="interrupted")
        self.ended_at = event.at
        self._end = StepEnd(
            outcome=short_name(event.outcome) or reported.outcome,
            reason=reported.reason,
            error=safe_excerpt(event.error, limit=TEXT_CHARACTERS) or reported.error,
            status=reported.status,
        )
        return True

    def document(self, now: datetime) -> dict[str, Any]:
        """Returns the document of the step at ``now``; it does not change after the step's end."""
        now = self.ended_at or now
        return {
            "step": self.step,
            "sessionId": self.session_id,
            "resumed": self.resumed,
            "model": short_name(self.model),
            "startedAt": format_time(self.started_at),
            "endedAt": format_time(self.ended_at),
            "durationMs": to_milliseconds(now - self.started_at),
            "end": self.end.document() if self.end else None,
            "counts": {"turns": self.turns.total, **{name: self.counts[name] for name in _COUNTS}},
            "tokens": tokens_document(self.turns.tokens),
            "costUsd": round_usd(self.cost_usd),
            "turns": [turn.document() for turn in self.turns.items],
            "tools": [tool.document() for tool in self._tools],
            "todos": self.todos.document(now),
            "subagents": [agent.document() for agent in self._subagents],
            **{name: list(notes) for name, notes in self._notes.items()},
            "leftOut": self._omitted(),
        }

    def _omitted(self) -> dict[str, int]:
        """Returns the number of omitted entries of each list that is incomplete."""
        lists: dict[str, BoundedList[Any] | Todos] = {
            "turns": self.turns.items,
            "tools": self._tools,
            "todos": self.todos,
            "subagents": self._subagents,
            **self._notes,
        }
        return {name: entries.omitted for name, entries in lists.items() if entries.omitted}
