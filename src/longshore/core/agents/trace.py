"""The trace of an agent's step, for the stored document and the log.

The methods of ``StepTrace`` record what happened, independent of the agent SDK, and return the log
line for it; so a new version of the SDK changes only ``sdk_events``. A hook and a message may
report the same fact twice, in any order: ids identify the duplicates, which have no line.

A step's document can be written at any time, so that a killed attempt leaves a trace too. Nothing
here reads a clock or a file. Thinking is never stored; texts are masked excerpts, because an
agent's input and output can be of any kind and length; lists keep their start and end, and omitted
entries are counted. Log lines are plain text without terminal control sequences, also if the agent
wrote some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from longshore.core.agents.prices import TokenCounts
from longshore.core.agents.trace_text import (
    COUNTS,
    EXCERPT_CHARACTERS,
    PROBLEMS,
    counts_text,
    format_elapsed,
    format_time,
    format_usd,
    input_excerpt,
    input_summary,
    one_line,
    to_milliseconds,
    tokens_text,
)
from longshore.core.agents.transcripts import RESULT_TOOL
from longshore.core.events.codec import camel_case
from longshore.core.text.sanitise import safe_excerpt

TRACE_VERSION: Final = 1
TRACE_FILE: Final = "traces/session_trace.json"
"""The path of the trace, relative to the attempt's folder."""

MAX_TURNS: Final = 200
MAX_TOOLS: Final = 400
MAX_TODOS: Final = 100
MAX_NOTES: Final = 50
"""The limit for subagents, and for retries and similar notes."""

TEXT_CHARACTERS: Final = 500
_ANSWER_CHARACTERS = 2_000
_SESSION_CHARACTERS = 8
_MONEY_DIGITS = 6
# The todo tools and those that start a subagent: the todos and the subagent are logged instead.
_UNLOGGED_TOOLS = frozenset({"TaskCreate", "TaskUpdate", "TaskList", "TaskGet", "Agent", "Task"})
_ENDED = ("ok", *PROBLEMS)

ItemT = TypeVar("ItemT")


class ToolOutcome(StrEnum):
    """The outcome of a tool call; ``running`` until it has one."""

    RUNNING = "running"
    OK = "ok"
    FAILED = "failed"
    DENIED = "denied"  # it never ran
    INTERRUPTED = "interrupted"  # whether it took effect is unknown


class TodoState(StrEnum):
    """The state of an item of the agent's todo list."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    DELETED = "deleted"


_TOOL_VERBS = {
    ToolOutcome.FAILED: "failed",
    ToolOutcome.DENIED: "was denied",
    ToolOutcome.INTERRUPTED: "was interrupted",
}
_TODO_VERBS = {
    TodoState.PENDING: "todo",
    TodoState.IN_PROGRESS: "todo started",
    TodoState.DELETED: "todo deleted",
}


class ToolCall(NamedTuple):
    """A tool call as the model requested it."""

    id: str
    name: str
    input: Any = None


class BoundedList(Generic[ItemT]):
    """A list with a limit: keeps its start and end, and counts the omitted items between."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: dict[str | int, ItemT] = {}
        self.omitted = 0

    @property
    def total(self) -> int:
        """The number of all items, including omitted ones."""
        return len(self._items) + self.omitted

    def add(self, item: ItemT, item_id: str | None = None) -> None:
        """Add an item, with an id by which ``get`` finds it."""
        self._items[self.total if item_id is None else item_id] = item
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
    tokens: TokenCounts | None = None  # None: not measured
    cost_usd: float | None = None


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
    kind: str
    tool: str | None  # the tool call that started it
    description: str
    started_at: datetime
    ended_at: datetime | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedNote:
    """A retry, or a change of the model or the rate limit."""

    at: datetime
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """How a step ended."""

    how: str
    reason: str | None = None
    error: str | None = None
    api_status: int | None = None


_INTERRUPTED = StepEnd(how="interrupted")


def _short(text: str | None) -> str | None:
    """Returns an external text as one short line."""
    return None if text is None else one_line(text)


@dataclass(slots=True, kw_only=True)
class TracedTodo:
    """One item of the agent's todo list, which can return to an earlier state or be deleted.

    The time in a state is the sum over all visits.
    """

    number: int
    subject: str = ""
    state: TodoState = TodoState.PENDING
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    _since: datetime = field(init=False)
    _time_by_state: dict[TodoState, timedelta] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._since = self.created_at

    def move(self, state: TodoState, at: datetime) -> bool:
        """Change the state. Returns whether it was a different one."""
        if state is self.state:
            return False
        self._time_by_state[self.state] = self.time_in(self.state, at)
        self.state, self._since = state, at
        if state is TodoState.IN_PROGRESS:
            self.started_at = self.started_at or at
        self.completed_at = at if state is TodoState.COMPLETED else None
        return True

    def time_in(self, state: TodoState, now: datetime) -> timedelta:
        """Returns the total time in a state."""
        before = self._time_by_state.get(state, timedelta())
        return before + max(now - self._since, timedelta()) if state is self.state else before

    def document(self, now: datetime) -> dict[str, Any]:
        """Returns the item as it is stored."""
        return {
            **_document(self),
            "pendingMs": to_milliseconds(self.time_in(TodoState.PENDING, now)),
            "inProgressMs": to_milliseconds(self.time_in(TodoState.IN_PROGRESS, now)),
        }


def _stored_fields(entry: Any) -> dict[str, Any]:
    """Returns the values of the fields that are stored, with names in camel case."""
    names = (field_.name for field_ in fields(entry) if not field_.name.startswith("_"))
    return {camel_case(name): getattr(entry, name) for name in names}


def _document(entry: Any) -> dict[str, Any]:
    return {name: _json_value(value) for name, value in _stored_fields(entry).items()}


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
        case BoundedList():
            return [_json_value(item) for item in value]
        case dict():
            return dict(value)  # it may change after this
        case _:
            return _document(value) if is_dataclass(value) else value


@dataclass(slots=True, eq=False)
class StepTrace:
    """The trace of one step; all fields but private ones are stored.

    Every method that records something returns its log line; None if it has none. A line starts
    with the step, and the kind of the subagent if there is one.

    Args:
        resumed: Whether an earlier attempt started its session.
    """

    step: str
    _: KW_ONLY
    session_id: str | None = None
    resumed: bool = False
    model: str | None = None
    started_at: datetime
    ended_at: datetime | None = None
    end: StepEnd | None = None  # None while the step runs
    # ``turns`` without API errors
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTS, 0)))
    tokens: TokenCounts = field(default_factory=TokenCounts)
    cost_usd: float | None = None  # None: no usage was measured
    turns: BoundedList[TracedTurn] = field(default_factory=lambda: BoundedList(MAX_TURNS))
    tools: BoundedList[TracedTool] = field(default_factory=lambda: BoundedList(MAX_TOOLS))
    todos: BoundedList[TracedTodo] = field(default_factory=lambda: BoundedList(MAX_TODOS))
    subagents: BoundedList[TracedSubagent] = field(default_factory=lambda: BoundedList(MAX_NOTES))
    notes: BoundedList[TracedNote] = field(default_factory=lambda: BoundedList(MAX_NOTES))
    _measured: BoundedList[tuple[TokenCounts, float]] = field(
        default_factory=lambda: BoundedList(MAX_NOTES)
    )
    _started_tools: set[str] = field(default_factory=set)
    _started: bool = False
    _reported_end: StepEnd = _INTERRUPTED

    def __post_init__(self) -> None:
        self.step = one_line(self.step)

    @property
    def tools_running(self) -> bool:
        """Whether any tool call is running."""
        return self.counts["tools"] > sum(self.counts[name] for name in _ENDED)

    def _line(self, text: str, parent: str | None = None) -> str | None:
        """Returns the log line of a text; None without one.

        Args:
            parent: The tool call of the subagent that the text is about.
        """
        agents = (agent for agent in self.subagents if parent and agent.tool == parent)
        agent = next(agents, None)
        prefix = f"{self.step}/{agent.kind or 'subagent'}" if agent else self.step
        return f"{prefix}: {text}" if text else None

    # Sessions and answers -----------------------------------------------------------------------

    def session_started(
        self, session_id: str | None = None, model: str | None = None
    ) -> str | None:
        """A session started or was resumed; reported once for each query."""
        is_new, self._started = not self._started, True
        self.session_id = self.session_id or session_id
        self.model = self.model or _short(model)
        verb = "resumed" if self.resumed else "started"
        with_model = f" with {self.model}" if self.model else ""
        session = f", session {self.session_id[:_SESSION_CHARACTERS]}" if self.session_id else ""
        return self._line(f"{verb}{with_model}{session}") if is_new else None

    def answer_received(
        self,
        at: datetime,
        turn_id: str,
        text: str = "",
        *,
        model: str | None = None,
        parent: str | None = None,
        error: str | None = None,
    ) -> str | None:
        """A part of an answer of the model arrived, which may arrive in several parts.

        Args:
            parent: The tool call of the subagent that answered.
            error: The API's error, in place of an answer.
        """
        turn = self.turns.get(turn_id)
        if turn is None:
            number = self.turns.total + 1
            turn = TracedTurn(
                number=number, at=at, model=_short(model), parent=parent, error=_short(error)
            )
            if measured := self._measured.get(turn_id):
                turn.tokens, turn.cost_usd = measured
            self.turns.add(turn, turn_id)
            self.counts["turns"] += error is None
        if not text:
            return None
        joined = f"{turn.text}\n{text}" if turn.text else text
        turn.text = safe_excerpt(joined, limit=TEXT_CHARACTERS)
        excerpt = safe_excerpt(text.strip(), limit=_ANSWER_CHARACTERS).replace("\n", "\n  ")
        return self._line(f"the API failed ({error}): {excerpt}" if error else excerpt, parent)

    def usage_measured(self, turn_id: str | None, tokens: TokenCounts, cost_usd: float) -> None:
        """The gateway measured the usage of an answer, which may arrive before or after it.

        The SDK's own figures are not used: it reports a resumed session's usage for the whole
        session, and a streaming answer's usage only in part.
        """
        self.tokens += tokens
        self.cost_usd = (self.cost_usd or 0) + cost_usd
        self._measured.add((tokens, cost_usd), turn_id)
        if turn := self.turns.get(turn_id):
            turn.tokens, turn.cost_usd = tokens, cost_usd

    # Tools --------------------------------------------------------------------------------------

    def tool_requested(
        self, at: datetime, call: ToolCall, *, turn_id: str | None = None, parent: str | None = None
    ) -> str | None:
        """The model requested a tool call, which may wait for others."""
        tool, line = self._entry_of(call, at, parent)
        turn = self.turns.get(turn_id)
        if turn:
            # A subagent's tool call may be reported before the answer that requested it.
            turn.at = min(turn.at, tool.started_at)
        tool.turn = turn.number if turn else self.turns.total
        tool.parent = tool.parent or parent
        return line

    def tool_started(
        self, at: datetime, call: ToolCall, *, agent_id: str | None = None
    ) -> str | None:
        """A tool call is about to run or to be denied."""
        agent = self.subagents.get(agent_id)
        tool, line = self._entry_of(call, at, agent.tool if agent else None)
        if tool.id not in self._started_tools:
            self._started_tools.add(tool.id)
            tool.started_at = at
        return line

    def _entry_of(
        self, call: ToolCall, at: datetime, parent: str | None = None
    ) -> tuple[TracedTool, str | None]:
        """Returns the entry of a tool call, and the log line of its request if it is new."""
        if tool := self.tools.get(call.id):
            return tool, None
        tool = TracedTool(
            id=call.id,
            name=one_line(call.name),
            input=input_excerpt(call.input),
            summary=input_summary(call.input),
            started_at=at,
            turn=self.turns.total,
            parent=parent,
        )
        self.counts["tools"] += 1
        self.tools.add(tool, call.id)
        if tool.name in _UNLOGGED_TOOLS:
            return tool, None
        text = f"{tool.name}: {tool.summary}" if tool.summary else tool.name
        if tool.name == RESULT_TOOL:
            # A reviewer looks here first.
            text = f"returned its result: {input_excerpt(call.input, limit=_ANSWER_CHARACTERS)}"
        return tool, self._line(text, parent)

    def tool_finished(
        self,
        at: datetime,
        tool_id: str,
        outcome: ToolOutcome,
        output: str = "",
        *,
        duration_ms: int | None = None,
    ) -> str | None:
        """A tool call succeeded, failed or was denied.

        Args:
            duration_ms: None: it is measured here.
        """
        if (tool := self.tools.get(tool_id)) is None:
            return None
        # The last report is what the model received, unless the tool never ran.
        if tool.outcome is not ToolOutcome.DENIED:
            tool.output = safe_excerpt(output, limit=EXCERPT_CHARACTERS) or tool.output
        if tool.outcome is not ToolOutcome.RUNNING:
            return None
        self._end_tool(tool, outcome, at, duration_ms)
        return self._end_line(tool)

    def tool_denied(self, at: datetime, call: ToolCall, reason: str = "") -> str | None:
        """A tool call was denied, which may be known already."""
        tool, _ = self._entry_of(call, at)
        if tool.outcome is ToolOutcome.DENIED:
            return None
        # A denial that is reported late was recorded as a failure so far.
        self._end_tool(tool, ToolOutcome.DENIED, at)
        tool.output = safe_excerpt(reason, limit=EXCERPT_CHARACTERS) or tool.output
        return self._end_line(tool)

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

    def _end_line(self, tool: TracedTool) -> str | None:
        verb = _TOOL_VERBS.get(tool.outcome)
        if verb is None and (tool.name in _UNLOGGED_TOOLS or tool.name == RESULT_TOOL):
            return None
        same = [other for other in self.tools if (other.name, other.turn) == (tool.name, tool.turn)]
        # The summary distinguishes calls of the same tool by the same answer.
        name = f"{tool.name} ({tool.summary})" if len(same) > 1 and tool.summary else tool.name
        elapsed = "" if tool.duration_ms is None else format_elapsed(tool.duration_ms)
        if verb is None:
            return self._line(
                f"{name} took {elapsed}" if elapsed else f"{name} finished", tool.parent
            )
        after = f" after {elapsed}" if elapsed else ""
        why = f": {one_line(tool.output)}" if tool.output else ""
        return self._line(f"{name} {verb}{after}{why}", tool.parent)

    # Notes, subagents and todos -----------------------------------------------------------------

    def noted(
        self, at: datetime, kind: str, text: str, *, new_model: str | None = None
    ) -> str | None:
        """A request was retried, or the model or the rate limit changed.

        Args:
            kind: ``retry``, ``fallback`` or ``rateLimit``.
        """
        self.counts["retries"] += kind == "retry"
        self.model = _short(new_model) or self.model
        note = TracedNote(at=at, kind=kind, text=one_line(text))
        self.notes.add(note)
        return self._line(note.text)

    def subagent_started(
        self, at: datetime, agent_id: str, kind: str, tool_id: str | None, description: str
    ) -> str | None:
        """A subagent started.

        Args:
            tool_id: The tool call that started it.
        """
        if self.subagents.get(agent_id):
            return None
        agent = TracedSubagent(
            id=agent_id,
            kind=one_line(kind),
            tool=tool_id,
            description=one_line(description),
            started_at=at,
        )
        self.subagents.add(agent, agent_id)
        self.counts["subagents"] += 1
        why = f": {agent.description}" if agent.description else ""
        return self._line(f"{_subagent_name(agent)} started{why}")

    def subagent_finished(self, at: datetime, agent_id: str) -> str | None:
        """A subagent finished."""
        agent = self.subagents.get(agent_id)
        if agent is None or agent.ended_at is not None:
            return None
        agent.ended_at = at
        agent.duration_ms = to_milliseconds(at - agent.started_at)
        return self._line(f"{_subagent_name(agent)} took {format_elapsed(agent.duration_ms)}")

    def todo_seen(
        self, at: datetime, todo_id: str, subject: str = "", state: TodoState = TodoState.PENDING
    ) -> str | None:
        """An item is on the agent's todo list; of a known item, the state may be out of date."""
        is_new = self.todos.get(todo_id) is None
        return self.todo_updated(at, todo_id, subject, state if is_new else None)

    def todo_updated(
        self, at: datetime, todo_id: str, subject: str = "", state: TodoState | None = None
    ) -> str | None:
        """An item changed its state or subject."""
        item = self.todos.get(todo_id)
        is_new = item is None
        if item is None:
            item = TracedTodo(number=self.todos.total + 1, created_at=at)
            self.todos.add(item, todo_id)
        item.subject = one_line(subject) or item.subject
        changed = item.move(state or item.state, at)
        if not (changed or is_new):
            return None
        if item.state is not TodoState.COMPLETED:
            return self._line(f"{_TODO_VERBS[item.state]}: {item.subject}")
        states = Counter(todo.state for todo in self.todos)
        done, total = states[TodoState.COMPLETED], states.total() - states[TodoState.DELETED]
        elapsed = format_elapsed(to_milliseconds(item.time_in(TodoState.IN_PROGRESS, at)))
        return self._line(f"todo {done}/{total} done after {elapsed}: {item.subject}")

    # The end ------------------------------------------------------------------------------------

    def query_finished(
        self,
        *,
        completed: bool,
        reason: str | None = None,
        status: int | None = None,
        error: str = "",
    ) -> None:
        """A query ended with a result message."""
        error = "" if completed else safe_excerpt(error, limit=TEXT_CHARACTERS)
        self._reported_end = StepEnd(
            how="completed" if completed else "failed",
            reason=_short(reason),
            error=error or None,
            api_status=status,
        )

    def finish(self, at: datetime, outcome: str | None = None, error: str = "") -> str | None:
        """The step ended. Returns its summary, once: its outcome, counts, tokens and cost.

        Args:
            outcome: The outcome as the runner names it; None: as the last query reported.
        """
        if self.ended_at is not None:
            return None
        for tool in self.tools:
            if tool.outcome is ToolOutcome.RUNNING:
                self._end_tool(tool, ToolOutcome.INTERRUPTED, at)
        self.ended_at = at
        self.end = end = replace(
            self._reported_end,
            how=_short(outcome) or self._reported_end.how,
            error=safe_excerpt(error, limit=TEXT_CHARACTERS) or self._reported_end.error,
        )
        done, tokens = counts_text(self.counts), self.tokens
        used = tokens_text(f"{tokens.prompt:,} tokens", tokens.cache_efficiency, tokens.output)
        cost = "" if self.cost_usd is None else f", {format_usd(self.cost_usd)}"
        elapsed = format_elapsed(to_milliseconds(at - self.started_at))
        why = f"; {end.error}" if end.error else ""
        summary = f"{self.step}: {end.how} after {elapsed}: {done}, {used}{cost}{why}"
        return one_line(summary, limit=TEXT_CHARACTERS)

    def document(self, now: datetime) -> dict[str, Any]:
        """Returns the document of the step at ``now``; it does not change after the step's end."""
        now = self.ended_at or now
        return {
            **_document(self),
            "durationMs": to_milliseconds(now - self.started_at),
            "todos": [item.document(now) for item in self.todos],
            # The number of omitted entries of each list that is incomplete.
            "leftOut": {
                name: value.omitted
                for name, value in _stored_fields(self).items()
                if isinstance(value, BoundedList) and value.omitted
            },
        }


def _subagent_name(agent: TracedSubagent) -> str:
    return f"subagent {agent.kind}".rstrip()
