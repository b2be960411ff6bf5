"""The forms in which things stand in a trace: times, excerpts of texts, lists with a limit.

What an agent reads and writes can be anything and of any length, and a trace is shown to people and
kept: so of each text there is an excerpt with its secrets masked, and of each list its two ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from longshore.core.sanitise import mask_mapping, safe_excerpt

INPUT_CHARACTERS = 200
SUMMARY_CHARACTERS = 100
# Of a value within an input: more than is ever shown of the whole.
_VALUE_CHARACTERS = 400
_VALUE_ENTRIES = 50
_VALUE_DEPTH = 6
# What tells a person most of an input, in this order: the file and not what is written into it.
_TELLING = (
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


def moment(when: datetime | None) -> str | None:
    """A time as it is written: UTC, to the millisecond."""
    if when is None:
        return None
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(duration: timedelta) -> int:
    """How long something took; nothing if a clock was set back meanwhile."""
    return max(duration // _MILLISECOND, 0)


def line(text: str, *, limit: int) -> str:
    """An excerpt of a text on one line, masked."""
    return safe_excerpt(" ".join(text.split()), limit=limit)


def input_excerpt(given: Any, *, limit: int = INPUT_CHARACTERS) -> str:
    """What a tool was given, as JSON, masked and cut."""
    masked = mask_mapping(_shortened(given, 0))
    text = json.dumps(masked, ensure_ascii=False, default=str)
    return safe_excerpt(text, limit=limit)


def input_summary(given: Any) -> str:
    """What a tool was given, as a person would say it: the command, the file, the address."""
    if not isinstance(given, Mapping):
        return "" if given is None else line(str(given), limit=SUMMARY_CHARACTERS)
    # What its name calls a secret is masked here, so the telling one cannot be one.
    masked = mask_mapping(_shortened(given, 0))
    for name in _TELLING:
        if isinstance(value := masked.get(name), str) and value:
            return line(value, limit=SUMMARY_CHARACTERS)
    words = [str(value) for value in masked.values() if isinstance(value, str | int | float)]
    return line(" ".join(words), limit=SUMMARY_CHARACTERS)


def _shortened(value: Any, depth: int) -> Any:
    """A value small enough to look through, whatever it was."""
    if isinstance(value, str):
        return safe_excerpt(value, limit=_VALUE_CHARACTERS)
    if depth >= _VALUE_DEPTH and isinstance(value, Mapping | list | tuple):
        return "…"
    if isinstance(value, Mapping):
        some = list(value.items())[:_VALUE_ENTRIES]
        return {str(name): _shortened(item, depth + 1) for name, item in some}
    if isinstance(value, list | tuple):
        return [_shortened(item, depth + 1) for item in value[:_VALUE_ENTRIES]]
    return value


class Ends(Generic[ItemT]):
    """A list with a limit: its beginning and its end are kept, what was between them is counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: list[ItemT] = []
        self.left_out = 0

    def add(self, item: ItemT) -> ItemT | None:
        """Add an item; the one that was dropped for it."""
        self._items.append(item)
        if len(self._items) <= self._limit:
            return None
        self.left_out += 1
        return self._items.pop(self._limit // 2)

    def __iter__(self) -> Iterator[ItemT]:
        return iter(self._items)
