"""Formats the events of an agent's step as log lines.

Each line starts with the step, and the kind of the subagent if there is one. Lines are plain text
without terminal control sequences, also if the agent wrote some.
"""

from __future__ import annotations

from longshore.core.agents import events
from longshore.core.agents.events import AgentEvent, TodoState, ToolOutcome
from longshore.core.agents.trace import StepTrace, input_excerpt, one_line, to_milliseconds
from longshore.core.agents.transcripts import RESULT_TOOL
from longshore.core.text.sanitise import safe_excerpt

ANSWER_CHARACTERS = 2_000
SUMMARY_CHARACTERS = 500
TODO_TOOLS = frozenset({"TaskCreate", "TaskUpdate", "TaskList", "TaskGet", "TodoWrite"})
"""The todo tools; changes of the list are shown instead of the calls."""
AGENT_TOOLS = frozenset({"Agent", "Task"})
"""The tools that start a subagent; the subagent is shown instead of the calls."""

_SESSION_CHARACTERS = 8
_SECOND_MS, _MINUTE_MS, _HOUR_MS = 1_000, 60_000, 3_600_000
_TODO_VERBS = {
    TodoState.PENDING: "todo",
    TodoState.IN_PROGRESS: "todo started",
    TodoState.DELETED: "todo deleted",
}
_TOOL_VERBS = {
    ToolOutcome.FAILED: "failed",
    ToolOutcome.DENIED: "was denied",
    ToolOutcome.INTERRUPTED: "was interrupted",
}


def event_line(event: AgentEvent, trace: StepTrace) -> str | None:
    """Returns the log line for an event that the trace has just applied; None without one."""
    text = _event_text(event, trace)
    return f"{_prefix(event, trace)}: {text}" if text else None


def format_elapsed(duration_ms: int) -> str:
    """Returns a duration as text: ``13 ms``, ``2.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if duration_ms < _SECOND_MS:
        return f"{duration_ms} ms"
    if duration_ms < 10 * _SECOND_MS:
        return f"{duration_ms / _SECOND_MS:.1f} s"
    if duration_ms < _MINUTE_MS:
        return f"{duration_ms // _SECOND_MS} s"
    if duration_ms < _HOUR_MS:
        return f"{duration_ms // _MINUTE_MS} min {duration_ms % _MINUTE_MS // _SECOND_MS} s"
    return f"{duration_ms // _HOUR_MS} h {duration_ms % _HOUR_MS // _MINUTE_MS} min"


def format_usd(amount: float) -> str:
    """Returns an amount of dollars, with more digits below one dollar."""
    return f"${amount:.2f}" if amount >= 1 or not amount else f"${amount:.4f}"


def count_text(count: int, thing: str) -> str:
    """Returns a count with its noun: ``1 turn``, ``5 turns``."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def summary_of(trace: StepTrace) -> str:
    """Returns the summary line of a finished step: its outcome, counts, tokens and cost."""
    counts, tokens = trace.counts, trace.turns.tokens
    end, ended_at = trace.end, trace.ended_at or trace.started_at
    elapsed = format_elapsed(to_milliseconds(ended_at - trace.started_at))
    outcome = f"{end.how if end else 'running'} after {elapsed}"
    problems = [
        f"{counts[name]} {name}" for name in ("failed", "denied", "interrupted") if counts[name]
    ]
    cached = tokens.cache_efficiency
    parts = [
        count_text(trace.turns.total, "turn"),
        count_text(counts["tools"], "tool") + (f" ({', '.join(problems)})" if problems else ""),
        f"{sum(tokens.input_counts):,} tokens in"
        + ("" if cached is None else f" ({cached:g}% from the cache)"),
        f"{tokens.output:,} out",
        *([] if trace.turns.cost_usd is None else [format_usd(trace.turns.cost_usd)]),
    ]
    error = f"; {end.error}" if end and end.error else ""
    return one_line(f"{trace.step}: {outcome}: {', '.join(parts)}{error}", limit=SUMMARY_CHARACTERS)


def _prefix(event: AgentEvent, trace: StepTrace) -> str:
    parent: str | None = None
    if isinstance(event, events.AnswerReceived):
        parent = event.parent
    elif isinstance(event, events.ToolEvent) and (tool := trace.tools.get(event.tool_id)):
        parent = tool.parent
    agent = trace.subagent_of(parent)
    return f"{trace.step}/{agent.kind or 'subagent'}" if agent else trace.step


def _event_text(event: AgentEvent, trace: StepTrace) -> str | None:
    if isinstance(event, events.SessionStarted):
        return _started_text(trace)
    if isinstance(event, events.AnswerReceived):
        return _answer_text(event)
    if isinstance(event, events.ToolEvent):
        return _tool_text(event, trace)
    if isinstance(event, events.SubagentEvent):
        return _subagent_text(event, trace)
    if isinstance(event, events.TodoEvent):
        return _todo_text(event, trace)
    return _api_text(event) if isinstance(event, events.ApiEvent) else None


def _started_text(trace: StepTrace) -> str:
    verb = "resumed" if trace.resumed else "started"
    model = f" with {one_line(trace.model)}" if trace.model else ""
    session = f", session {trace.session_id[:_SESSION_CHARACTERS]}" if trace.session_id else ""
    return f"{verb}{model}{session}"


def _answer_text(event: events.AnswerReceived) -> str:
    text = safe_excerpt(event.text.strip(), limit=ANSWER_CHARACTERS).replace("\n", "\n  ")
    return f"the API failed ({event.error}): {text}" if event.error else text


def _tool_text(event: events.ToolEvent, trace: StepTrace) -> str | None:
    tool = trace.tools.get(event.tool_id)
    if tool is None:
        name = one_line(event.name) if isinstance(event, events.ToolDenied) else ""
        return f"{name} was denied" if name else None
    verb = _TOOL_VERBS.get(tool.outcome)
    if tool.name in TODO_TOOLS | AGENT_TOOLS and verb is None:
        return None
    if tool.outcome is ToolOutcome.RUNNING:
        if tool.name == RESULT_TOOL and isinstance(
            event, events.ToolRequested | events.ToolStarted
        ):
            # A reviewer looks here first.
            return f"returned its result: {input_excerpt(event.input, limit=ANSWER_CHARACTERS)}"
        return f"{tool.name}: {tool.summary}" if tool.summary else tool.name
    # The summary distinguishes calls of the same tool.
    ambiguous = trace.has_duplicate(tool) and tool.summary
    name = f"{tool.name} ({tool.summary})" if ambiguous else tool.name
    elapsed = "" if tool.duration_ms is None else format_elapsed(tool.duration_ms)
    if verb is None:
        ended = f"{name} took {elapsed}" if elapsed else f"{name} finished"
        return None if tool.name == RESULT_TOOL else ended
    after = f" after {elapsed}" if elapsed else ""
    why = one_line(tool.output)
    return f"{name} {verb}{after}" + (f": {why}" if why else "")


def _subagent_text(event: events.SubagentEvent, trace: StepTrace) -> str | None:
    agent = trace.subagents.get(event.agent_id)
    if agent is None:
        return None
    name = f"subagent {agent.kind}".rstrip()
    if agent.duration_ms is not None:
        return f"{name} took {format_elapsed(agent.duration_ms)}"
    return f"{name} started" + (f": {agent.description}" if agent.description else "")


def _todo_text(event: events.TodoEvent, trace: StepTrace) -> str | None:
    done, total = trace.todos.progress
    if isinstance(event, events.TodosReplaced):
        now = [item.subject for item in trace.todos if item.state is TodoState.IN_PROGRESS]
        return f"todo {done}/{total} done" + (f", now: {', '.join(now[:3])}" if now else "")
    item = trace.todos.get(event.todo_id)
    if item is None:
        return None
    if item.state is TodoState.COMPLETED:
        elapsed = format_elapsed(to_milliseconds(item.time_in(TodoState.IN_PROGRESS, event.at)))
        return f"todo {done}/{total} done after {elapsed}: {item.subject}"
    return f"{_TODO_VERBS[item.state]}: {item.subject}"


def _api_text(event: events.ApiEvent) -> str | None:
    if isinstance(event, events.ApiRetried):
        facts = ", ".join(str(fact) for fact in (event.status, event.error) if fact)
        why = f" ({one_line(facts)})" if facts else ""
        again = f"retry {event.attempt} of {event.limit} in {format_elapsed(event.delay_ms)}"
        return f"the API failed{why}: {again}"
    if isinstance(event, events.ModelFallback):
        why = f": {one_line(event.reason)}" if event.reason else ""
        return f"switched from {event.model} to {event.to_model}{why}"
    if event.status == "allowed":
        return None
    window = f" {event.window}" if event.window else ""
    until = f" until {event.resets_at:%Y-%m-%d %H:%M} UTC" if event.resets_at else ""
    return f"rate limit{window}: {event.status}{until}"
