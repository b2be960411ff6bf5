"""``value``: the dataclasses that every transition makes by the dozen.

Frozen for whoever checks types, and checking types is part of every change; plain at run time,
because the guard of a frozen dataclass makes each of them three times as slow to build.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def value(kind: type[T]) -> type[T]:
    """A dataclass with slots and keyword-only fields that nobody changes."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(kind)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def row(kind: type[T]) -> type[T]:
    """Likewise, without slots: a changed copy is a copy of one dictionary (see ``evolving``)."""
    return dataclass(kw_only=True, unsafe_hash=True)(kind)
