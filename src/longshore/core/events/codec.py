"""Events as they travel and are stored, both ways.

Inside, an event is a dataclass with our names, moments and durations; outside, it is the JSON that
every reader of the log agrees on: camel case, milliseconds, and the index keys beside it. ``kinds``
and ``shapes`` say how values and objects look; here is the event as a whole.

What is derived (the index keys, the event's id) is written for readers elsewhere and ignored when
read back; so is anything that is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, get_args

from longshore.core.events.event import Event, EventContext
from longshore.core.events.folding import EVENT_TO_STATE
from longshore.core.events.overflow import LARGE_FIELDS, REFERENCE_FIELD
from longshore.core.events.types import EntityType, EventBody, JobCancelled, JobCompleted
from longshore.core.events.wire_objects import WireObject
from longshore.core.events.wire_values import (
    PropertyDoc,
    expected_error,
    from_ms,
    nested_error,
    read_integer,
    read_object,
    read_text,
    to_ms,
)
from longshore.errors import UsageError


def index_keys(event: Event) -> dict[str, str]:
    """The primary key and the keys of the seven indexes."""
    at = f"TIMESTAMP#{to_ms(event.at)}"
    tenant = f"TENANT#{event.tenant}"
    app = f"APP#{event.app}"
    kind = f"EVENT#{event.type}"
    entity = event.entity
    return {
        "PK": tenant,
        "SK": f"{at}#EVENT#{event.id}",
        "GSI1PK": entity,
        "GSI1SK": f"{event.entity_type.value}#{at}",
        "GSI2PK": app,
        "GSI2SK": at,
        "GSI3PK": app,
        "GSI3SK": f"{entity}#{at}",
        "GSI4PK": kind,
        "GSI4SK": f"{tenant}#{at}",
        "GSI5PK": kind,
        "GSI5SK": f"{tenant}#{entity}#{at}",
        "GSI6PK": kind,
        "GSI6SK": f"{tenant}#{app}#{at}",
        "GSI7PK": kind,
        "GSI7SK": f"{tenant}#{app}#{entity}#{at}",
    }


T = TypeVar("T")

EVENT_TYPES: dict[str, type[EventBody]] = {body.TYPE: body for body in get_args(EventBody)}
"""Every event's class by its name on the wire."""

_WIRE_OBJECTS = {body: WireObject(body) for body in EVENT_TYPES.values()}
_CONTEXT = WireObject(EventContext)
_PLACEHOLDERS = {
    body: {
        each.name: each.kind.placeholder
        for each in shape.properties
        if each.name in LARGE_FIELDS and not each.nullable
    }
    for body, shape in _WIRE_OBJECTS.items()
}


def properties_of(event: Event) -> dict[str, Any]:
    """What the event says beside its envelope; without the large fields if they were moved out."""
    properties = properties_of_body(event.body)
    if event.overflow is not None:
        for name in LARGE_FIELDS:
            properties.pop(name, None)
        properties[REFERENCE_FIELD] = {"key": event.overflow}
    return properties


def properties_of_body(body: EventBody) -> dict[str, Any]:
    """Everything that an event of this body says, as it travels."""
    return _WIRE_OBJECTS[type(body)].write(body)


def body_from_properties(
    event_type: str, properties: Mapping[str, Any]
) -> tuple[EventBody, str | None]:
    """The body, and the key under which its large fields are kept if they were moved out.

    Large fields that are not here are empty in the body.

    Raises:
        UsageError: The type is not known, or a property is missing or of the wrong kind.
    """
    body = EVENT_TYPES.get(event_type)
    if body is None:
        message = f"eventType: no event is called {event_type!r}"
        raise UsageError(message)
    try:
        overflow = _read_overflow(read_object(properties).get(REFERENCE_FIELD))
        if overflow is not None:
            properties = {**_PLACEHOLDERS[body], **properties}
        return _WIRE_OBJECTS[body].read(properties), overflow
    except UsageError as wrong:
        raise nested_error("properties", wrong) from None


def to_wire(event: Event, *, environment: str, ttl_at: datetime | None = None) -> dict[str, Any]:
    """The whole event, with all keys.

    Args:
        ttl_at: When a store may drop it; None keeps it.
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
        # The one time on the wire that is in seconds: stores that expire items read it so.
        wire["ttl"] = to_ms(ttl_at) // 1000
    return wire


def from_wire(wire: Mapping[str, Any]) -> Event:
    """The inverse of ``to_wire``.

    Raises:
        UsageError: A field is missing or of the wrong kind; the message names it.
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
    except UsageError as wrong:
        raise nested_error(name, wrong) from None


def _read_entity_type(value: Any) -> EntityType:
    try:
        return EntityType(value)
    except ValueError:
        raise expected_error(f"one of {', '.join(EntityType)}") from None


def _read_overflow(reference: Any) -> str | None:
    if reference is None:
        return None
    try:
        return read_text(read_object(reference).get("key"))
    except UsageError as wrong:
        raise nested_error(f".{REFERENCE_FIELD}.key", wrong) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDoc:
    """One event type as the reference page shows it."""

    name: str
    entity: EntityType
    when: str
    properties: tuple[PropertyDoc, ...]
    terminal: bool  # ends its task or job


def event_docs() -> list[EventDoc]:
    """Every event type, for the reference page."""
    return [
        EventDoc(
            name=name,
            entity=body.ENTITY,
            when=(body.__doc__ or "").partition("\n")[0],
            properties=_WIRE_OBJECTS[body].docs(),
            terminal=_is_terminal(body),
        )
        for name, body in EVENT_TYPES.items()
    ]


def _is_terminal(body: type[EventBody]) -> bool:
    state = EVENT_TO_STATE.get(body.TYPE)
    return body in (JobCompleted, JobCancelled) if state is None else state.terminal
