"""A trace on the screen: each step of an agent with its figures, timeline and to-do list.

Any process in the attempt's folder may have written the file, so nothing in it is trusted: values
of the wrong type are ignored, and control characters never reach the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from longshore.core.agents.prices import as_mapping
from longshore.core.agents.trace_text import (
    COUNTS,
    counts_text,
    format_elapsed,
    format_usd,
    to_milliseconds,
    tokens_text,
)
from longshore.core.agents.transcripts import RESULT_TOOL
from longshore.core.text.numbers import plural
from longshore.core.text.sanitise import sanitise_prompt_input
from longshore.interfaces.cli.render import screen
from longshore.services.documents import TaskDocument

Entry = Mapping[str, Any]

_TEXT_CHARACTERS = 1_000
_INDENT = 2
_OUTCOME_STYLES = {
    "failed": "bold red",
    "denied": "magenta",
    "interrupted": "yellow",
    "running": "cyan",
}
_END_STYLES = {"completed": "green", "running": "cyan"}
_MAX_NUMBER = 2**53


def print_trace(trace: Entry, task: TaskDocument, attempt: int) -> None:
    """Print the trace of an attempt."""
    attempts = Text(f"attempt {attempt} (latest: {task.attempt})", "dim")
    screen.print_title(task.request_id, screen.state_text(task.status), attempts)
    steps = _entries(trace, "steps")
    for step in steps:
        print()
        _print_step(step)
    if len(steps) > 1:
        print()
        screen.print_pairs(in_all=_totals(steps))


def _print_step(step: Entry) -> None:
    end = _entry(step, "end")
    outcome = _text(end, "how") or "running"
    screen.print_title(_text(step, "step"), Text(outcome, _END_STYLES.get(outcome, "bold red")))
    resumed = " (resumed)" if step.get("resumed") is True else ""
    screen.print_pairs(
        model=_text(step, "model"),
        session=f"{_text(step, 'sessionId')}{resumed}",
        duration=_duration(step),
        did=_counts(step),
        tokens=_tokens(step),
        cost=_cost(step),
        error=Text(_error(end), "red"),
    )
    _print_timeline(step)
    if todos := _entries(step, "todos"):
        print()
        screen.print_table(
            [
                {
                    "TO DO": _text(todo, "subject"),
                    "STATE": screen.state_text(_text(todo, "state")),
                    "PENDING": format_elapsed(_count(todo, "pendingMs")),
                    "IN PROGRESS": format_elapsed(_count(todo, "inProgressMs")),
                }
                for todo in todos
            ]
        )
    left_out = _entry(step, "leftOut")
    if omitted := [f"{count:,} {name}" for name in left_out if (count := _number(left_out, name))]:
        print()
        screen.console().print(
            Text(f"left out for length: {', '.join(omitted)}", "dim"), soft_wrap=True
        )


def _print_timeline(step: Entry) -> None:
    entries = [(at, row) for at, row in _timeline(step) if at is not None]
    if not entries:
        return
    # Stable: at the same time, a turn comes before its tools, and notes come last.
    entries.sort(key=lambda entry: entry[0])
    start = _time(step, "startedAt") or entries[0][0]
    for at, row in entries:
        row["AT"] = Text(format_elapsed(to_milliseconds(at - start)), "dim")
    print()
    screen.print_table([row for _, row in entries])


def _timeline(step: Entry) -> Iterator[tuple[datetime | None, dict[str, RenderableType]]]:
    """The rows of turns, tools and notes, with their times."""
    subagents = {
        _text(agent, "tool"): _text(agent, "kind") for agent in _entries(step, "subagents")
    }
    for turn in _entries(step, "turns"):
        what = Text()
        if parent := _text(turn, "parent"):
            what.append(f"{subagents.get(parent) or 'subagent'}  ", "dim")
        if error := _text(turn, "error"):
            what.append(f"the API failed ({error}): ", "bold red")
        what.append(_text(turn, "text"))
        row = _row(what, 1 if parent else 0, number=_count(turn, "number"))
        yield _time(turn, "at"), row | _figures(turn)
    for tool in _entries(step, "tools"):
        depth = 2 if _text(tool, "parent") else 1
        yield _time(tool, "startedAt"), _row(_tool_text(tool), depth, duration=_duration(tool))
    for note in _entries(step, "notes"):
        yield _time(note, "at"), _row(Text(_text(note, "text"), "yellow"))


def _row(
    what: Text, depth: int = 0, *, number: int = 0, duration: str = ""
) -> dict[str, RenderableType]:
    return {
        "AT": "",
        "#": Text(str(number or ""), "dim"),
        "WHAT": Padding(what, (0, 0, 0, _INDENT * depth)),
        "DURATION": duration,
        **dict.fromkeys(("IN", "CACHE", "OUT", "COST"), ""),
    }


def _tool_text(tool: Entry) -> Text:
    name, summary = _text(tool, "name"), _text(tool, "summary")
    if name == RESULT_TOOL:
        name, summary = "result", _text(tool, "input")
    what = Text.assemble((name, "cyan"), "  ", summary)
    outcome, output = _text(tool, "outcome"), _text(tool, "output")
    if outcome in _OUTCOME_STYLES:
        reason = f": {output}" if output else ""
        what.append(f"  {outcome}{reason}", _OUTCOME_STYLES[outcome])
    return what


# Figures ----------------------------------------------------------------------------------------


def _figures(turn: Entry) -> dict[str, str]:
    """Input tokens, the share of them from the cache, output tokens and cost of a turn."""
    if not (tokens := _entry(turn, "tokens")):
        return {}
    percent = _number(tokens, "cacheEfficiency")
    return {
        "IN": _short_count(_input_tokens(tokens)),
        "CACHE": "" if percent is None else f"{percent:.0f}%",
        "OUT": _short_count(_count(tokens, "output")),
        "COST": _cost(turn),
    }


def _input_tokens(tokens: Entry) -> int:
    return sum(_count(tokens, name) for name in ("input", "cacheRead", "cacheCreation"))


def _short_count(count: int) -> str:
    """A count for a narrow column: ``950``, ``10.2k``, ``1.3M``."""
    if count < 1_000:
        return str(count)
    return f"{count / 1_000:.1f}k" if count < 1_000_000 else f"{count / 1_000_000:.1f}M"


def _tokens(step: Entry) -> str:
    if not (tokens := _entry(step, "tokens")):
        return ""
    percent = _number(tokens, "cacheEfficiency")
    cached_percent = None if percent is None else round(percent)
    return tokens_text(f"{_input_tokens(tokens):,}", cached_percent, _count(tokens, "output"))


def _cost(entry: Entry) -> str:
    cost = _number(entry, "costUsd")
    return "" if cost is None else format_usd(float(cost))


def _duration(entry: Entry) -> str:
    duration = _number(entry, "durationMs")
    return "" if duration is None else format_elapsed(int(duration))


def _counts(step: Entry) -> str:
    stored = _entry(step, "counts")
    counts = {name: _count(stored, name) for name in COUNTS}
    parts = [counts_text(counts)]
    for name, noun in (("subagents", "subagent"), ("retries", "repeated request")):
        if count := counts[name]:
            parts.append(plural(count, noun))
    return ", ".join(parts)


def _error(end: Entry) -> str:
    reason, status = _text(end, "reason"), str(_count(end, "apiStatus") or "")
    details = ", ".join(filter(None, (reason if reason != "completed" else "", status)))
    return " ".join(filter(None, (_text(end, "error"), f"({details})" if details else "")))


def _totals(steps: Sequence[Entry]) -> str:
    elapsed = sum(_count(step, "durationMs") for step in steps)
    costs = [cost for step in steps if (cost := _number(step, "costUsd")) is not None]
    parts = [plural(len(steps), "step"), format_elapsed(elapsed)]
    return ", ".join([*parts, format_usd(sum(costs))] if costs else parts)


# Untrusted values -------------------------------------------------------------------------------


def _entry(parent: Entry, name: str) -> Entry:
    return as_mapping(parent.get(name))


def _entries(parent: Entry, name: str) -> list[Entry]:
    value = parent.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(entry: Entry, name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        return ""
    return " ".join(sanitise_prompt_input(value, limit=_TEXT_CHARACTERS).split())


def _number(entry: Entry, name: str) -> int | float | None:
    value = entry.get(name)
    # NaN and infinity, which Python's JSON has, are outside the range.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -_MAX_NUMBER < value < _MAX_NUMBER else None


def _count(entry: Entry, name: str) -> int:
    return int(_number(entry, name) or 0)


def _time(entry: Entry, name: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(_text(entry, name))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
