"""Events of every type with every field filled in, to see that a store keeps each."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from longshore.core.documents import Document
from longshore.core.events.codec import EVENT_TYPES
from longshore.core.events.event import Event, EventContext
from longshore.core.events.types import EventBody
from longshore.testing.contracts.suite import START

# The wire has whole milliseconds, and so has what an event says.
MOMENT = START.replace(microsecond=123_000)

_VALUES: dict[Any, Any] = {
    str: "Füße 🚢\n\u0000",
    int: 2**40 + 1,
    float: 0.1 + 0.2,
    datetime: MOMENT + timedelta(days=1),
    timedelta: timedelta(days=2, milliseconds=1),
    Document: Document(text='{"a":[1,2.5,null,"ü"]}', size=23),
    dict[str, str | None]: {"b": "pending", "a": None},
}


def full_events(tenant: str) -> list[Event]:
    """One event of each type, each of an entity of its own."""
    return [
        Event(
            entity_type=body.ENTITY,
            entity_id=f"entity-{number}",
            tenant=tenant,
            app="shop",
            sequence=1,
            at=MOMENT,
            body=filled(body),
            context=EventContext(origin="worker", source="user", worker_id="host:1"),
        )
        for number, body in enumerate(EVENT_TYPES.values())
    ]


def filled(body: type[EventBody]) -> Any:
    """An instance in which no field is left out."""
    hints = get_type_hints(body)
    return body(**{field.name: _value(hints[field.name]) for field in fields(body)})


def _value(hint: Any) -> Any:
    if get_origin(hint) is UnionType:
        hint = next(choice for choice in get_args(hint) if choice is not NoneType)
    if hint in _VALUES:
        return _VALUES[hint]
    if get_origin(hint) is tuple:
        return (_value(get_args(hint)[0]),) * 2
    assert is_dataclass(hint), hint
    return filled(hint)  # type: ignore[arg-type]
