"""The relay: brings what was committed from the ledger's stream to the bus, in its order.

A stream is read from the first record on that was not dealt with, so one that cannot be told holds
up those behind it; one that cannot even be read must not, and is put where somebody looks after it.
Whatever is told twice is told twice: nobody is harmed by it.
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
    """Tells of what a stream's records tell of."""

    def __init__(
        self,
        *,
        bus: EventBus,
        place_of: Callable[[Record], str],
        told_by: Callable[[Record], Sequence[Event]],
        aside: Callable[[Record, str], Awaitable[None]],
    ) -> None:
        """See the class.

        Args:
            place_of: Where a record stands in its stream.
            told_by: The events of a record; raises UsageError if it cannot be read.
            aside: Puts a record that cannot be read where somebody looks after it, and says why.
        """
        self._bus = bus
        self._place_of = place_of
        self._told_by = told_by
        self._aside = aside

    async def tell(self, records: Sequence[Record]) -> str | None:
        """Tell all of it; the place of the first record that must come again, or None."""
        places: dict[str, str] = {}  # by event
        events: list[Event] = []
        failed: set[str] = set()
        for record in records:
            place = self._place_of(record)
            try:
                told = self._told_by(record)
            except UsageError as error:
                if not await self._put_aside(record, place, str(error)):
                    failed.add(place)
                continue
            events += told
            places |= {event.id: place for event in told}
        failed |= {places[event.id] for event in await self._publish(events)}
        return next((place for place in map(self._place_of, records) if place in failed), None)

    async def _publish(self, events: Sequence[Event]) -> Sequence[Event]:
        """Those that were not accepted, as far as is known."""
        if not events:
            return ()
        try:
            refused = await self._bus.publish(events)
        except BackendError:
            logger.exception("relay.refused")
            return events
        if refused:
            logger.warning("relay.untold", extra={"events": [event.id for event in refused]})
        return refused

    async def _put_aside(self, record: Record, place: str, reason: str) -> bool:
        about = {"place": place, "reason": reason}
        try:
            await self._aside(record, reason)
        except BackendError as error:
            logger.warning("relay.not_put_aside", extra={**about, "error": str(error)})
            return False
        logger.error("relay.unreadable", extra=about)
        return True
