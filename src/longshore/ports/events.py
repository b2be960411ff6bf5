"""The event log (history and queries), the event bus (delivery to consumers), and its source."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypedDict, Unpack

from longshore.core.events.event import Event, NewEvent

Record = Mapping[str, Any]


class EventConditions(TypedDict, total=False):
    """Conditions of a query; one that is missing or None matches every event."""

    app: str | None
    event_type: str | None
    entity: str | None
    job_id: str | None  # events of the job and of all its tasks


@dataclass(frozen=True, slots=True)
class EventQueryResult:
    """Events, the cursor after each of them, and whether more are recorded.

    A cursor stays valid: events that are recorded later follow it.
    """

    items: tuple[Event, ...] = ()
    cursors: tuple[str, ...] = ()
    more: bool = False

    @property
    def cursor(self) -> str | None:
        """The cursor of the next page; None: this is the last one so far."""
        return self.cursors[-1] if self.more else None


class EventLog(Protocol):
    """All events, by entity and in order.

    Events of tasks and jobs are written with the commit of their row. Every call names a tenant and
    sees only its events.
    """

    async def append(self, **new: Unpack[NewEvent]) -> Event:
        """Write the next event of an entity that has no row. Returns the event."""
        ...

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        """Returns events of ``entity`` (``TASK#…``) with a sequence above ``after``, in order."""
        ...

    async def latest(self, tenant: str, entity: str) -> Event | None:
        """Returns the last event of an entity by sequence."""
        ...

    async def query(
        self,
        tenant: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        **conditions: Unpack[EventConditions],
    ) -> EventQueryResult:
        """Returns events that match every condition, in the order in which they were recorded.

        A log that is ordered by time returns them by their times instead.

        Raises:
            UsageError: the cursor belongs to another query.
            CursorLost: the store was restored from a backup, or lost its last events in a power
                loss, and does not have the event of the cursor.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Events for a consumer, and the receipt by which it acknowledges them."""

    events: tuple[Event, ...]
    receipt: str


class EventBus(Protocol):
    """Delivers each recorded event to each consumer, at least once.

    Consumers are named and durable: a consumer that restarts continues after its last
    acknowledgement. A new consumer starts with the first event. Events may arrive twice, and on
    some backends out of order: a consumer reads rows and does not rely on events.
    """

    async def publish(self, events: Sequence[Event]) -> list[Event]:
        """Publish events. Returns those that were not accepted."""
        ...

    async def receive(
        self,
        consumer: str,
        *,
        types: Collection[str],
        limit: int,
        wait: timedelta,
    ) -> Delivery | None:
        """Returns the next events of these types, or None if none arrived within ``wait``.

        A delivery may be repeated until it is acknowledged.
        """
        ...

    async def acknowledge(self, consumer: str, receipt: str) -> None:
        """Acknowledge a delivery; on backends with ordered delivery, also all earlier ones."""
        ...


class ChangeStream(Protocol):
    """Reads the records of a ledger's stream of changes, which come in order and at least once.

    Backends whose ledger dispatches in its commits have none.
    """

    def position_of(self, record: Record) -> str:
        """The position of a record in the stream."""
        ...

    def events_in(self, record: Record) -> Sequence[Event]:
        """The events of the change; none if the record is not the change of a row.

        Raises:
            UsageError: the record cannot be read.
        """
        ...

    async def dead_letter(self, record: Record, reason: str) -> None:
        """Store a record that cannot be read with the undelivered events.

        Raises:
            BackendUnavailable: the record was not stored.
        """
        ...
