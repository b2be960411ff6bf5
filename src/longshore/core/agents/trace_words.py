"""What happens in a step of an agent, as lines for a person who looks on: who, what, how long.

Each line begins with the step, and with the kind of the subagent where one is at work. They are
plain text: nothing in them moves a cursor or changes a colour, whatever the agent wrote.
"""

from __future__ import annotations

from longshore.core.agents import happenings as h
from longshore.core.agents.happenings import Happening, TodoState, ToolOutcome
from longshore.core.agents.trace import StepTrace
from longshore.core.agents.trace_entries import Tool
from longshore.core.agents.trace_forms import input_excerpt, line, milliseconds
from longshore.core.agents.transcripts import RESULT_TOOL
from longshore.core.sanitise import safe_excerpt

SAID_CHARACTERS = 2_000
SUMMARY_CHARACTERS = 500
TODO_TOOLS = frozenset({"TaskCreate", "TaskUpdate", "TaskList", "TaskGet", "TodoWrite"})
"""The agent's own list; what becomes of it is told instead."""
AGENT_TOOLS = frozenset({"Agent", "Task"})
"""What begins a subagent; the subagent itself is told of."""

_SESSION_CHARACTERS = 8
_WHY_CHARACTERS = 200
_SECOND_MS, _MINUTE_MS, _HOUR_MS = 1_000, 60_000, 3_600_000


def line_of(happening: Happening, trace: StepTrace) -> str | None:
    """The line that tells of a happening which the trace has just taken in; None for none."""
    text = _text(happening, trace)
    return f"{_who(happening, trace)}: {text}" if text else None


def took(duration_ms: int) -> str:
    """How long something took: ``13 ms``, ``2.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if duration_ms < _SECOND_MS:
        return f"{duration_ms} ms"
    if duration_ms < 10 * _SECOND_MS:
        return f"{duration_ms / _SECOND_MS:.1f} s"
    if duration_ms < _MINUTE_MS:
        return f"{duration_ms // _SECOND_MS} s"
    if duration_ms < _HOUR_MS:
        return f"{duration_ms // _MINUTE_MS} min {duration_ms % _MINUTE_MS // _SECOND_MS} s"
    return f"{duration_ms // _HOUR_MS} h {duration_ms % _HOUR_MS // _MINUTE_MS} min"


def dollars(amount: float) -> str:
    """Money, with more digits where there is less of it."""
    return f"${amount:.2f}" if amount >= 1 or not amount else f"${amount:.4f}"


def number_of(count: int, thing: str) -> str:
    """``1 turn``, ``5 turns``."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def summary_of(trace: StepTrace) -> str:
    """One line on a step that is over: how it ended, and what it took."""
    counts, tokens = trace.counts, trace.turns.tokens
    end, ended_at = trace.end, trace.ended_at or trace.started_at
    how = f"{end.how if end else 'running'} after {took(milliseconds(ended_at - trace.started_at))}"
    bad = [f"{counts[name]} {name}" for name in ("failed", "denied", "interrupted") if counts[name]]
    cached = tokens.cache_efficiency
    parts = [
        number_of(trace.turns.total, "turn"),
        number_of(counts["tools"], "tool") + (f" ({', '.join(bad)})" if bad else ""),
        f"{sum(tokens.input_side):,} tokens in"
        + ("" if cached is None else f" ({cached:g}% from the cache)"),
        f"{tokens.output:,} out",
        *([] if trace.cost_usd is None else [dollars(trace.cost_usd)]),
    ]
    error = f"; {end.error}" if end and end.error else ""
    return line(f"{trace.step}: {how}: {', '.join(parts)}{error}", limit=SUMMARY_CHARACTERS)


def _who(happening: Happening, trace: StepTrace) -> str:
    parent: str | None = None
    match happening:
        case h.Said(parent=parent):
            pass
        case h.ToolCalled() | h.ToolBegan() | h.ToolEnded() | h.Denied():
            tool = trace.tool(happening.tool_id)
            parent = tool.parent if tool else None
    agent = trace.subagent_of(parent)
    return f"{trace.step}/{agent.kind or 'subagent'}" if agent else trace.step


def _text(happening: Happening, trace: StepTrace) -> str | None:
    match happening:
        case h.Began():
            return _began(trace)
        case h.Said():
            return _said(happening)
        case h.ToolCalled() | h.ToolBegan() | h.ToolEnded() | h.Denied():
            return _of_tool(happening, trace)
        case h.SubagentBegan() | h.SubagentEnded():
            return _of_subagent(happening, trace)
        case h.TodoKnown() | h.TodoMoved() | h.TodosListed():
            return _of_todos(happening, trace)
        case h.Retried() | h.FellBack() | h.RateLimited():
            return _of_api(happening)
    return None


def _began(trace: StepTrace) -> str:
    verb = "goes on" if trace.resumed else "begins"
    model = f" with {line(trace.model, limit=_WHY_CHARACTERS)}" if trace.model else ""
    session = f", session {trace.session_id[:_SESSION_CHARACTERS]}" if trace.session_id else ""
    return f"{verb}{model}{session}"


def _said(told: h.Said) -> str:
    text = safe_excerpt(told.text.strip(), limit=SAID_CHARACTERS).replace("\n", "\n  ")
    return f"the API failed ({told.error}): {text}" if told.error else text


def _of_tool(
    happening: h.ToolCalled | h.ToolBegan | h.ToolEnded | h.Denied, trace: StepTrace
) -> str | None:
    tool = trace.tool(happening.tool_id)
    if tool is None:
        name = (
            line(happening.name, limit=_WHY_CHARACTERS) if isinstance(happening, h.Denied) else ""
        )
        return f"{name} was denied" if name else None
    failed = tool.outcome not in (ToolOutcome.RUNNING, ToolOutcome.OK)
    if tool.name in TODO_TOOLS | AGENT_TOOLS and not failed:
        return None
    if tool.outcome is not ToolOutcome.RUNNING:
        return _ended(tool, trace)
    if tool.name == RESULT_TOOL and isinstance(happening, h.ToolCalled | h.ToolBegan):
        # Somebody may have to judge it, and looks here first.
        return f"hands in its result: {input_excerpt(happening.input, limit=SAID_CHARACTERS)}"
    return f"{tool.name}: {tool.summary}" if tool.summary else tool.name


def _ended(tool: Tool, trace: StepTrace) -> str | None:
    """One that is alone of its name is known by it; else what it was given tells it apart."""
    name = tool.name
    if trace.has_like(tool) and tool.summary:
        name = f"{name} ({tool.summary})"
    why = line(tool.output, limit=_WHY_CHARACTERS)
    because = f": {why}" if why else ""
    spent = "" if tool.duration_ms is None else took(tool.duration_ms)
    match tool.outcome:
        case ToolOutcome.OK if tool.name == RESULT_TOOL:
            return None
        case ToolOutcome.OK:
            return f"{name} took {spent}" if spent else f"{name} is done"
        case ToolOutcome.DENIED:
            return f"{name} was denied{because}"
        case ToolOutcome.INTERRUPTED:
            return f"{name} was interrupted" + (f" after {spent}" if spent else "") + because
        case _:
            return f"{name} failed" + (f" after {spent}" if spent else "") + because


def _of_subagent(told: h.SubagentBegan | h.SubagentEnded, trace: StepTrace) -> str | None:
    agent = trace.subagent(told.agent_id)
    if agent is None:
        return None
    name = f"subagent {agent.kind}".rstrip()
    if agent.ended_at is not None:
        return f"{name} took {took(milliseconds(agent.ended_at - agent.at))}"
    return f"{name} begins" + (f": {agent.description}" if agent.description else "")


def _of_todos(told: h.TodoKnown | h.TodoMoved | h.TodosListed, trace: StepTrace) -> str | None:
    done, total = trace.todos.progress
    if isinstance(told, h.TodosListed):
        now = [item.subject for item in trace.todos if item.state is TodoState.IN_PROGRESS]
        return f"todo {done}/{total} done" + (f", now: {', '.join(now[:3])}" if now else "")
    item = trace.todos.get(told.todo_id)
    if item is None:
        return None
    match item.state:
        case TodoState.PENDING:
            return f"todo: {item.subject}"
        case TodoState.COMPLETED:
            spent = took(milliseconds(item.time_in(TodoState.IN_PROGRESS, told.at)))
            return f"todo {done}/{total} done after {spent}: {item.subject}"
        case TodoState.DELETED:
            return f"todo dropped: {item.subject}"
        case _:
            return f"todo begun: {item.subject}"


def _of_api(told: h.Retried | h.FellBack | h.RateLimited) -> str | None:
    if isinstance(told, h.Retried):
        facts = ", ".join(str(fact) for fact in (told.status, told.error) if fact)
        why = f" ({line(facts, limit=_WHY_CHARACTERS)})" if facts else ""
        again = f"retry {told.attempt} of {told.limit} in {took(told.delay_ms)}"
        return f"the API failed{why}: {again}"
    if isinstance(told, h.FellBack):
        why = f": {line(told.why, limit=_WHY_CHARACTERS)}" if told.why else ""
        return f"goes on with {told.to_model} instead of {told.model}{why}"
    if told.status == "allowed":
        return None
    window = f" {told.window}" if told.window else ""
    until = f" until {told.resets_at:%Y-%m-%d %H:%M} UTC" if told.resets_at else ""
    return f"rate limit{window}: {told.status}{until}"
