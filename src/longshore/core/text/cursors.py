"""Cursors: opaque text that names a place in a listing.

The place is that of the last item seen, not a count, so it stays right while rows are added. The
listing's own name travels inside, so that a cursor cannot be used where it means something else.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from longshore.errors import UsageError


def encode_cursor(listing: str, *position: str | int) -> str:
    """The cursor that goes on after this place of this listing."""
    text = json.dumps([listing, *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(listing: str, cursor: str, kinds: tuple[type, ...]) -> list[Any]:
    """The place a cursor names; ``kinds`` are the types of its parts.

    Raises:
        UsageError: the text is not a cursor, or one of another listing.
    """
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        name, *rest = json.loads(text)
        _check_storable(rest)
    except (ValueError, TypeError, RecursionError) as error:
        message = "the cursor is not valid; leave it out to begin at the first page"
        raise UsageError(message) from error
    place: list[Any] = rest
    if name != listing or tuple(type(part) for part in place) != kinds:
        message = "the cursor belongs to another listing; leave it out to begin at the first page"
        raise UsageError(message)
    return place


def _check_storable(position: list[Any]) -> None:
    """Refuse what somebody made up: numbers and texts that no store can be asked for.

    Raises:
        ValueError: there is one.
    """
    for part in position:
        if isinstance(part, int) and abs(part) >= 2**63:
            raise ValueError
        if isinstance(part, str):
            part.encode()  # half of a surrogate pair has no bytes
