"""The trace of an agent's steps: folds events into the document that is stored.

A step's document can be written after any event, so that a killed attempt leaves a trace too.
Nothing here reads a clock or a file. Thinking is never stored; texts are masked excerpts, because
an agent's input and output can be of any kind and length; lists keep their start and end, and
omitted entries are counted.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from longshore.core.agents import events
from longshore.core.agents.events import AgentEvent, TodoState, ToolOutcome
from longshore.core.agents.prices import TokenCounts
from longshore.core.text.sanitise import mask_mapping, safe_excerpt

TRACE_VERSION: Final = 1
TRACE_FILE: Final = "traces/session_trace.json"
"""The path of the trace, relative to the attempt's folder."""

MAX_TURNS: Final = 200
MAX_TOOLS: Final = 400
MAX_TODOS: Final = 100
MAX_NOTES: Final = 50
"""The limit for retries, denials, subagents and similar lists."""

EXCERPT_CHARACTERS: Final = 200
SUMMARY_CHARACTERS: Final = 100
TEXT_CHARACTERS: Final = 500

# The limit of a value within an input: more than is ever shown of the whole input.
_VALUE_CHARACTERS = 400
_VALUE_ENTRIES = 50
_VALUE_DEPTH = 6
# The most informative fields of an input, by priority: the file before its content.
_SUMMARY_FIELDS = (
    *("command", "file_path", "notebook_path", "path", "pattern"),
    *("url", "query", "subject", "description", "prompt"),
)
# Usage events without a turn yet: they arrive shortly before or after their turn.
_MAX_UNMATCHED_USAGE = 50
_MONEY_DIGITS = 6
_NOTES = ("retries", "fallbacks", "rateLimits", "denials")
_ENDED = ("ok", "failed", "denied", "interrupted")
_COUNTS = ("tools", *_ENDED, "subagents", "retries")
_MILLISECOND = timedelta(milliseconds=1)

ItemT = TypeVar("ItemT")


def format_time(moment: datetime | None) -> str | None:
    """Returns a UTC time in ISO format with milliseconds."""
    if moment is None:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_milliseconds(duration: timedelta) -> int:
    """Returns the duration in milliseconds; 0 if the clock was set back."""
    return max(duration // _MILLISECOND, 0)


def one_line(text: str, *, limit: int = EXCERPT_CHARACTERS) -> str:
    """Returns a masked excerpt of a text on one line."""
    return safe_excerpt(" ".join(text.split()), limit=limit)


def input_excerpt(value: Any, *, limit: int = EXCERPT_CHARACTERS) -> str:
    """Returns a tool's input as JSON, masked and truncated."""
    masked = mask_mapping(_shorten(value, 0))
    text = json.dumps(masked, ensure_ascii=False, default=str)
    return safe_excerpt(text, limit=limit)


def input_summary(value: Any) -> str:
    """Returns the most informative part of a tool's input: the command, the file, the URL."""
    if not isinstance(value, Mapping):
        return "" if value is None else one_line(str(value), limit=SUMMARY_CHARACTERS)
    # Masked by field name first, so that the summary cannot be a secret.
    masked = mask_mapping(_shorten(value, 0))
    for name in _SUMMARY_FIELDS:
        if isinstance(value := masked.get(name), str) and value:
            return one_line(value, limit=SUMMARY_CHARACTERS)
    words = [str(value) for value in masked.values() if isinstance(value, str | int | float)]
    return one_line(" ".join(words), limit=SUMMARY_CHARACTERS)


def _shorten(value: Any, depth: int) -> Any:
    """Returns a value of limited size and depth."""
    if isinstance(value, str):
        return safe_excerpt(value, limit=_VALUE_CHARACTERS)
    if depth >= _VALUE_DEPTH and isinstance(value, Mapping | list | tuple):
        return "…"
    if isinstance(value, Mapping):
        entries = list(value.items())[:_VALUE_ENTRIES]
        return {str(name): _shorten(item, depth + 1) for name, item in entries}
    if isinstance(value, list | tuple):
        return [_shorten(item, depth + 1) for item in value[:_VALUE_ENTRIES]]
    return value


class BoundedList(Generic[ItemT]):
    """A list with a limit: keeps its start and end, and counts the omitted items between."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: dict[str | int, ItemT] = {}
        self.omitted = 0

    def add(self, item: ItemT, item_id: str | None = None) -> None:
        """Add an item, with an id by which ``get`` finds it."""
        self._items[len(self._items) + self.omitted if item_id is None else item_id] = item
        if len(self._items) > self._limit:
            del self._items[next(islice(self._items, self._limit // 2, None))]
            self.omitted += 1

    def get(self, item_id: str | None) -> ItemT | None:
        """Returns the item; None if it is unknown or was omitted."""
        return None if item_id is None else self._items.get(item_id)

    def __iter__(self) -> Iterator[ItemT]:
        return iter(self._items.values())


@dataclass(slots=True, kw_only=True)
class TracedTurn:
    """One answer of the model."""

    number: int
    at: datetime
    model: str | None
    text: str = ""
    error: str | None  # the API's error, in place of an answer
    parent: str | None  # the tool call of the subagent that answered
    tokens: TokenCounts | None = None
    cost_usd: float | None = None  # None: not measured

    def matches_usage(self, event: events.UsageCounted) -> bool:
        """Whether the usage belongs to this turn: the turn has none yet, and the same input."""
        if self.cost_usd is not None or self.error is not None:
            return False
        return self.tokens is not None and self.tokens.input_counts == event.tokens.input_counts


@dataclass(slots=True, kw_only=True)
class TracedTool:
    """One tool call."""

    id: str
    name: str
    input: str
    summary: str
    started_at: datetime
    turn: int  # the number of the turn that requested it; 0: unknown
    parent: str | None
    outcome: ToolOutcome = ToolOutcome.RUNNING
    output: str = ""
    duration_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class TracedSubagent:
    """One subagent."""

    id: str
    kind: str = ""
    tool: str | None = None  # the tool call that started it
    description: str = ""
    started_at: datetime
    ended_at: datetime | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """How a step ended."""

    how: str
    reason: str | None = None
    error: str | None = None
    api_status: int | None = None


def _document(entry: Any) -> dict[str, Any]:
    """Returns the fields of an entry as they are stored, with names in camel case."""
    document = {}
    for field_ in fields(entry):
        first, *rest = field_.name.split("_")
        name = first + "".join(word.capitalize() for word in rest)
        document[name] = _json_value(getattr(entry, field_.name))
    return document


def _json_value(value: Any) -> Any:
    match value:
        case datetime():
            return format_time(value)
        case TokenCounts():
            return {
                "input": value.input,
                "output": value.output,
                "cacheRead": value.cache_read,
                "cacheCreation": value.cache_creation,
                "cacheEfficiency": value.cache_efficiency,
            }
        case float():
            return round(value, _MONEY_DIGITS)  # without floating-point noise
        case _:
            return value


def short_name(text: str | None) -> str | None:
    """Returns an external text as one short line."""
    return None if text is None else one_line(text)


@dataclass(slots=True)
class Todo:
    """One item in its current state."""

    id: str
    subject: str
    state: TodoState
    created_at: datetime
    since: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    time_by_state: dict[TodoState, timedelta] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state is TodoState.IN_PROGRESS:
            self.started_at = self.started_at or self.since
        self.completed_at = self.since if self.state is TodoState.COMPLETED else None

    def move(self, state: TodoState, at: datetime) -> bool:
        """Change the state. Returns whether it was a different one."""
        if state is self.state:
            return False
        self.time_by_state[self.state] = self.time_in(self.state, at)
        self.state, self.since = state, at
        self.__post_init__()
        return True

    def time_in(self, state: TodoState, now: datetime) -> timedelta:
        """Returns the total time in a state."""
        before = self.time_by_state.get(state, timedelta())
        return before + max(now - self.since, timedelta()) if state is self.state else before


class Todos:
    """The agent's todo list: the state of each item, and the time spent in each state.

    Agents maintain the list in one of two ways: item by item, each with an id, or as a whole list
    that is replaced each time. An item can also return to an earlier state or be deleted; the time
    in a state is the sum over all visits.
    """

    def __init__(self) -> None:
        self._items: dict[str, Todo] = {}
        self.omitted = 0

    def __iter__(self) -> Iterator[Todo]:
        return iter(self._items.values())

    def get(self, todo_id: str) -> Todo | None:
        """Returns an item by its id; None if there is none."""
        return self._items.get(todo_id)

    @property
    def progress(self) -> tuple[int, int]:
        """The number of completed items, and of all that were not deleted."""
        states = Counter(item.state for item in self)
        return states[TodoState.COMPLETED], states.total() - states[TodoState.DELETED]

    def add_seen(self, event: events.TodoSeen) -> bool:
        """Add an item. Returns whether it is new."""
        if (item := self._items.get(event.todo_id)) is None:
            return self._add(event.todo_id, event.subject, event.state, event.at)
        item.subject = item.subject or one_line(event.subject)
        return False

    def update(self, event: events.TodoUpdated) -> bool:
        """Update an item. Returns whether its state changed."""
        state = event.state
        if (item := self._items.get(event.todo_id)) is None:
            return self._add(event.todo_id, event.subject, state or TodoState.PENDING, event.at)
        item.subject = one_line(event.subject) or item.subject
        return state is not None and item.move(state, event.at)

    def replace_all(self, event: events.TodosReplaced) -> bool:
        """Replace the whole list. Returns whether any item is new or changed its state."""
        changed = False
        occurrences: Counter[str] = Counter()
        listed_ids: set[str] = set()
        for content, state in event.items:
            # Two items may have the same text.
            occurrences[content] += 1
            todo_id = f"{content}#{occurrences[content]}"
            listed_ids.add(todo_id)
            if item := self._items.get(todo_id):
                changed |= item.move(state, event.at)
            else:
                changed |= self._add(todo_id, content, state, event.at)
        for item in self:
            if item.id not in listed_ids:
                changed |= item.move(TodoState.DELETED, event.at)
        return changed

    def _add(self, todo_id: str, subject: str, state: TodoState, at: datetime) -> bool:
        if len(self._items) >= MAX_TODOS:
            self.omitted += 1
            return False
        self._items[todo_id] = Todo(todo_id, one_line(subject), state, at, at)
        return True

    def document(self, now: datetime) -> list[dict[str, Any]]:
        """Returns all items in the order of their creation."""
        return [
            {
                "number": number,
                "subject": item.subject,
                "state": item.state.value,
                "createdAt": format_time(item.created_at),
                "startedAt": format_time(item.started_at),
                "completedAt": format_time(item.completed_at),
                "pendingMs": to_milliseconds(item.time_in(TodoState.PENDING, now)),
                "inProgressMs": to_milliseconds(item.time_in(TodoState.IN_PROGRESS, now)),
            }
            for number, item in enumerate(self, 1)
        ]


class TurnHistory:
    """The model's answers in a step, with their tokens and cost.

    The gateway measures the usage: the SDK reports a resumed session's usage for the whole session,
    and a streaming answer's usage only in part.
    """

    def __init__(self) -> None:
        self.items: BoundedList[TracedTurn] = BoundedList(MAX_TURNS)
        self.total = 0  # without API errors
        self.last_number = 0
        self._unmatched: deque[events.UsageCounted] = deque(maxlen=_MAX_UNMATCHED_USAGE)
        self.tokens = TokenCounts()
        self.cost_usd: float | None = None  # None: no usage was measured

    def number_of(self, turn_id: str | None, *, by: datetime) -> int:
        """Returns the number of a turn that existed at ``by``; the last number if it is unknown."""
        if (turn := self.items.get(turn_id)) is None:
            return self.last_number
        # A subagent's tool call may be reported before the answer that requested it.
        turn.at = min(turn.at, by)
        return turn.number

    def add_text(self, event: events.AnswerReceived) -> bool:
        """Add a part of an answer. Returns whether it contains text."""
        turn = self.items.get(event.turn_id) or self._add_turn(event)
        if event.tokens is not None and turn.cost_usd is None:
            turn.tokens = event.tokens
            self._match_usage(turn)
        if not event.text:
            return False
        joined = f"{turn.text}\n{event.text}" if turn.text else event.text
        turn.text = safe_excerpt(joined, limit=TEXT_CHARACTERS)
        return True

    def _add_turn(self, event: events.AnswerReceived) -> TracedTurn:
        self.last_number += 1
        self.total += event.error is None
        turn = TracedTurn(
            number=self.last_number,
            at=event.at,
            model=short_name(event.model),
            parent=event.parent,
            error=short_name(event.error),
        )
        self.items.add(turn, event.turn_id)
        return turn

    def _match_usage(self, turn: TracedTurn) -> None:
        event = next((event for event in self._unmatched if turn.matches_usage(event)), None)
        if event is not None:
            self._unmatched.remove(event)
            turn.tokens, turn.cost_usd = event.tokens, event.cost_usd

    def add_usage(self, event: events.UsageCounted) -> bool:
        """Add the usage of an answer, which may arrive before or after the answer itself."""
        self.tokens += event.tokens
        self.cost_usd = (self.cost_usd or 0) + event.cost_usd
        turn = next((turn for turn in self.items if turn.matches_usage(event)), None)
        if turn is None:
            self._unmatched.append(event)
        else:
            turn.tokens, turn.cost_usd = event.tokens, event.cost_usd
        return True


class StepTrace:
    """The trace of one step.

    Args:
        resumed: Whether an earlier attempt started its session.
    """

    def __init__(
        self, step: str, *, at: datetime, session_id: str | None = None, resumed: bool = False
    ) -> None:
        self.step = one_line(step)
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
        self.tools: BoundedList[TracedTool] = BoundedList(MAX_TOOLS)
        self._started_tools: set[str] = set()
        self.subagents: BoundedList[TracedSubagent] = BoundedList(MAX_NOTES)
        self._notes: dict[str, BoundedList[dict[str, Any]]] = {
            name: BoundedList(MAX_NOTES) for name in _NOTES
        }

    def apply(self, event: AgentEvent) -> bool:
        """Apply an event. Returns whether it is new, and not a duplicate."""
        return _FOLDS[type(event)](self, event)

    # Queries ------------------------------------------------------------------------------------

    @property
    def end(self) -> StepEnd | None:
        """How the step ended; None while it runs."""
        return self._end if self.ended_at else None

    def has_duplicate(self, tool: TracedTool) -> bool:
        """Whether the same answer requested the same tool more than once."""
        key = (tool.name, tool.turn)
        return sum((other.name, other.turn) == key for other in self.tools) > 1

    @property
    def tools_running(self) -> bool:
        """Whether any tool call is running."""
        return self.counts["tools"] > sum(self.counts[name] for name in _ENDED)

    def subagent_of(self, tool_id: str | None) -> TracedSubagent | None:
        """Returns the subagent that a tool call started, if any."""
        return next((agent for agent in self.subagents if tool_id and agent.tool == tool_id), None)

    # Folding ------------------------------------------------------------------------------------

    def _session_started(self, event: events.SessionStarted) -> bool:
        is_new, self._started = not self._started, True
        self.session_id = self.session_id or event.session_id
        self.model = self.model or event.model
        return is_new

    def _tool_requested(self, event: events.ToolRequested) -> bool:
        tool = self.tools.get(event.tool_id)
        number = self.turns.number_of(event.turn_id, by=tool.started_at if tool else event.at)
        if tool is None:
            self._add_tool(event, turn=number, parent=event.parent)
            return True
        tool.turn, tool.parent = number, tool.parent or event.parent
        return False

    def _tool_started(self, event: events.ToolStarted) -> bool:
        tool = self.tools.get(event.tool_id)
        is_new = tool is None
        if tool is None:
            agent = self.subagents.get(event.agent_id)
            parent = agent.tool if agent else None
            tool = self._add_tool(event, turn=self.turns.last_number, parent=parent)
        if tool.id not in self._started_tools:
            self._started_tools.add(tool.id)
            tool.started_at = event.at
        return is_new

    def _add_tool(
        self, event: events.ToolRequested | events.ToolStarted, *, turn: int, parent: str | None
    ) -> TracedTool:
        tool = TracedTool(
            id=event.tool_id,
            name=one_line(event.name),
            input=input_excerpt(event.input),
            summary=input_summary(event.input),
            started_at=event.at,
            turn=turn,
            parent=parent,
        )
        self.counts["tools"] += 1
        self.tools.add(tool, tool.id)
        return tool

    def _tool_finished(self, event: events.ToolFinished) -> bool:
        tool = self.tools.get(event.tool_id)
        if tool is None:
            return False
        is_new = tool.outcome is ToolOutcome.RUNNING
        # The last report is what the model received, unless the tool never ran.
        if tool.outcome is not ToolOutcome.DENIED:
            tool.output = safe_excerpt(event.output, limit=EXCERPT_CHARACTERS) or tool.output
        if is_new:
            self._end_tool(tool, event.outcome, event.at, event.duration_ms)
        return is_new

    def _end_tool(
        self, tool: TracedTool, outcome: ToolOutcome, at: datetime, duration_ms: int | None = None
    ) -> None:
        if tool.outcome is not ToolOutcome.RUNNING:
            self.counts[tool.outcome.value] -= 1
        self.counts[outcome.value] += 1
        tool.outcome = outcome
        if outcome is ToolOutcome.DENIED:
            tool.duration_ms = None
        elif duration_ms is not None:
            tool.duration_ms = duration_ms
        elif tool.id in self._started_tools:
            tool.duration_ms = to_milliseconds(at - tool.started_at)

    def _tool_denied(self, event: events.ToolDenied) -> bool:
        reason = safe_excerpt(event.reason, limit=EXCERPT_CHARACTERS)
        tool = self.tools.get(event.tool_id)
        if tool is not None:
            if tool.outcome is ToolOutcome.DENIED:
                return False
            # A denial that is reported late was recorded as a failure so far.
            self._end_tool(tool, ToolOutcome.DENIED, event.at)
            tool.output = reason or tool.output
        denied = {"tool": one_line(event.name), "input": input_excerpt(event.input)}
        self._note("denials", at=format_time(event.at), **denied, reason=reason)
        return True

    def _add_note(self, event: events.ApiEvent) -> bool:
        match event:
            case events.ApiRetried():
                self._note("retries", **_document(replace(event, error=short_name(event.error))))
            case events.RateLimited(status=status, window=window):
                event = replace(event, status=one_line(status), window=short_name(window))
                self._note("rateLimits", **_document(event))
            case _:
                models = {"from": short_name(event.model), "to": short_name(event.to_model)}
                at, why = format_time(event.at), short_name(event.reason)
                self._note("fallbacks", at=at, **models, why=why)
                self.model = event.to_model or self.model
        return True

    def _note(self, kind: str, **content: Any) -> None:
        self.counts[kind] += 1
        self._notes[kind].add(content)

    def _subagent_started(self, event: events.SubagentStarted) -> bool:
        agent = self.subagents.get(event.agent_id)
        is_new = agent is None
        if agent is None:
            agent = TracedSubagent(id=event.agent_id, started_at=event.at)
            self.subagents.add(agent, agent.id)
            self.counts["subagents"] += 1
        agent.kind = agent.kind or one_line(event.kind or "")
        agent.tool = agent.tool or event.tool_id
        agent.description = agent.description or one_line(event.description)
        return is_new

    def _subagent_finished(self, event: events.SubagentFinished) -> bool:
        agent = self.subagents.get(event.agent_id)
        if agent is None or agent.ended_at is not None:
            return False
        agent.ended_at = event.at
        agent.duration_ms = to_milliseconds(event.at - agent.started_at)
        return True

    def _query_finished(self, event: events.QueryFinished) -> bool:
        error = "" if event.completed else safe_excerpt(event.error, limit=TEXT_CHARACTERS)
        self._end = StepEnd(
            how="completed" if event.completed else "failed",
            reason=short_name(event.reason),
            error=error or None,
            api_status=event.status,
        )
        return True

    def _step_finished(self, event: events.StepFinished) -> bool:
        if self.ended_at is not None:
            return False
        for tool in self.tools:
            if tool.outcome is ToolOutcome.RUNNING:
                self._end_tool(tool, ToolOutcome.INTERRUPTED, event.at)
        reported = self._end or StepEnd(how="interrupted")
        self.ended_at = event.at
        self._end = replace(
            reported,
            how=short_name(event.outcome) or reported.how,
            error=safe_excerpt(event.error, limit=TEXT_CHARACTERS) or reported.error,
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
            "end": _document(self.end) if self.end else None,
            "counts": {"turns": self.turns.total, **{name: self.counts[name] for name in _COUNTS}},
            "tokens": _json_value(self.turns.tokens),
            "costUsd": _json_value(self.turns.cost_usd),
            "turns": list(map(_document, self.turns.items)),
            "tools": list(map(_document, self.tools)),
            "todos": self.todos.document(now),
            "subagents": list(map(_document, self.subagents)),
            **{name: list(notes) for name, notes in self._notes.items()},
            "leftOut": self._omitted(),
        }

    def _omitted(self) -> dict[str, int]:
        """Returns the number of omitted entries of each list that is incomplete."""
        lists: dict[str, BoundedList[Any] | Todos] = {
            "turns": self.turns.items,
            "tools": self.tools,
            "todos": self.todos,
            "subagents": self.subagents,
            **self._notes,
        }
        return {name: entries.omitted for name, entries in lists.items() if entries.omitted}


_FOLDS: dict[type[AgentEvent], Callable[[StepTrace, Any], bool]] = {
    events.SessionStarted: StepTrace._session_started,
    events.AnswerReceived: lambda trace, event: trace.turns.add_text(event),
    events.ToolRequested: StepTrace._tool_requested,
    events.ToolStarted: StepTrace._tool_started,
    events.ToolFinished: StepTrace._tool_finished,
    events.UsageCounted: lambda trace, event: trace.turns.add_usage(event),
    events.ApiRetried: StepTrace._add_note,
    events.ModelFallback: StepTrace._add_note,
    events.RateLimited: StepTrace._add_note,
    events.ToolDenied: StepTrace._tool_denied,
    events.SubagentStarted: StepTrace._subagent_started,
    events.SubagentFinished: StepTrace._subagent_finished,
    events.TodoSeen: lambda trace, event: trace.todos.add_seen(event),
    events.TodoUpdated: lambda trace, event: trace.todos.update(event),
    events.TodosReplaced: lambda trace, event: trace.todos.replace_all(event),
    events.QueryFinished: StepTrace._query_finished,
    events.StepFinished: StepTrace._step_finished,
}
"""How each event changes the trace. Returns whether the event is new."""
