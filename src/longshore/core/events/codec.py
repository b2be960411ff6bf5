"""Events in their wire and stored format, in both directions.

In Python, an event is a dataclass with Python names, times and durations. On the wire it is JSON
with camel case, milliseconds and the keys of the indexes. Derived values (the index keys, the
event's id) are written for other readers and ignored when they are read; so are unknown properties.

A ``WireObject`` is built once for each class from its fields and their type hints: a new event, or
a new field of an event, needs no entry here unless its name differs on the wire. A type hint
without a kind is an error when the program starts. Times and durations are whole milliseconds, and
a document is the JSON that it contains. A value of the wrong kind is refused with the end of a
sentence (``: expected …``); each caller puts its part of the path before it, so that the message
names the field.

Stores and buses refuse events of more than a few hundred kilobytes. The fields of a larger event
that can grow (inputs, results, lists of tasks) are moved to the blob store, and the event carries
a reference in their place. Only these fields are moved, so that everything that routes an event is
in the event. The caller stores the overflow *before* the event that refers to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from longshore.core.documents import Document
from longshore.core.events import types
from longshore.core.events.event import Event, EventContext
from longshore.core.events.types import (
    EntityType,
    EventBody,
    TaskHealth,
    TaskHeartbeat,
    TaskPending,
)
from longshore.errors import UsageError

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

# A result may look like a reference and must not become one: a task could then read any blob.
# A reference is ``{"_ref": …}``. JSON that looks like one is written as ``{"_literal": …}``, and so
# is JSON that looks like that.

# Does not search for trailing text, which takes as long as parsing: an inline document is JSON.
_parse = json.JSONDecoder().raw_decode
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_compact_ascii = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueKind:
    """A kind of value: its name in the reference, and how it is written and read."""

    name: str
    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any] | None = None  # None: written as it is
    accepts_null: bool = False  # null is a value, and does not mean that there is none
    empty: Callable[[], Any] | None = None  # returns the form of None; None: None is omitted
    placeholder: Any = None  # on the wire, for a value that is stored elsewhere
    inner: WireObject | None = None  # of an object, or of the items of a list


def to_ms(moment: datetime) -> int:
    """Returns whole milliseconds since 1970."""
    return (moment - _EPOCH) // _MILLISECOND


def from_ms(value: Any) -> datetime:
    """Returns the time in UTC that ``to_ms`` wrote."""
    try:
        return _EPOCH + timedelta(milliseconds=read_integer(value))
    except OverflowError:
        raise expected_error("a time before the year 10000") from None


def read_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise expected_error("a string")


def read_integer(value: Any) -> int:
    if type(value) is int:
        return value
    raise expected_error("an integer")


def read_object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise expected_error("an object")


def expected_error(expected: str) -> UsageError:
    """Returns the error of a wrong value; its message needs a path before it."""
    return UsageError(f": expected {expected}")


def nested_error(path: str, error: UsageError) -> UsageError:
    """Returns the error with a part of the path before its message."""
    return UsageError(f"{path}{error}")


def _read_number(value: Any) -> float:
    # A store may return 0 for 0.0.
    if type(value) in (int, float):
        return float(value)
    raise expected_error("a number")


def _read_duration(value: Any) -> timedelta:
    try:
        return timedelta(milliseconds=read_integer(value))
    except OverflowError:
        raise expected_error("a shorter duration") from None


def _read_statuses(value: Any) -> dict[str, str | None]:
    for key, status in read_object(value).items():
        if not isinstance(key, str) or not isinstance(status, str | None):
            raise expected_error("a string or null for each name")
    return dict(value)


def _document_to_wire(document: Document) -> Any:
    if document.text is None:
        return {"_ref": {"key": document.key, "size": document.size}}
    value, _ = _parse(document.text.lstrip())
    match value:
        case {"_ref": _} | {"_literal": _} if len(value) == 1:
            return {"_literal": value}
    return value


def _document_from_wire(value: Any) -> Document:
    match value:
        case {"_literal": literal} if len(value) == 1:
            return _inline_document(literal)
        case {"_ref": {"key": str(key), "size": int(size)}} if len(value) == 1:
            return Document(key=key, size=size)
        case {"_ref": _} if len(value) == 1:
            raise expected_error("a reference with key and size")
    return _inline_document(value)


def _inline_document(value: Any) -> Document:
    try:
        text = _compact(value)
        size = len(text.encode())
    except UnicodeEncodeError:
        # A lone surrogate cannot be encoded; its escape can.
        text = _compact_ascii(value)
        size = len(text)
    except (TypeError, ValueError, RecursionError):
        raise expected_error("a JSON value") from None
    return Document(text=text, size=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireProperty:
    """A field of a class and its property of the object."""

    attribute: str
    name: str
    kind: ValueKind
    optional: bool  # the attribute may be None
    defaulted: bool  # the class has a default for an omitted property

    @property
    def nullable(self) -> bool:
        """Whether the property may be omitted, which means None."""
        return self.optional and self.kind.empty is None

    def read(self, value: Any) -> Any:
        """Returns the value of the attribute."""
        kind = self.kind
        if self.optional and value is None and not kind.accepts_null:
            return None
        return None if kind.empty and value == kind.empty() else kind.decode(value)


class WireObject:
    """A class as an object on the wire."""

    __slots__ = ("_writers", "properties", "type")

    def __init__(self, type: type) -> None:
        self.type = type
        hints = get_type_hints(type)
        self.properties = tuple(_property(type, field, hints[field.name]) for field in fields(type))
        # Every event passes through ``write``: plain tuples are the fastest to iterate over.
        self._writers = tuple(
            (item.attribute, item.name, item.kind.encode, item.kind.empty)
            for item in self.properties
        )

    def write(self, instance: Any) -> dict[str, Any]:
        """Returns the object; None is omitted."""
        written = {}
        for attribute, name, encode, empty in self._writers:
            value = getattr(instance, attribute)
            if value is not None:
                written[name] = value if encode is None else encode(value)
            elif empty:
                written[name] = empty()
        return written

    def read(self, wire: Any, defaults: Mapping[str, Any] = {}) -> Any:
        """Returns the instance; unknown properties are ignored.

        Args:
            defaults: Properties on the wire in place of required ones that are missing.
        """
        wire = read_object(wire)
        values = {}
        for item in self.properties:
            if item.name in wire:
                try:
                    values[item.attribute] = item.read(wire[item.name])
                except UsageError as error:
                    raise nested_error(f".{item.name}", error) from None
            elif item.nullable:
                values[item.attribute] = None
            elif item.defaulted:
                continue
            elif item.name in defaults:
                values[item.attribute] = item.read(defaults[item.name])
            else:
                raise UsageError(f".{item.name} is missing")
        return self.type(**values)


def _property(type: type, field: Field[Any], hint: Any) -> WireProperty:
    choices = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return WireProperty(
        attribute=field.name,
        name=_NAMES_BY_FIELD.get((type, field.name))
        or _NAMES.get(field.name)
        or camel_case(field.name),
        kind=_KINDS_BY_FIELD.get((type, field.name)) or _kind_of(choices[0]),
        optional=NoneType in choices,
        defaulted=field.default is not MISSING or field.default_factory is not MISSING,
    )


def _kind_of(hint: Any) -> ValueKind:
    if hint in _KINDS:
        return _KINDS[hint]
    if get_origin(hint) is tuple:
        return _list_of(_kind_of(get_args(hint)[0]))
    inner = WireObject(hint)
    return ValueKind(name="object", decode=inner.read, encode=inner.write, inner=inner)


def _list_of(item: ValueKind) -> ValueKind:
    """Returns the kind of a list, which is a tuple in Python."""
    encode, decode_item = item.encode, item.decode

    def decode(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise expected_error("a list")
        items = []
        for index, element in enumerate(value):
            try:
                items.append(decode_item(element))
            except UsageError as error:
                raise nested_error(f"[{index}]", error) from None
        return tuple(items)

    return ValueKind(
        name=f"list of {item.name}s",
        decode=decode,
        encode=list if encode is None else lambda items: [encode(element) for element in items],
        placeholder=(),
        inner=item.inner,
    )


def camel_case(attribute: str) -> str:
    first, *rest = attribute.split("_")
    return first + "".join(word.capitalize() for word in rest)


# Fields whose name on the wire is not their own in camel case.
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
    "retry_after": "retryAfterMs",
}
_NAMES_BY_FIELD: dict[tuple[type, str], str] = {(TaskHealth, "elapsed"): "elapsed"}

_KINDS: dict[Any, ValueKind] = {
    str: ValueKind(name="string", decode=read_text),
    int: ValueKind(name="integer", decode=read_integer),
    float: ValueKind(name="number", decode=_read_number),
    datetime: ValueKind(name="milliseconds since epoch", decode=from_ms, encode=to_ms),
    timedelta: ValueKind(
        name="milliseconds", decode=_read_duration, encode=lambda duration: duration // _MILLISECOND
    ),
    Document: ValueKind(
        name="JSON", decode=_document_from_wire, encode=_document_to_wire, accepts_null=True
    ),
    dict[str, str | None]: ValueKind(
        name="object", decode=_read_statuses, encode=dict, placeholder={}
    ),
}
# Fields whose type hint does not determine their form.
_KINDS_BY_FIELD: dict[tuple[type, str], ValueKind] = {
    (TaskPending, "depends_on"): ValueKind(
        name="list of strings",
        decode=_document_from_wire,
        encode=_document_to_wire,
        empty=list,
    ),
}


@dataclass(frozen=True, slots=True)
class _Memory:
    rss: int


_MEMORY = WireObject(_Memory)
_KINDS_BY_FIELD[TaskHeartbeat, "rss_bytes"] = ValueKind(
    name="object",
    decode=lambda value: _MEMORY.read(value).rss,
    encode=lambda rss_bytes: {"rss": rss_bytes},
    inner=_MEMORY,
)

EVENT_SIZE_LIMIT_BYTES = 200_000
LARGE_FIELDS = ("output", "outputs", "input", "claudeOutput", "tasks", "newTasks", "taskStatuses")
REFERENCE_FIELD = "_s3Overflow"

EVENT_TYPES: dict[str, type[EventBody]] = {
    body.TYPE: body
    for body in vars(types).values()
    if isinstance(body, type) and issubclass(body, EventBody) and hasattr(body, "TYPE")
}
"""The class of each event by its name on the wire."""

EVENT_FORMATS = {body: WireObject(body) for body in EVENT_TYPES.values()}
_CONTEXT = WireObject(EventContext)
_PLACEHOLDERS = {
    body: {
        item.name: item.kind.placeholder
        for item in wire_object.properties
        if item.name in LARGE_FIELDS and not item.nullable
    }
    for body, wire_object in EVENT_FORMATS.items()
}


def index_keys(event: Event) -> dict[str, str]:
    """Returns the primary key and the keys of the seven indexes."""
    at = f"TIMESTAMP#{to_ms(event.at)}"
    tenant = f"TENANT#{event.tenant}"
    app = f"APP#{event.app}"
    kind = f"EVENT#{event.type}"
    entity = event.entity
    indexes = (
        (entity, f"{event.entity_type.value}#{at}"),
        (app, at),
        (app, f"{entity}#{at}"),
        (kind, f"{tenant}#{at}"),
        (kind, f"{tenant}#{entity}#{at}"),
        (kind, f"{tenant}#{app}#{at}"),
        (kind, f"{tenant}#{app}#{entity}#{at}"),
    )
    keys = {"PK": tenant, "SK": f"{at}#EVENT#{event.id}"}
    for number, (partition, sort) in enumerate(indexes, start=1):
        keys |= {f"GSI{number}PK": partition, f"GSI{number}SK": sort}
    return keys


def properties_of(event: Event) -> dict[str, Any]:
    """Returns the event's properties; without the large fields if they were moved out."""
    properties = EVENT_FORMATS[type(event.body)].write(event.body)
    if event.overflow is not None:
        for name in LARGE_FIELDS:
            properties.pop(name, None)
        properties[REFERENCE_FIELD] = {"key": event.overflow}
    return properties


def properties_of_body(body: EventBody) -> dict[str, Any]:
    """Returns all properties of an event with this body."""
    return EVENT_FORMATS[type(body)].write(body)


def body_from_properties(
    event_type: str, properties: Mapping[str, Any], defaults: Mapping[str, Any] = {}
) -> tuple[EventBody, str | None]:
    """Returns the body, and the blob key of its large fields if they were moved out.

    Large fields that were moved out are empty in the body.

    Args:
        defaults: In place of required properties that are missing.

    Raises:
        UsageError: the type is unknown, or a property is missing or of the wrong kind.
    """
    body = EVENT_TYPES.get(event_type)
    if body is None:
        raise UsageError(f"eventType: there is no event {event_type!r}")
    try:
        overflow = overflow_key(read_object(properties))
        if overflow is not None:
            properties = {**_PLACEHOLDERS[body], **properties}
        return EVENT_FORMATS[body].read(properties, defaults), overflow
    except UsageError as error:
        raise nested_error("properties", error) from None


def to_wire(event: Event, *, environment: str, ttl_at: datetime | None = None) -> dict[str, Any]:
    """Returns the whole event with all keys.

    Args:
        ttl_at: When a store may delete the event; None: never.
    """
    wire: dict[str, Any] = {
        **index_keys(event),
        "eventId": event.id,
        "sequence": event.sequence,
        "app": event.app,
        "entityId": event.entity_id,
        "entityType": event.entity_type.value,
        "tenantId": event.tenant,
        "eventType": event.type,
        "timestamp": to_ms(event.at),
        "context": {**_CONTEXT.write(event.context), "environment": environment},
        "properties": properties_of(event),
    }
    if ttl_at is not None:
        # The only time in seconds on the wire: stores that expire items require it.
        wire["ttl"] = to_ms(ttl_at) // 1000
    return wire


def from_wire(wire: Mapping[str, Any]) -> Event:
    """Returns the event that ``to_wire`` wrote, or one of an earlier sender.

    Earlier senders have neither jobs for every task nor attempts, fences and sequences: such a
    number is 0, and a missing time is that of the event.

    Raises:
        UsageError: a field is missing or of the wrong kind; the message names it.
    """
    if not isinstance(wire, Mapping):
        raise nested_error("event", expected_error("an object"))
    wire = {"app": "", "sequence": 0, **wire}
    entity_type = _read_field(wire, "entityType", _read_entity_type)
    time = dict.fromkeys(("startedAt", "dueAt"), wire.get("timestamp"))
    body, overflow = body_from_properties(
        _read_field(wire, "eventType", read_text),
        _read_field(wire, "properties", read_object),
        {"jobId": "", "attemptNumber": 0, "fence": 0, **time}
        if entity_type is EntityType.TASK
        else {},
    )
    return Event(
        entity_type=entity_type,
        entity_id=_read_field(wire, "entityId", read_text),
        tenant=_read_field(wire, "tenantId", read_text),
        app=_read_field(wire, "app", read_text),
        sequence=_read_field(wire, "sequence", read_integer),
        at=_read_field(wire, "timestamp", from_ms),
        body=body,
        context=_read_field(wire, "context", _CONTEXT.read),
        overflow=overflow,
    )


def _read_field(wire: Mapping[str, Any], name: str, read: Callable[[Any], T]) -> T:
    if name not in wire:
        raise UsageError(f"{name} is missing")
    try:
        return read(wire[name])
    except UsageError as error:
        raise nested_error(name, error) from None


def _read_entity_type(value: Any) -> EntityType:
    try:
        return EntityType(value)
    except ValueError:
        raise expected_error(f"one of {', '.join(EntityType)}") from None


def overflow_of(
    properties: Mapping[str, Any], *, limit: int = EVENT_SIZE_LIMIT_BYTES
) -> dict[str, Any] | None:
    """Returns the fields to move out of an event, or None if the event is small enough.

    Args:
        properties: All properties of the event.
    """
    large = {name: properties[name] for name in LARGE_FIELDS if name in properties}
    if not large or len(_compact(properties).encode()) <= limit:
        return None
    return large


def overflow_key(properties: Mapping[str, Any]) -> str | None:
    """Returns the blob key of the fields that were moved out, or None.

    Raises:
        UsageError: the reference has no key.
    """
    reference = properties.get(REFERENCE_FIELD)
    if reference is None:
        return None
    try:
        return read_text(read_object(reference).get("key"))
    except UsageError as error:
        raise nested_error(f".{REFERENCE_FIELD}.key", error) from None


def join_overflow(properties: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties with the fields that were moved out."""
    whole = {**properties, **fields}
    del whole[REFERENCE_FIELD]
    return whole
