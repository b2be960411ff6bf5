"""Delivery of events where a stream carries them from the ledger to the bus.

The relay publishes the events of the ledger's stream in the stream's order. A stream is read again
from the first record that was not handled, so an event that cannot be published blocks later ones.
A record that cannot be read is dead-lettered and blocks nothing. Publishing twice is safe:
consumers are idempotent.

Events that could not be delivered are stored first, reported to people once, and replayed on
request. They are in the blob store only: a message is removed from its queue when it is stored
there and every channel was notified. The notified channels are stored with it, so that a message
that is received again, because another channel was unavailable, is not reported twice to one
channel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from longshore.core.events.event import Event
from longshore.core.undelivered import (
    KEY_PREFIX,
    UndeliveredEvent,
    UndeliveredNotice,
    id_of_key,
    key_of_id,
    undelivered_from_json,
    undelivered_to_json,
)
from longshore.errors import BackendError, BackendUnavailable, NotFound, UsageError
from longshore.ports.backend import Backend
from longshore.ports.events import ChangeStream, EventBus, Record
from longshore.services.health import AlertSender

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Relay:
    """Publishes the events in a stream's records."""

    bus: EventBus
    stream: ChangeStream

    async def publish(self, records: Sequence[Record]) -> str | None:
        """Publish all events. Returns the first record's position to read again, or None."""
        positions: dict[str, str] = {}  # by event id
        events: list[Event] = []
        failed: set[str] = set()
        for record in records:
            position = self.stream.position_of(record)
            try:
                changes = self.stream.events_in(record)
            except UsageError as error:
                if not await self._try_dead_letter(record, position, str(error)):
                    failed.add(position)
                continue
            events += changes
            positions |= {event.id: position for event in changes}
        failed |= {positions[event.id] for event in await self._publish_events(events)}
        in_order = map(self.stream.position_of, records)
        return next((position for position in in_order if position in failed), None)

    async def _publish_events(self, events: Sequence[Event]) -> Sequence[Event]:
        """Returns the events that were not accepted, as far as is known."""
        if not events:
            return ()
        try:
            refused = await self.bus.publish(events)
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
            await self.stream.dead_letter(record, reason)
        except BackendError as error:
            logger.warning("relay.dead_letter_failed", extra={**about, "error": str(error)})
            return False
        logger.error("relay.record_rejected", extra=about)
        return True


@dataclass(frozen=True, kw_only=True)
class UndeliveredEvents:
    """Stores, reports and replays events that could not be delivered.

    Args:
        decode: Returns the events in a message's body; raises UsageError if it has none.
        tenant: The tenant for events that name none.
    """

    backend: Backend
    alert_sender: AlertSender
    decode: Callable[[str], Sequence[Event]]
    tenant: str

    async def store_and_alert(self, letters: Sequence[UndeliveredEvent]) -> list[UndeliveredEvent]:
        """Store events and report them. Returns those that a channel has not accepted yet.

        Raises:
            BackendError: they could not be stored; nothing was reported.
        """
        groups: dict[tuple[str, tuple[str, ...]], list[UndeliveredEvent]] = {}
        for letter in letters:
            stored = await self._store(letter)
            tenant = letter.facts().tenant or self.tenant
            groups.setdefault((tenant, stored.notified), []).append(letter)
        left: list[UndeliveredEvent] = []
        for (tenant, notified), group in groups.items():
            reached = await self._alert(tenant, notified, group)
            if not self.alert_sender.channel_names <= reached:
                left += group
        return left

    async def _alert(
        self, tenant: str, notified: Sequence[str], letters: Sequence[UndeliveredEvent]
    ) -> frozenset[str]:
        now = self.backend.clock.now()
        notice = UndeliveredNotice(tenant=tenant, at=now, events=tuple(letters))
        reached = await self.alert_sender.send_notice(notice, notified=notified)
        if reached != set(notified):
            for letter in letters:
                await self._put(replace(letter, notified=tuple(sorted(reached))))
        return reached

    async def _store(self, letter: UndeliveredEvent) -> UndeliveredEvent:
        """Store an event; it is durable when this returns the stored one."""
        try:
            return await self._read_stored(letter.key)
        except NotFound:
            logger.error(  # noqa: TRY400 - that it is missing is the normal case
                "event.undelivered",
                extra={"id": letter.id, "source": letter.source, "reason": letter.reason},
            )
        except UsageError as error:
            extra = {"id": letter.id, "error": str(error)}
            logger.warning("event.record_unreadable", extra=extra)
        await self._put(letter)
        return letter

    async def _put(self, letter: UndeliveredEvent) -> None:
        await self.backend.blobs.put(letter.key, undelivered_to_json(letter))

    async def _read_stored(self, key: str) -> UndeliveredEvent:
        return undelivered_from_json(await self.backend.blobs.get(key))

    async def list(self, *, limit: int = 100, after: str = "") -> list[UndeliveredEvent]:
        """Returns stored events after the one with the id ``after``, the oldest first."""
        after_key = key_of_id(after) if after else ""
        keys = await self.backend.blobs.list_keys(KEY_PREFIX, after=after_key, limit=limit)
        return [await self._get(id_of_key(key)) for key in keys]

    async def _get(self, letter_id: str) -> UndeliveredEvent:
        key = key_of_id(letter_id)
        try:
            return await self._read_stored(key)
        except NotFound:
            raise NotFound("undelivered event", letter_id) from None

    async def replay(self, letter_id: str) -> int:
        """Publish an undelivered message again, delete it, and return how many events it had.

        All consumers receive the events again; consumers are idempotent.

        Raises:
            NotFound: there is no such undelivered event.
            UsageError: it cannot be read, and stays stored.
            BackendUnavailable: the bus did not accept it, and it stays stored.
        """
        letter = await self._get(letter_id)
        events = self.decode(letter.body)
        if refused := await self.backend.require_bus().publish(events):
            message = f"{len(refused)} of {len(events)} events were not accepted by the bus"
            raise BackendUnavailable(message)
        await self.backend.blobs.delete(letter.key)
        logger.info("event.replayed", extra={"id": letter_id, "events": len(events)})
        return len(events)

    async def discard(self, letter_id: str) -> None:
        """Delete an undelivered event that no consumer needs any more.

        Raises:
            NotFound: there is no such undelivered event.
        """
        letter = await self._get(letter_id)
        await self.backend.blobs.delete(letter.key)
        logger.warning("event.discarded", extra={"id": letter_id})
