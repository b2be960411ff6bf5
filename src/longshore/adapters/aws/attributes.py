"""Plain values as DynamoDB keeps them, and back.

Documents are kept as maps, so that others who read the table find what the wire says. DynamoDB's
numbers have 38 digits and its maps 32 levels: a document that has more is kept as JSON text.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

Attribute = dict[str, Any]

_DIGITS = 38
_SMALLEST, _LARGEST = -128, 125  # powers of ten
_LEVELS = 30


class _NotAMap(ValueError):
    """The document is more than DynamoDB can hold as a map."""


def document_to(document: dict[str, Any]) -> Attribute:
    """A document, as a map if that can be."""
    try:
        return _to(document, _LEVELS)
    except _NotAMap:
        return {"S": json.dumps(document, separators=(",", ":"))}


def document_from(attribute: Attribute) -> dict[str, Any]:
    """The inverse of ``document_to``."""
    document: dict[str, Any] = (
        json.loads(attribute["S"]) if "S" in attribute else value_from(attribute)
    )
    return document


def _to(value: Any, levels: int) -> Attribute:
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": value}
        case int() | float():
            return {"N": _number(value)}
    if levels == 0:
        raise _NotAMap
    if isinstance(value, dict):
        return {"M": {name: _to(each, levels - 1) for name, each in value.items()}}
    return {"L": [_to(each, levels - 1) for each in value]}


def _number(value: float) -> str:
    text = repr(value)
    exact = Decimal(text)
    parts = exact.normalize().as_tuple()
    if not exact.is_finite() or len(parts.digits) > _DIGITS:
        raise _NotAMap
    if exact and not _SMALLEST < exact.adjusted() < _LARGEST:
        raise _NotAMap
    return text


def value_from(attribute: Attribute) -> Any:
    """The plain value of an attribute."""
    ((kind, value),) = attribute.items()
    match kind:
        case "S" | "BOOL":
            return value
        case "N":
            return _plain(value)
        case "M":
            return {name: value_from(each) for name, each in value.items()}
        case "L":
            return [value_from(each) for each in value]
    return None


def _plain(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
