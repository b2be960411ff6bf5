"""A page of a listing, and the cursor to the next."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from longshore.errors import UsageError

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Page(Generic[ItemT]):
    """Some items, and where to go on: ``None`` means that this was all.

    A cursor is opaque and stays right while rows are added: it names a place in the order, not a
    count of rows before it.
    """

    items: tuple[ItemT, ...]
    cursor: str | None = None


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
