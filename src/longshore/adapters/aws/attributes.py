"""Values of DynamoDB: items, documents, and compressed text.

Documents are stored as maps, so that other programs can read the table. DynamoDB's numbers have 38
digits and its maps 32 levels: a document that needs more is stored as JSON text.

Rows are compressed, because a write of up to one kilobyte costs one unit. Rows contain much the
same text, so they are compressed with a dictionary of it: a kilobyte becomes some 200 bytes. What
is stored must stay readable, so a dictionary is never changed: a better one is added.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from longshore.errors import StoreTooNew

Attribute = dict[str, Any]
Item = dict[str, Any]
"""An item with plain values: texts, numbers, bytes, documents."""

_MAX_DIGITS = 38
_MIN_EXPONENT, _MAX_EXPONENT = -128, 125  # powers of ten
_MAX_DEPTH = 30


class _NotRepresentable(ValueError):
    """DynamoDB cannot store the document as a map."""


def encode_item(item: Mapping[str, Any]) -> dict[str, Attribute]:
    """An item as DynamoDB takes it. A document that it cannot represent becomes JSON text."""
    return {name: _encode_attribute(value) for name, value in item.items()}


def decode_item(attributes: Mapping[str, Attribute]) -> Item:
    """The inverse of ``encode_item``, apart from documents that are JSON text."""
    return {name: _decode(attribute) for name, attribute in attributes.items()}


def _encode_attribute(value: Any) -> Attribute:
    try:
        return _encode(value, _MAX_DEPTH)
    except _NotRepresentable:
        return {"S": json.dumps(value, separators=(",", ":"))}


def _encode(value: Any, depth: int) -> Attribute:
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": value}
        case bytes():
            return {"B": value}
        case int() | float():
            return {"N": _encode_number(value)}
    if depth == 0:
        raise _NotRepresentable
    if isinstance(value, dict):
        return {"M": {name: _encode(child, depth - 1) for name, child in value.items()}}
    return {"L": [_encode(child, depth - 1) for child in value]}


def _encode_number(value: float) -> str:
    text = repr(value)
    exact = Decimal(text)
    parts = exact.normalize().as_tuple()
    if not exact.is_finite() or len(parts.digits) > _MAX_DIGITS:
        raise _NotRepresentable
    if exact and not _MIN_EXPONENT < exact.adjusted() < _MAX_EXPONENT:
        raise _NotRepresentable
    return text


def _decode(attribute: Attribute) -> Any:
    ((kind, value),) = attribute.items()
    match kind:
        case "S" | "B" | "BOOL":
            return value
        case "N":
            return _decode_number(value)
        case "M":
            return {name: _decode(child) for name, child in value.items()}
        case "L":
            return [_decode(child) for child in value]
    return None


def _decode_number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


# Compressed text --------------------------------------------------------------------------------

# Stored rows refer to it by its number, so its file never changes. The end of a dictionary costs
# least to refer to: the most frequent text comes last.
_DICTIONARIES: Final = {1: Path(__file__).with_name("dictionary-1.txt").read_bytes()}
_NEWEST: Final = max(_DICTIONARIES)
_LEVEL: Final = 9


def compress_text(text: str) -> bytes:
    """Compress a text; the first byte is the number of the dictionary."""
    compressor = zlib.compressobj(_LEVEL, zdict=_DICTIONARIES[_NEWEST])
    return bytes([_NEWEST]) + compressor.compress(text.encode()) + compressor.flush()


def decompress_text(data: bytes | str, store: str = "the ledger's table") -> str:
    """The inverse of ``compress_text``; a stream record has the bytes as base64 text.

    Raises:
        StoreTooNew: this version does not have the dictionary.
    """
    if isinstance(data, str):
        data = base64.b64decode(data)
    dictionary = _DICTIONARIES.get(data[0])
    if dictionary is None:
        raise StoreTooNew(store, data[0], _NEWEST)
    decompressor = zlib.decompressobj(zdict=dictionary)
    return (decompressor.decompress(data[1:]) + decompressor.flush()).decode()
