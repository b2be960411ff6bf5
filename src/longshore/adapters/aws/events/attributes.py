"""Plain values as DynamoDB keeps them, and back.

Documents are kept as maps, so that others who read the table find what the wire says. DynamoDB's
numbers have 38 digits and its maps 32 levels: a document that has more is kept as JSON text.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

Attribute = dict[str, Any]

_MAX_DIGITS = 38
_MIN_EXPONENT, _MAX_EXPONENT = -128, 125  # powers of ten
_MAX_DEPTH = 30


class _NotRepresentable(ValueError):
    """The document is more than DynamoDB can hold as a map."""


def encode_document(document: dict[str, Any]) -> Attribute:
    """A document, as a map if that can be."""
    try:
        return _encode(document, _MAX_DEPTH)
    except _NotRepresentable:
        return {"S": json.dumps(document, separators=(",", ":"))}


def decode_document(attribute: Attribute) -> dict[str, Any]:
    """The inverse of ``encode_document``."""
    document: dict[str, Any] = (
        json.loads(attribute["S"]) if "S" in attribute else decode_value(attribute)
    )
    return document


def _encode(value: Any, depth: int) -> Attribute:
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": value}
        case int() | float():
            return {"N": _encode_number(value)}
    if depth == 0:
        raise _NotRepresentable
    if isinstance(value, dict):
        return {"M": {name: _encode(each, depth - 1) for name, each in value.items()}}
    return {"L": [_encode(each, depth - 1) for each in value]}


def _encode_number(value: float) -> str:
    text = repr(value)
    exact = Decimal(text)
    parts = exact.normalize().as_tuple()
    if not exact.is_finite() or len(parts.digits) > _MAX_DIGITS:
        raise _NotRepresentable
    if exact and not _MIN_EXPONENT < exact.adjusted() < _MAX_EXPONENT:
        raise _NotRepresentable
    return text


def decode_value(attribute: Attribute) -> Any:
    """The plain value of an attribute."""
    ((kind, value),) = attribute.items()
    match kind:
        case "S" | "BOOL":
            return value
        case "N":
            return _decode_number(value)
        case "M":
            return {name: decode_value(each) for name, each in value.items()}
        case "L":
            return [decode_value(each) for each in value]
    return None


def _decode_number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
