"""Formats values for a trace: times, masked excerpts of texts, bounded lists.

An agent's input and output can be of any kind and length, and a trace is stored and shown to users:
so it contains a masked excerpt of each text, and the start and end of each list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from longshore.core.text.sanitise import mask_mapping, safe_excerpt

INPUT_CHARACTERS = 200
SUMMARY_CHARACTERS = 100
# The limit of a value within an input: more than is ever shown of the whole input.
_VALUE_CHARACTERS = 400
_VALUE_ENTRIES = 50
_VALUE_DEPTH = 6
# The most informative fields of an input, by priority: the file before its content.
_SUMMARY_FIELDS = (
    "command",
    "file_path",
    "notebook_path",
    "path",
    "pattern",
    "url",
    "query",
    "subject",
    "description",
    "prompt",
)
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


def one_line(text: str, *, limit: int) -> str:
    """Returns a masked excerpt of a text on one line."""
    return safe_excerpt(" ".join(text.split()), limit=limit)


def input_excerpt(value: Any, *, limit: int = INPUT_CHARACTERS) -> str:
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
        self._items: list[ItemT] = []
        self.omitted = 0

    def add(self, item: ItemT) -> ItemT | None:
        """Add an item. Returns the item that was dropped for it, if any."""
        self._items.append(item)
        if len(self._items) <= self._limit:
            return None
        self.omitted += 1
        return self._items.pop(self._limit // 2)

    def __iter__(self) -> Iterator[ItemT]:
        return iter(self._items)
