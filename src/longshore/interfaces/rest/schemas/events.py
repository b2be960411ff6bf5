"""Events, as they travel."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from longshore.interfaces.rest.schemas.base import NEXT, Shape


class EventDocument(Shape):
    """Something that happened; beside this, the keys of the wire's indexes (`PK`, `GSI1PK` …)."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")

    event_id: str
    sequence: int = Field(description="Grows by one within the entity.")
    event_type: str = Field(examples=["Task Completed"])
    app: str
    tenant_id: str
    entity_id: str
    entity_type: str
    timestamp: int = Field(description="Milliseconds since 1970.")
    context: dict[str, Any]
    properties: dict[str, Any]


class TaskEventPage(Shape):
    """Events of a task, in order; go on after the last one's sequence."""

    events: list[EventDocument]


class EventPage(Shape):
    """Events, in the order in which they were recorded."""

    events: list[EventDocument]
    cursor: str | None = Field(description=NEXT)
    end: str = Field(
        description="As `cursor` or `Last-Event-ID`: goes on behind this page, also if this was "
        "all so far and more happens later."
    )
