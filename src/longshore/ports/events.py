"""The event log (history, queries) and the event bus (who must hear of what)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from longshore.core.events.event import Event, EventContext
from longshore.core.events.types import EventBody
from longshore.core.pages import Page


class EventLog(Protocol):
    """Everything that was ever told, by entity and in order.

    Events of tasks and jobs get here with their row's commit. Tenants do not meet: every call
    names one and sees only its events.
    """

    async def record(self, events: Sequence[Event]) -> None:
        """Write events that have their place already; the same event twice is one.

        Raises:
            AlreadyExists: another event has that entity and sequence; nothing was written.
        """
        ...

    async def append(
        self,
        *,
        tenant: str,
        app: str,
        entity_id: str,
        body: EventBody,
        context: EventContext,
        now: datetime,
    ) -> Event:
        """Write an event of an entity that has no row, as the next in its sequence."""
        ...

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        """Events of ``entity`` (``TASK#…``) with a sequence above ``after``, in order."""
        ...

    async def latest(self, tenant: str, entity: str) -> Event | None:
        """The entity's last event by sequence."""
        ...

    async def query(
        self,
        tenant: str,
        *,
        app: str | None = None,
        event_type: str | None = None,
        entity: str | None = None,
        job_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Event]:
        """Events that fit every given condition, in the order in which they were recorded.

        A log that is kept by time has them in the order of their moments instead: an event that was
        recorded late then stands among those of its time.

        ``job_id`` gives the job's own events and those of all its tasks.

        Raises:
            UsageError: the cursor was not made by this query.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Events for a consumer, and what to acknowledge when they have been dealt with."""

    events: tuple[Event, ...]
    receipt: str


class EventBus(Protocol):
    """Brings each recorded event to each consumer, at least once.

    Consumers are named and durable: one that stops goes on where it last acknowledged. A consumer
    seen for the first time starts with the first event there is. Events may come twice, and on
    some backends out of order: a consumer reads rows, it does not believe events.
    """

    async def publish(self, events: Sequence[Event]) -> list[Event]:
        """Bring events to the consumers; returns those that were not accepted."""
        ...

    async def receive(
        self,
        consumer: str,
        *,
        types: Collection[str],
        limit: int,
        wait: timedelta,
    ) -> Delivery | None:
        """The next events of these types, or None if none came within ``wait``.

        Until it is acknowledged, the same delivery may be handed out again.
        """
        ...

    async def acknowledge(self, consumer: str, receipt: str) -> None:
        """The delivery has been dealt with; where all come in order, everything before it too."""
        ...
