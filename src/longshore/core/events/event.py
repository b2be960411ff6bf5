"""An event: one fact about one entity, and its position in the history of the entity."""

from __future__ import annotations

import hashlib
from dataclasses import field
from datetime import datetime, timedelta
from typing import TypedDict

from longshore.core.events.types import EntityType, EventBody
from longshore.core.records import value

TICK = timedelta(milliseconds=1)
"""The wire format has milliseconds, so two events of an entity are at least this far apart."""


@value
class EventContext:
    """What caused the event."""

    origin: str  # "producer", "worker", "dispatcher", "sweeper", "operator", "health-check"
    source: str = "system"  # or "user"
    worker_id: str | None = None


@value
class Event:
    """A body with its envelope. Within an entity, ``sequence`` grows by one and ``at`` grows."""

    entity_type: EntityType
    entity_id: str
    tenant: str
    app: str
    sequence: int
    at: datetime
    body: EventBody
    context: EventContext = field(default_factory=lambda: EventContext(origin="system"))
    overflow: str | None = None  # blob key of the large properties that were moved out

    @property
    def type(self) -> str:
        """The event's name on the wire."""
        return self.body.TYPE

    @property
    def entity(self) -> str:
        """The entity as index keys name it, such as ``TASK#job-a_b``."""
        return f"{self.entity_type}#{self.entity_id}"

    @property
    def id(self) -> str:
        """The id, in the form of a UUID.

        It is derived and not random: every process that writes the event writes the same id, so a
        reader that has seen the id has seen the event.
        """
        text = f"{self.tenant}\0{self.entity}\0{self.sequence}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


class NewEvent(TypedDict):
    """An event of an entity without a row, before its log gives it a sequence."""

    tenant: str
    app: str
    entity_id: str
    body: EventBody
    context: EventContext
    now: datetime


def next_event(new: NewEvent, last_sequence: int, last_at: datetime | None) -> Event:
    """Returns the event that follows the last one of its entity."""
    return Event(
        entity_type=new["body"].ENTITY,
        entity_id=new["entity_id"],
        tenant=new["tenant"],
        app=new["app"],
        sequence=last_sequence + 1,
        at=next_moment(new["now"], last_at),
        body=new["body"],
        context=new["context"],
    )


def to_tick(moment: datetime) -> datetime:
    """Returns the time in whole milliseconds, so that a row and its events have equal times."""
    beyond = moment.microsecond % 1000
    return moment.replace(microsecond=moment.microsecond - beyond) if beyond else moment


def next_moment(now: datetime, last: datetime | None) -> datetime:
    """Returns the time of an entity's next event, in whole milliseconds.

    It is later than the time of the event before, even if the clock was set back.
    """
    whole = to_tick(now)
    if last is None or whole > last:
        return whole
    return last + TICK
