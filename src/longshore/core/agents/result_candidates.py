"""Finds the possible results in an agent's answer: wrapped in another object, or as text.

Models and their tools return a result in forms that were not requested. All readings are offered,
the plainest first; the caller, who knows the schema, takes the first valid one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)
_MAX_DEPTH = 3
_MAX_TEXT_CHARACTERS = 16 * 1024 * 1024


def result_candidates(structured: Any, text: str | None) -> Iterator[Any]:
    """Yields the possible results of an agent, the most likely first."""
    if structured is not None:
        yield from _unwrap(structured, 0)
    if text is not None and len(text) <= _MAX_TEXT_CHARACTERS:
        for candidate in (text, *_FENCED.findall(text)):
            value = _parse_json(candidate)
            if value is not None:
                yield from _unwrap(value, 0)


def _unwrap(value: Any, depth: int) -> Iterator[Any]:
    yield value
    if depth >= _MAX_DEPTH:
        return
    if isinstance(value, str):
        inner = _parse_json(value)
        if isinstance(inner, dict | list):
            yield from _unwrap(inner, depth + 1)
    elif isinstance(value, dict):
        parsed = {name: _parse_if_json(inner) for name, inner in value.items()}
        if parsed != value:
            yield parsed
        if len(value) == 1:
            (inner,) = value.values()
            yield from _unwrap(inner, depth + 1)


def _parse_if_json(value: Any) -> Any:
    """Returns the object or list that a text encodes; any other value unchanged."""
    inner = _parse_json(value) if isinstance(value, str) else None
    return inner if isinstance(inner, dict | list) else value


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text.strip())
    except (ValueError, RecursionError):
        return None
