"""The dataclasses that transitions create, and fast copies of rows.

``value`` and ``row`` are frozen for the type checker, which every change must pass, and plain at
run time: creating a frozen dataclass takes three times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def value(kind: type[T]) -> type[T]:
    """A dataclass with slots and keyword-only fields that no code changes."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(kind)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def row(kind: type[T]) -> type[T]:
    """A dataclass like ``value`` but without slots, so that ``copy_with`` can copy its fields."""
    return dataclass(kw_only=True, unsafe_hash=True)(kind)


def copy_with(row: T, changes: dict[str, Any]) -> T:
    """Returns a copy of a ``row`` with some fields changed.

    Each transition copies a row of some thirty fields; ``dataclasses.replace`` would inspect every
    field and call ``__init__``. This function copies the row's dictionary and does not call
    ``__post_init__``, so the changes must be valid.
    """
    kind = type(row)
    copy = object.__new__(kind)
    fields = copy.__dict__
    fields.update(row.__dict__)
    fields.update(changes)
    names = cast("Any", kind).__dataclass_fields__
    if len(fields) > len(names):
        raise KeyError(f"{kind.__name__} has no field {', '.join(fields.keys() - names.keys())}")
    return copy
