"""Pages of listings, and the cursors between them.

A cursor is opaque text. It contains the position of the last item and not a count, so it stays
valid while rows are added, and the name of the listing, so that it cannot be used for another one.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from longshore.errors import UsageError

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Page(Generic[ItemT]):
    """Some items, and the cursor of the next page; None: there is no next page."""

    items: tuple[ItemT, ...]
    cursor: str | None = None


def encode_cursor(listing: str, *position: str | int) -> str:
    """Returns the cursor of the page after this position of a listing."""
    text = json.dumps([listing, *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(listing: str, cursor: str, kinds: tuple[type, ...]) -> list[Any]:
    """Returns the position of a cursor; ``kinds`` are the types of its parts.

    Raises:
        UsageError: the text is not a cursor, or belongs to another listing.
    """
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        name, *rest = json.loads(text)
        _check_storable(rest)
    except (ValueError, TypeError, RecursionError) as error:
        message = "the cursor is not valid; leave it out to begin at the first page"
        raise UsageError(message) from error
    position: list[Any] = rest
    if name != listing or tuple(type(part) for part in position) != kinds:
        message = "the cursor belongs to another listing; leave it out to begin at the first page"
        raise UsageError(message)
    return position


def _check_storable(position: list[Any]) -> None:
    """Check that a store can be queried with these values: a cursor may be forged.

    Raises:
        ValueError: a number is too large, or a text is not valid Unicode.
    """
    for part in position:
        if isinstance(part, int) and abs(part) >= 2**63:
            raise ValueError
        if isinstance(part, str):
            part.encode()  # raises for a lone surrogate
