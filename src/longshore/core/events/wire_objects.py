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

from longshore.core.documents import Document
from longshore.core.events import wire_values
from longshore.core.events.types import TaskHealth, TaskHeartbeat, TaskPending
from longshore.core.events.wire_values import PropertyDoc, ValueKind
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
_NAMES_BY_FIELD: dict[tuple[type, str], str] = {(TaskHealth, "elapsed"): "elapsed"}


_KINDS: dict[Any, ValueKind] = {
    str: wire_values.STRING,
    int: wire_values.INTEGER,
    float: wire_values.NUMBER,
    datetime: wire_values.MOMENT,
    timedelta: wire_values.DURATION,
    Document: wire_values.DOCUMENT,
    dict[str, str | None]: wire_values.STATUSES,
}


def _dependencies_to_wire(keys: Document | None) -> Any:
    return [] if keys is None else wire_values.document_to_wire(keys)


def _dependencies_from_wire(value: Any) -> Document | None:
    return None if value == [] else wire_values.document_from_wire(value)


def _memory_to_wire(rss_bytes: int) -> dict[str, int]:
    return {"rss": rss_bytes}


def _memory_from_wire(value: Any) -> int:
    try:
        return wire_values.read_integer(wire_values.read_object(value).get("rss"))
    except UsageError as wrong:
        raise wire_values.nested_error(".rss", wrong) from None


# Where the type hint does not say how the value looks.
_KINDS_BY_FIELD: dict[tuple[type, str], ValueKind] = {
    (TaskHeartbeat, "rss_bytes"): ValueKind(
        name="object",
        decode=_memory_from_wire,
        encode=_memory_to_wire,
        inner_docs=(PropertyDoc(name=".rss", kind=wire_values.INTEGER.name, optional=False),),
    ),
    (TaskPending, "depends_on"): ValueKind(
        name="list of strings",
        decode=_dependencies_from_wire,
        encode=_dependencies_to_wire,
        writes_none=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WireProperty:
    """One field of a class, and its place in the object."""

    attribute: str
    name: str
    kind: ValueKind
    read: Callable[[Any], Any]
    nullable: bool  # None is left out
    defaulted: bool  # the class says what is meant when it is left out

    def docs(self) -> tuple[PropertyDoc, ...]:
        """The property itself and what is inside it, for the reference."""
        itself = PropertyDoc(name=self.name, kind=self.kind.name, optional=self.nullable)
        inner = (replace(part, name=f"{self.name}{part.name}") for part in self.kind.inner_docs)
        return (itself, *inner)


class WireObject:
    """One class as an object on the wire."""

    __slots__ = ("_writers", "properties", "type")

    def __init__(self, type: type) -> None:
        self.type = type
        hints = get_type_hints(type)
        self.properties = tuple(_property(type, field, hints[field.name]) for field in fields(type))
        # Every event passes through ``write``: plain tuples are the fastest to walk.
        self._writers = tuple(
            (each.attribute, each.name, each.kind.encode, each.kind.writes_none)
            for each in self.properties
        )

    def write(self, instance: Any) -> dict[str, Any]:
        """The object; what is None is left out."""
        written = {}
        for attribute, name, encode, writes_none in self._writers:
            value = getattr(instance, attribute)
            if value is not None or writes_none:
                written[name] = value if encode is None else encode(value)
        return written

    def read(self, wire: Any) -> Any:
        """The instance; names that the class does not know are ignored."""
        wire = wire_values.read_object(wire)
        values = {}
        for each in self.properties:
            if each.name in wire:
                try:
                    values[each.attribute] = each.read(wire[each.name])
                except UsageError as wrong:
                    raise wire_values.nested_error(f".{each.name}", wrong) from None
            elif each.nullable:
                values[each.attribute] = None
            elif not each.defaulted:
                message = f".{each.name} is missing"
                raise UsageError(message)
        return self.type(**values)

    def docs(self) -> tuple[PropertyDoc, ...]:
        """Every property, for the reference."""
        return tuple(part for each in self.properties for part in each.docs())


def _property(type: type, field: Field[Any], hint: Any) -> WireProperty:
    choices = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    nullable = NoneType in choices
    kind = _KINDS_BY_FIELD.get((type, field.name)) or _kind_of(choices[0])
    return WireProperty(
        attribute=field.name,
        name=_NAMES_BY_FIELD.get((type, field.name))
        or _NAMES.get(field.name)
        or _camel(field.name),
        kind=kind,
        read=wire_values.nullable_decoder(kind) if nullable else kind.decode,
        nullable=nullable and not kind.writes_none,
        defaulted=field.default is not MISSING or field.default_factory is not MISSING,
    )


def _kind_of(hint: Any) -> ValueKind:
    if hint in _KINDS:
        return _KINDS[hint]
    if get_origin(hint) is tuple:
        return wire_values.list_of(_kind_of(get_args(hint)[0]))
    shape = WireObject(hint)
    inner = tuple(replace(part, name=f".{part.name}") for part in shape.docs())
    return ValueKind(name="object", decode=shape.read, encode=shape.write, inner_docs=inner)


def _camel(attribute: str) -> str:
    first, *rest = attribute.split("_")
    return first + "".join(word.capitalize() for word in rest)
