"""The relay: publishes the events of the ledger's stream on the bus, in the stream's order.

A stream is read again from the first record that was not handled, so an event that cannot be
published blocks later ones. A record that cannot be read is put aside and blocks nothing.
Publishing twice is safe: consumers are idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from longshore.core.events.event import Event
from longshore.errors import BackendError, UsageError
from longshore.ports.change_stream import ChangeStream, Record
from longshore.ports.events import EventBus

logger = logging.getLogger(__name__)


class Relay:
    """Publishes the events in a stream's records."""

    def __init__(self, *, bus: EventBus, stream: ChangeStream) -> None:
        self._bus = bus
        self._stream = stream

    async def publish(self, records: Sequence[Record]) -> str | None:
        """Publish all events. Returns the first record's position to read again, or None."""
        positions: dict[str, str] = {}  # by event
        events: list[Event] = []
        failed: set[str] = set()
        for record in records:
            position = self._stream.position_of(record)
            try:
                changes = self._stream.events_in(record)
            except UsageError as error:
                if not await self._try_dead_letter(record, position, str(error)):
                    failed.add(position)
                continue
            events += changes
            positions |= {event.id: position for event in changes}
        failed |= {positions[event.id] for event in await self._publish_events(events)}
        in_order = map(self._stream.position_of, records)
        return next((position for position in in_order if position in failed), None)

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
            await self._stream.dead_letter(record, reason)
        except BackendError as error:
            logger.warning("relay.dead_letter_failed", extra={**about, "error": str(error)})
            return False
        logger.error("relay.record_rejected", extra=about)
        return True
