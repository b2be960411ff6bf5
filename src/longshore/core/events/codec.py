"""Events in their wire and stored format, in both directions.

In Python, an event is a dataclass with Python names, times and durations. On the wire it is JSON
with camel case, milliseconds and the keys of the indexes, which ``wire`` describes; this module
has the event as a whole. Derived values (the index keys, the event's id) are written for other
readers and ignored when they are read; so are unknown properties.

Stores and buses refuse events of more than a few hundred kilobytes. The fields of a larger event
that can grow (inputs, results, lists of tasks) are moved to the blob store, and the event carries
a reference in their place. Only these fields are moved, so that everything that routes an event is
in the event. The caller stores the overflow *before* the event that refers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from longshore.core.events import types
from longshore.core.events.event import Event, EventContext
from longshore.core.events.types import EntityType, EventBody
from longshore.core.events.wire import (
    WireObject,
    expected_error,
    from_ms,
    nested_error,
    read_integer,
    read_object,
    read_text,
    to_ms,
)
from longshore.errors import UsageError

T = TypeVar("T")

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
    event_type: str, properties: Mapping[str, Any]
) -> tuple[EventBody, str | None]:
    """Returns the body, and the blob key of its large fields if they were moved out.

    Large fields that were moved out are empty in the body.

    Raises:
        UsageError: the type is unknown, or a property is missing or of the wrong kind.
    """
    body = EVENT_TYPES.get(event_type)
    if body is None:
        message = f"eventType: there is no event {event_type!r}"
        raise UsageError(message)
    try:
        overflow = overflow_key(read_object(properties))
        if overflow is not None:
            properties = {**_PLACEHOLDERS[body], **properties}
        return EVENT_FORMATS[body].read(properties), overflow
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
    """Returns the event that ``to_wire`` wrote.

    Raises:
        UsageError: a field is missing or of the wrong kind; the message names it.
    """
    if not isinstance(wire, Mapping):
        raise nested_error("event", expected_error("an object"))
    body, overflow = body_from_properties(
        _read_field(wire, "eventType", read_text), _read_field(wire, "properties", read_object)
    )
    return Event(
        entity_type=_read_field(wire, "entityType", _read_entity_type),
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
        message = f"{name} is missing"
        raise UsageError(message)
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
    properties: Mapping[str, Any], *, size: int, limit: int = EVENT_SIZE_LIMIT_BYTES
) -> dict[str, Any] | None:
    """Returns the fields to move out of an event, or None if the event is small enough.

    Args:
        size: Bytes of the whole event.
    """
    large = {name: properties[name] for name in LARGE_FIELDS if name in properties}
    return large if size > limit and large else None


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
