"""Checks of JSON text without memory for its values: `[]` is 2 bytes, or 56 as a value.

Texts are searched in pieces, so that another thread can run in between.
"""

from __future__ import annotations

import codecs
import math
import re
import sys
from collections.abc import Iterator
from contextlib import suppress

JsonBytes = bytes | bytearray

_STRING_OR_REST = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[^"]++', re.DOTALL)
_PIECE_BYTES = 256 * 1024
_OVERLAP_BYTES = 512  # longer than what ``_UNUSUAL`` matches
# What may be a number that is too large. It may be in a string, too.
_UNUSUAL = re.compile(rb"(?<![0-9])[0-9]{300}|[0-9][eE]\+?[0-9]{3}")
_NUMBER = re.compile(rb"[0-9][0-9.eE+-]*+")
_MAX_NUMBER_CHARACTERS = sys.int_info.default_max_str_digits


def has_more_values(text: JsonBytes, limit: int) -> bool:
    """Whether a text has more than ``limit`` values."""
    if _count(text) <= limit:
        return False
    # The text of a string may have commas and brackets, too.
    count = 0
    for start, end in _outside_strings(text):
        count += _count(text, start, end)
        if count > limit:
            return True
    return False


def has_unusable_number(text: JsonBytes) -> bool:
    """Whether a text has a number that is too long, or that Python reads as infinite."""
    step = _PIECE_BYTES - _OVERLAP_BYTES
    starts = range(0, len(text), step)
    if not any(_UNUSUAL.search(text, at, at + _PIECE_BYTES) for at in starts):
        return False
    return any(
        number.end() - number.start() > _MAX_NUMBER_CHARACTERS or _is_unusable(number[0])
        for start, end in _outside_strings(text)
        for number in _NUMBER.finditer(text, start, end)
    )


def is_utf8(text: JsonBytes) -> bool:
    """Whether a text is valid UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(text), _PIECE_BYTES):
            decoder.decode(text[at : at + _PIECE_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _outside_strings(text: JsonBytes) -> Iterator[tuple[int, int]]:
    return (
        part.span() for part in _STRING_OR_REST.finditer(text) if text[part.start()] != ord('"')
    )


def _count(text: JsonBytes, *span: int) -> int:
    return text.count(b",", *span) + text.count(b"[", *span) + text.count(b"{", *span)


def _is_unusable(number: bytes) -> bool:
    if number.isdigit():
        return len(number) > sys.get_int_max_str_digits() > 0
    with suppress(ValueError):
        return math.isinf(float(number))
    return False
