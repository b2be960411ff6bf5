"""A page of a listing, and the cursor to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Page(Generic[ItemT]):
    """Some items, and where to go on: ``None`` means that this was all.

    A cursor is opaque and stays right while rows are added: it names a place in the order, not a
    count of rows before it.
    """

    items: tuple[ItemT, ...]
    cursor: str | None = None
