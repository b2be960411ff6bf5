"""A trace on the screen: each step with its figures, its timeline and its list of things to do.

The file may have been written by whatever ran in the attempt's folder, so nothing in it is trusted:
what has the wrong kind is passed over, and no text of it can do anything to a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from longshore.core.agents.trace_text import count_text, format_elapsed, format_usd
from longshore.core.agents.transcripts import RESULT_TOOL
from longshore.core.text.sanitise import sanitise_prompt_input
from longshore.interfaces.cli.render.screen import (
    Column,
    console,
    print_lines,
    print_pairs,
    print_table,
    print_title,
    state_text,
)
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
_COUNTED = ("turns", "tools", "failed", "denied", "interrupted", "subagents", "retries")
_COLUMNS = ("TOOK", "IN", "CACHE", "OUT", "COST")
_THOUSAND, _MILLION = 1_000, 1_000_000
_MAX_NUMBER = 2**53


def print_trace(trace: Entry, task: TaskDocument, attempt: int) -> None:
    """Print the trace of an attempt for a person."""
    attempts = Text(f"attempt {attempt} of {task.attempt}", "dim")
    print_title(task.request_id, state_text(task.status), attempts)
    steps = _entries(trace, "steps")
    for step in steps:
        print()
        _print_step(step)
    if len(steps) > 1:
        print()
        print_pairs([("in all", _totals(steps))])


def _print_step(step: Entry) -> None:
    end = _entry(step, "end")
    how = _text(end, "how") or "running"
    heading = Text.assemble((_text(step, "step"), "bold"), "  ")
    heading.append(how, _END_STYLES.get(how, "bold red"))
    console().print(heading, soft_wrap=True)
    resumed = " (resumed)" if step.get("resumed") is True else ""
    print_pairs(
        [
            ("model", _text(step, "model")),
            ("session", f"{_text(step, 'sessionId')}{resumed}"),
            ("took", _duration_text(step)),
            ("did", _counts(step)),
            ("tokens", _tokens(step)),
            ("cost", _cost(step)),
            ("error", Text(_error(end), "red")),
        ]
    )
    moments = sorted(_timeline(step), key=lambda one: (one.at, one.rank))
    if moments:
        print()
        _print_timeline(moments, _time(step, "startedAt"))
    if todos := _entries(step, "todos"):
        print()
        _print_todos(todos)
    if left_out := _left_out_text(step):
        print()
        console().print(Text(left_out, "dim"), soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimelineEntry:
    at: datetime
    rank: int  # of things that have the same time
    what: Text
    depth: int = 0
    number: str = ""
    took: str = ""
    figures: tuple[str, str, str, str] = ("", "", "", "")

    @property
    def columns(self) -> tuple[str, ...]:
        """What stands to the right of it."""
        return (self.took, *self.figures)


def _timeline(step: Entry) -> Iterator[_TimelineEntry]:
    kinds = {_text(one, "tool"): _text(one, "kind") for one in _entries(step, "subagents")}
    for turn in _entries(step, "turns"):
        yield from _turn_entries(turn, kinds)
    for tool in _entries(step, "tools"):
        yield from _tool_entries(tool)
    for note in _entries(step, "retries"):
        facts = " ".join(filter(None, (_figure(note, "status"), _text(note, "error"))))
        again = f"retry {_figure(note, 'attempt')} of {_figure(note, 'limit')}"
        delay = format_elapsed(int(_number(note, "delayMs") or 0))
        yield from _note_entries(note, f"the API failed ({facts}), {again} in {delay}")
    for note in _entries(step, "fallbacks"):
        models = f"{_text(note, 'to')} instead of {_text(note, 'from')}"
        yield from _note_entries(note, f"went on with {models}: {_text(note, 'why')}")
    for note in _entries(step, "rateLimits"):
        until = f" until {_text(note, 'resetsAt')}" if _text(note, "resetsAt") else ""
        yield from _note_entries(
            note, f"rate limit {_text(note, 'window')}: {_text(note, 'status')}{until}"
        )


def _turn_entries(turn: Entry, kinds: Mapping[str, str]) -> Iterator[_TimelineEntry]:
    at, parent = _time(turn, "at"), _text(turn, "parent")
    if at is None:
        return
    what = Text()
    if parent:
        what.append(f"{kinds.get(parent) or 'subagent'}  ", "dim")
    if error := _text(turn, "error"):
        what.append(f"the API failed ({error}): ", "bold red")
    what.append(_text(turn, "text"))
    yield _TimelineEntry(
        at=at,
        rank=0,
        what=what,
        depth=1 if parent else 0,
        number=_figure(turn, "number"),
        figures=_figures(turn, final=_number(turn, "costUsd") is not None),
    )


def _tool_entries(tool: Entry) -> Iterator[_TimelineEntry]:
    at, outcome = _time(tool, "startedAt"), _text(tool, "outcome")
    if at is None:
        return
    name, given = _text(tool, "name"), _text(tool, "summary")
    if name == RESULT_TOOL:
        name, given = "result", _text(tool, "input")
    what = Text.assemble((name, "cyan"), "  ", given)
    if outcome in _OUTCOME_STYLES:
        why = _text(tool, "output")
        what.append(f"  {outcome}" + (f": {why}" if why else ""), _OUTCOME_STYLES[outcome])
    took_ms = _number(tool, "durationMs")
    spent = "" if took_ms is None else format_elapsed(int(took_ms))
    yield _TimelineEntry(
        at=at, rank=1, what=what, depth=2 if _text(tool, "parent") else 1, took=spent
    )


def _note_entries(note: Entry, text: str) -> Iterator[_TimelineEntry]:
    if (at := _time(note, "at")) is not None:
        yield _TimelineEntry(at=at, rank=2, what=Text(text, "yellow"))


def _print_timeline(entries: Sequence[_TimelineEntry], began: datetime | None) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("AT", "#"):
        table.add_column(name, justify="right", no_wrap=True, style="dim")
    table.add_column("WHAT", overflow="fold")
    # Columns that are empty all the way down would only take room from the rest.
    known = [place for place in range(len(_COLUMNS)) if any(one.columns[place] for one in entries)]
    for place in known:
        table.add_column(_COLUMNS[place], justify="right", no_wrap=True)
    start = began or entries[0].at
    for one in entries:
        since = max((one.at - start) // timedelta(milliseconds=1), 0)
        what = Padding(one.what, (0, 0, 0, _INDENT * one.depth))
        table.add_row(
            format_elapsed(since), one.number, what, *(one.columns[place] for place in known)
        )
    print_lines(table)


def _print_todos(todos: Sequence[Entry]) -> None:
    columns = [Column("TO DO", flexible=True), Column("STATE"), Column("PENDING", right=True)]
    print_table(
        [*columns, Column("IN PROGRESS", right=True)],
        [
            [
                _text(todo, "subject"),
                state_text(_text(todo, "state")),
                format_elapsed(int(_number(todo, "pendingMs") or 0)),
                format_elapsed(int(_number(todo, "inProgressMs") or 0)),
            ]
            for todo in todos
        ],
    )


# Figures ----------------------------------------------------------------------------------------


def _figures(entry: Entry, *, final: bool) -> tuple[str, str, str, str]:
    """What went in, how much of it from the cache, what came out, what it cost."""
    if not (tokens := _entry(entry, "tokens")):
        return ("", "", "", "")
    return (
        _short_count(_input_tokens(tokens)),
        _percent(tokens),
        _short_count(int(_number(tokens, "output") or 0)) if final else "",
        _cost(entry),
    )


def _input_tokens(tokens: Entry) -> int:
    return sum(int(_number(tokens, name) or 0) for name in ("input", "cacheRead", "cacheCreation"))


def _percent(tokens: Entry) -> str:
    share = _number(tokens, "cacheEfficiency")
    return "" if share is None else f"{share:.0f}%"


def _short_count(count: int) -> str:
    """A count in a narrow column: ``950``, ``10.2k``, ``1.3M``."""
    if count < _THOUSAND:
        return str(count)
    if count < _MILLION:
        return f"{count / _THOUSAND:.1f}k"
    return f"{count / _MILLION:.1f}M"


def _tokens(step: Entry) -> str:
    if not (tokens := _entry(step, "tokens")):
        return ""
    cached = f" ({share} from the cache)" if (share := _percent(tokens)) else ""
    return f"{_input_tokens(tokens):,} in{cached}, {int(_number(tokens, 'output') or 0):,} out"


def _cost(entry: Entry) -> str:
    cost = _number(entry, "costUsd")
    return "" if cost is None else format_usd(float(cost))


def _duration_text(step: Entry) -> str:
    spent = _number(step, "durationMs")
    return "" if spent is None else format_elapsed(int(spent))


def _counts(step: Entry) -> str:
    counts = _entry(step, "counts")
    of = {name: int(_number(counts, name) or 0) for name in _COUNTED}
    bad = [f"{of[name]} {name}" for name in ("failed", "denied", "interrupted") if of[name]]
    parts = [
        count_text(of["turns"], "turn"),
        count_text(of["tools"], "tool") + (f" ({', '.join(bad)})" if bad else ""),
        count_text(of["subagents"], "subagent") if of["subagents"] else "",
        count_text(of["retries"], "repeated request") if of["retries"] else "",
    ]
    return ", ".join(filter(None, parts))


def _error(end: Entry) -> str:
    reason, status = _text(end, "reason"), _figure(end, "apiStatus")
    facts = ", ".join(filter(None, (reason if reason != "completed" else "", status)))
    return " ".join(filter(None, (_text(end, "error"), f"({facts})" if facts else "")))


def _totals(steps: Sequence[Entry]) -> str:
    spent = sum(int(_number(step, "durationMs") or 0) for step in steps)
    costs = [cost for step in steps if (cost := _number(step, "costUsd")) is not None]
    parts = [
        count_text(len(steps), "step"),
        format_elapsed(spent),
        *([format_usd(sum(costs))] if costs else []),
    ]
    return ", ".join(parts)


def _left_out_text(step: Entry) -> str:
    missing = _entry(step, "leftOut")
    named = [f"{count:,} {name}" for name in missing if (count := _number(missing, name))]
    return f"left out for length: {', '.join(named)}" if named else ""


# Reading what anybody may have written -----------------------------------------------------------


def _entry(parent: Entry, name: str) -> Entry:
    found = parent.get(name)
    return found if isinstance(found, dict) else {}


def _entries(parent: Entry, name: str) -> list[Entry]:
    found = parent.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _text(entry: Entry, name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        return ""
    return " ".join(sanitise_prompt_input(value, limit=_TEXT_CHARACTERS).split())


def _number(entry: Entry, name: str) -> int | float | None:
    value = entry.get(name)
    # Neither a boolean nor what is no number at all, which JSON has in Python.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -_MAX_NUMBER < value < _MAX_NUMBER else None


def _figure(entry: Entry, name: str) -> str:
    number = _number(entry, name)
    return "" if number is None else str(number)


def _time(entry: Entry, name: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(_text(entry, name))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
