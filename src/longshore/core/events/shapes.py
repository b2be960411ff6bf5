"""Dataclasses as JSON objects: what a field is called on the wire, and what kind of value it is.

A shape is built once for each class from its fields and their type hints, so that a new event, or a
new field of one, needs nothing here unless its name differs on the wire. A type hint that has no
kind is an error when the program starts, not when the first such event is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, replace
from datetime import datetime, timedelta
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from longshore.core.events import kinds
from longshore.core.events.kinds import Kind, Part
from longshore.core.events.types import TaskHealth, TaskHeartbeat, TaskPending
from longshore.core.values import Document
from longshore.errors import UsageError

# Where the name on the wire is not the attribute's own in camel case.
_NAMES = {
    "task_id": "requestId",
    "key": "taskId",
    "failed_key": "failedTaskId",
    "number": "heartbeatNumber",
    "elapsed": "elapsedMs",
    "duration": "durationMs",
    "timeout": "timeoutMs",
    "rss_bytes": "memoryUsage",
    "peak_rss_bytes": "memoryPeak",
}
_NAMES_IN: dict[tuple[type, str], str] = {(TaskHealth, "elapsed"): "elapsed"}


_KINDS: dict[Any, Kind] = {
    str: kinds.STRING,
    int: kinds.INTEGER,
    float: kinds.NUMBER,
    datetime: kinds.MOMENT,
    timedelta: kinds.DURATION,
    Document: kinds.DOCUMENT,
    dict[str, str | None]: kinds.STATUSES,
}


def _dependencies_to_wire(keys: Document | None) -> Any:
    return [] if keys is None else kinds.document_to_wire(keys)


def _dependencies(value: Any) -> Document | None:
    return None if value == [] else kinds.document(value)


def _memory_to_wire(rss_bytes: int) -> dict[str, int]:
    return {"rss": rss_bytes}


def _memory(value: Any) -> int:
    try:
        return kinds.whole(kinds.mapping(value).get("rss"))
    except UsageError as wrong:
        raise kinds.inside(".rss", wrong) from None


# Where the type hint does not say how the value looks.
_KINDS_IN: dict[tuple[type, str], Kind] = {
    (TaskHeartbeat, "rss_bytes"): Kind(
        name="object",
        decode=_memory,
        encode=_memory_to_wire,
        parts=(Part(name=".rss", kind=kinds.INTEGER.name, optional=False),),
    ),
    (TaskPending, "depends_on"): Kind(
        name="list of strings",
        decode=_dependencies,
        encode=_dependencies_to_wire,
        writes_none=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One field of a class, and its place in the object."""

    attribute: str
    name: str
    kind: Kind
    read: Callable[[Any], Any]
    nullable: bool  # None is left out
    defaulted: bool  # the class says what is meant when it is left out

    def parts(self) -> tuple[Part, ...]:
        """The property itself and what is inside it, for the reference."""
        itself = Part(name=self.name, kind=self.kind.name, optional=self.nullable)
        inner = (replace(part, name=f"{self.name}{part.name}") for part in self.kind.parts)
        return (itself, *inner)


class Shape:
    """One class as an object on the wire."""

    __slots__ = ("_steps", "of", "properties")

    def __init__(self, of: type) -> None:
        self.of = of
        hints = get_type_hints(of)
        self.properties = tuple(_property(of, field, hints[field.name]) for field in fields(of))
        # Every event passes through ``write``: plain tuples are the fastest to walk.
        self._steps = tuple(
            (each.attribute, each.name, each.kind.encode, each.kind.writes_none)
            for each in self.properties
        )

    def write(self, instance: Any) -> dict[str, Any]:
        """The object; what is None is left out."""
        written = {}
        for attribute, name, encode, writes_none in self._steps:
            value = getattr(instance, attribute)
            if value is not None or writes_none:
                written[name] = value if encode is None else encode(value)
        return written

    def read(self, wire: Any) -> Any:
        """The instance; names that the class does not know are ignored."""
        wire = kinds.mapping(wire)
        values = {}
        for each in self.properties:
            if each.name in wire:
                try:
                    values[each.attribute] = each.read(wire[each.name])
                except UsageError as wrong:
                    raise kinds.inside(f".{each.name}", wrong) from None
            elif each.nullable:
                values[each.attribute] = None
            elif not each.defaulted:
                message = f".{each.name} is missing"
                raise UsageError(message)
        return self.of(**values)

    def parts(self) -> tuple[Part, ...]:
        """Every property, for the reference."""
        return tuple(part for each in self.properties for part in each.parts())


def _property(of: type, field: Field[Any], hint: Any) -> Property:
    choices = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    nullable = NoneType in choices
    kind = _KINDS_IN.get((of, field.name)) or _kind_of(choices[0])
    return Property(
        attribute=field.name,
        name=_NAMES_IN.get((of, field.name)) or _NAMES.get(field.name) or _camel(field.name),
        kind=kind,
        read=kinds.or_null(kind) if nullable else kind.decode,
        nullable=nullable and not kind.writes_none,
        defaulted=field.default is not MISSING or field.default_factory is not MISSING,
    )


def _kind_of(hint: Any) -> Kind:
    if hint in _KINDS:
        return _KINDS[hint]
    if get_origin(hint) is tuple:
        return kinds.list_of(_kind_of(get_args(hint)[0]))
    shape = Shape(hint)
    inner = tuple(replace(part, name=f".{part.name}") for part in shape.parts())
    return Kind(name="object", decode=shape.read, encode=shape.write, parts=inner)


def _camel(attribute: str) -> str:
    first, *rest = attribute.split("_")
    return first + "".join(word.capitalize() for word in rest)
