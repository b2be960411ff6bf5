"""A changed copy of a frozen dataclass, at a fraction of the cost of ``dataclasses.replace``.

Every transition makes one copy of a row with some thirty fields; the library's way reads each
field's description each time and goes through ``__init__``. This one copies the slots as they are,
so it is for values that were valid and stay so: ``__post_init__`` is not called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

RowT = TypeVar("RowT")

_Setter = Callable[[Any, Any], None]
_known: dict[type, tuple[Callable[[Any], Any], dict[str, _Setter]]] = {}


def evolved(row: RowT, changes: dict[str, Any]) -> RowT:
    """A copy of ``row`` with some fields changed."""
    kind = type(row)
    if kind not in _known:
        _known[kind] = _copier_of(kind)
    copy_of, setters = _known[kind]
    copy: RowT = copy_of(row)
    for name, value in changes.items():
        setters[name](copy, value)
    return copy


def _copier_of(kind: type) -> tuple[Callable[[Any], Any], dict[str, _Setter]]:
    """A function that copies every slot, written out once, as ``dataclass`` does for its own."""
    names = [field.name for field in fields(kind)]
    # The slots' own setters: the class is frozen only on the way through its attributes.
    setters: dict[str, _Setter] = {name: getattr(kind, name).__set__ for name in names}
    lines = [f"    set_{name}(copy, row.{name})" for name in names]
    source = "\n".join(["def copy_of(row):", "    copy = new(kind)", *lines, "    return copy"])
    known: dict[str, Any] = {f"set_{name}": setter for name, setter in setters.items()}
    known |= {"new": object.__new__, "kind": kind}
    exec(source, known)  # noqa: S102 - nothing but the names of a dataclass's fields is in it
    return known["copy_of"], setters
