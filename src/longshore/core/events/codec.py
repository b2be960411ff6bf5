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

from longshore.core.events.event import Context, Event
from longshore.core.events.folding import EVENT_TO_STATE
from longshore.core.events.keys import index_keys
from longshore.core.events.kinds import (
    Part,
    expected,
    inside,
    mapping,
    moment_of,
    ms_of,
    text,
    whole,
)
from longshore.core.events.shapes import Shape
from longshore.core.events.types import EntityType, EventBody, JobCancelled, JobCompleted
from longshore.core.overflow import LARGE_FIELDS, REFERENCE_FIELD
from longshore.errors import UsageError

T = TypeVar("T")

EVENT_TYPES: dict[str, type[EventBody]] = {body.TYPE: body for body in get_args(EventBody)}
"""Every event's class by its name on the wire."""

_SHAPES = {body: Shape(body) for body in EVENT_TYPES.values()}
_CONTEXT = Shape(Context)
_BLANKS = {
    body: {
        each.name: each.kind.blank
        for each in shape.properties
        if each.name in LARGE_FIELDS and not each.nullable
    }
    for body, shape in _SHAPES.items()
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
    return _SHAPES[type(body)].write(body)


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
        overflow = _overflow(mapping(properties).get(REFERENCE_FIELD))
        if overflow is not None:
            properties = {**_BLANKS[body], **properties}
        return _SHAPES[body].read(properties), overflow
    except UsageError as wrong:
        raise inside("properties", wrong) from None


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
        "timestamp": ms_of(event.at),
        "context": {**_CONTEXT.write(event.context), "environment": environment},
        "properties": properties_of(event),
    }
    if ttl_at is not None:
        # The one time on the wire that is in seconds: stores that expire items read it so.
        wire["ttl"] = ms_of(ttl_at) // 1000
    return wire


def from_wire(wire: Mapping[str, Any]) -> Event:
    """The inverse of ``to_wire``.

    Raises:
        UsageError: A field is missing or of the wrong kind; the message names it.
    """
    if not isinstance(wire, Mapping):
        raise inside("event", expected("an object"))
    body, overflow = body_from_properties(
        _field(wire, "eventType", text), _field(wire, "properties", mapping)
    )
    return Event(
        entity_type=_field(wire, "entityType", _entity_type),
        entity_id=_field(wire, "entityId", text),
        tenant=_field(wire, "tenantId", text),
        app=_field(wire, "app", text),
        sequence=_field(wire, "sequence", whole),
        at=_field(wire, "timestamp", moment_of),
        body=body,
        context=_field(wire, "context", _CONTEXT.read),
        overflow=overflow,
    )


def _field(wire: Mapping[str, Any], name: str, read: Callable[[Any], T]) -> T:
    if name not in wire:
        message = f"{name} is missing"
        raise UsageError(message)
    try:
        return read(wire[name])
    except UsageError as wrong:
        raise inside(name, wrong) from None


def _entity_type(value: Any) -> EntityType:
    try:
        return EntityType(value)
    except ValueError:
        raise expected(f"one of {', '.join(EntityType)}") from None


def _overflow(reference: Any) -> str | None:
    if reference is None:
        return None
    try:
        return text(mapping(reference).get("key"))
    except UsageError as wrong:
        raise inside(f".{REFERENCE_FIELD}.key", wrong) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDoc:
    """One event type as the reference page shows it."""

    name: str
    entity: EntityType
    when: str
    properties: tuple[Part, ...]
    terminal: bool  # ends its task or job


def describe() -> list[EventDoc]:
    """Every event type, for the reference page."""
    return [
        EventDoc(
            name=name,
            entity=body.ENTITY,
            when=(body.__doc__ or "").partition("\n")[0],
            properties=_SHAPES[body].parts(),
            terminal=_is_terminal(body),
        )
        for name, body in EVENT_TYPES.items()
    ]


def _is_terminal(body: type[EventBody]) -> bool:
    state = EVENT_TO_STATE.get(body.TYPE)
    return body in (JobCompleted, JobCancelled) if state is None else state.terminal
