"""The relay: publishes the events of the ledger's stream on the bus, in the stream's order.

A stream is read again from the first record that was not handled, so an event that cannot be
published blocks later ones. A record that cannot be read is put aside and blocks nothing.
Publishing twice is safe: consumers are idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from longshore.core.events.event import Event
from longshore.errors import BackendError, UsageError
from longshore.ports.events import EventBus

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]


class Relay:
    """Publishes the events in a stream's records."""

    def __init__(
        self,
        *,
        bus: EventBus,
        position_of: Callable[[Record], str],
        events_in: Callable[[Record], Sequence[Event]],
        dead_letter: Callable[[Record, str], Awaitable[None]],
    ) -> None:
        """See the class.

        Args:
            place_of: Where a record stands in its stream.
            told_by: The events of a record; raises UsageError if it cannot be read.
            aside: Puts a record that cannot be read where somebody looks after it, and says why.
        """
        self._bus = bus
        self._position_of = position_of
        self._events_in = events_in
        self._dead_letter = dead_letter

    async def publish(self, records: Sequence[Record]) -> str | None:
        """Publish all events. Returns the first record's position to read again, or None."""
        places: dict[str, str] = {}  # by event
        events: list[Event] = []
        failed: set[str] = set()
        for record in records:
            place = self._position_of(record)
            try:
                told = self._events_in(record)
            except UsageError as error:
                if not await self._try_dead_letter(record, place, str(error)):
                    failed.add(place)
                continue
            events += told
            places |= {event.id: place for event in told}
        failed |= {places[event.id] for event in await self._publish_events(events)}
        return next((place for place in map(self._position_of, records) if place in failed), None)

    async def _publish_events(self, events: Sequence[Event]) -> Sequence[Event]:
        """Returns the events that were not accepted, as far as is known."""
        if not events:
            return ()
        try:
            refused = await self._bus.publish(events)
        except BackendError:
            logger.exception("relay.publish_failed")
            return events
        if refused:
            logger.warning(
                "relay.publish_rejected", extra={"events": [event.id for event in refused]}
            )
        return refused

    async def _try_dead_letter(self, record: Record, position: str, reason: str) -> bool:
        about = {"position": position, "reason": reason}
        try:
            await self._dead_letter(record, reason)
        except BackendError as error:
            logger.warning("relay.dead_letter_failed", extra={**about, "error": str(error)})
            return False
        logger.error("relay.record_rejected", extra=about)
        return True
