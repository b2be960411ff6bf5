"""The texts in an agent's trace and log: masked excerpts, times, durations and amounts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from longshore.core.text.numbers import plural
from longshore.core.text.sanitise import mask_mapping, safe_excerpt

EXCERPT_CHARACTERS: Final = 200
SUMMARY_CHARACTERS: Final = 100
PROBLEMS: Final = ("failed", "denied", "interrupted")
"""The outcomes of tool calls that are shown with their number."""
COUNTS: Final = ("turns", "tools", "ok", *PROBLEMS, "subagents", "retries")
"""What is counted in a step."""

# The limit of a value within an input: more than is ever shown of the whole input.
_VALUE_CHARACTERS = 400
_VALUE_ENTRIES = 50
_VALUE_DEPTH = 6
# The most informative fields of an input, by priority: the file before its content.
_SUMMARY_FIELDS = (
    *("command", "file_path", "notebook_path", "path", "pattern"),
    *("url", "query", "subject", "description", "prompt"),
)
_MILLISECOND = timedelta(milliseconds=1)
_SECOND_MS, _MINUTE_MS, _HOUR_MS = 1_000, 60_000, 3_600_000


def format_time(moment: datetime) -> str:
    """Returns a UTC time in ISO format with milliseconds."""
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


def counts_text(counts: Mapping[str, int]) -> str:
    """Returns the number of turns and tools, and of the tools that did not succeed."""
    problems = ", ".join(f"{counts[name]} {name}" for name in PROBLEMS if counts[name])
    tools = plural(counts["tools"], "tool") + (f" ({problems})" if problems else "")
    return f"{plural(counts['turns'], 'turn')}, {tools}"


def tokens_text(prompt: str, cached_percent: float | None, output: int) -> str:
    """Returns the numbers of tokens; ``prompt`` may name their unit."""
    cached = "" if cached_percent is None else f" ({cached_percent:g}% from the cache)"
    return f"{prompt} in{cached}, {output:,} out"
