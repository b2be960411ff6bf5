"""Results that may be dressed up: inside another object, or as text.

Models and the tools around them hand in what was asked for in ways that were not. All that a
result may have meant is offered, the plainest reading first; whoever knows the schema takes the
first that fits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)
_DEEPEST = 3
_LONGEST_TEXT = 16 * 1024 * 1024


def readings(structured: Any, text: str | None) -> Iterator[Any]:
    """What the result of an agent may be, best first."""
    if structured is not None:
        yield from _undressed(structured, 0)
    if text is not None and len(text) <= _LONGEST_TEXT:
        for candidate in (text, *_FENCED.findall(text)):
            value = _json_in(candidate)
            if value is not None:
                yield from _undressed(value, 0)


def _undressed(value: Any, depth: int) -> Iterator[Any]:
    yield value
    if depth >= _DEEPEST:
        return
    if isinstance(value, str):
        inner = _json_in(value)
        if isinstance(inner, dict | list):
            yield from _undressed(inner, depth + 1)
    elif isinstance(value, dict):
        parsed = {name: _parsed(inner) for name, inner in value.items()}
        if parsed != value:
            yield parsed
        if len(value) == 1:
            (inner,) = value.values()
            yield from _undressed(inner, depth + 1)


def _parsed(value: Any) -> Any:
    """An object or a list that was written as text; all else as it is."""
    inner = _json_in(value) if isinstance(value, str) else None
    return inner if isinstance(inner, dict | list) else value


def _json_in(text: str) -> Any:
    try:
        return json.loads(text.strip())
    except (ValueError, RecursionError):
        return None
