"""Undelivered events: stored first, reported to people once, and replayed on request.

They are in the blob store only: a message is removed from its queue when it is stored there and
every channel was notified. The notified channels are stored with it, so that a message that is
received again, because another channel was unavailable, is not reported twice to one channel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from longshore.core.events.event import Event
from longshore.core.undelivered import (
    KEY_PREFIX,
    UndeliveredEvent,
    UndeliveredNotice,
    UndeliveredRecord,
    id_of_key,
    key_of_id,
    record_from_json,
    record_to_json,
)
from longshore.errors import BackendUnavailable, NotFound, UsageError
from longshore.ports.backend import Backend
from longshore.services.alerts import AlertSender

logger = logging.getLogger(__name__)


class UndeliveredEvents:
    """Stores, reports and replays events that could not be delivered."""

    def __init__(
        self,
        *,
        backend: Backend,
        alert_sender: AlertSender,
        decode: Callable[[str], Sequence[Event]],
        tenant: str,
    ) -> None:
        """Create the service.

        Args:
            read: Returns the events in a message's body; raises UsageError if it has none.
            tenant: The tenant for events that name none.
        """
        self._backend = backend
        self._alert_sender = alert_sender
        self._decode = decode
        self._tenant = tenant

    async def store_and_alert(self, letters: Sequence[UndeliveredEvent]) -> list[UndeliveredEvent]:
        """Store events and report them. Returns those that a channel has not accepted yet.

        Raises:
            BackendError: they could not be stored; nothing was reported.
        """
        groups: dict[tuple[str, frozenset[str]], list[UndeliveredEvent]] = {}
        for letter in letters:
            record = await self._store(letter)
            tenant = letter.facts().tenant or self._tenant
            groups.setdefault((tenant, record.notified), []).append(letter)
        left: list[UndeliveredEvent] = []
        for (tenant, known_to), some in groups.items():
            notified = await self._alert(tenant, known_to, some)
            if not self._alert_sender.channels <= notified:
                left += some
        return left

    async def _alert(
        self, tenant: str, notified: frozenset[str], letters: Sequence[UndeliveredEvent]
    ) -> frozenset[str]:
        now = self._backend.clock.now()
        notice = UndeliveredNotice(tenant=tenant, at=now, events=tuple(letters))
        reached = await self._alert_sender.send_notice(notice, notified=notified)
        if reached != notified:
            for letter in letters:
                await self._backend.blobs.put(
                    letter.key, record_to_json(UndeliveredRecord(event=letter, notified=reached))
                )
        return reached

    async def _store(self, letter: UndeliveredEvent) -> UndeliveredRecord:
        """Store an event; it is durable when this returns."""
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
        record = UndeliveredRecord(event=letter)
        await self._backend.blobs.put(letter.key, record_to_json(record))
        return record

    async def _read_stored(self, key: str) -> UndeliveredRecord:
        return record_from_json(await self._backend.blobs.get(key))

    async def list(self, *, limit: int = 100, after: str = "") -> list[UndeliveredEvent]:
        """Returns stored events after the one with the id ``after``, the oldest first."""
        behind = key_of_id(after) if after else ""
        keys = await self._backend.blobs.list_keys(KEY_PREFIX, after=behind, limit=limit)
        return [await self._get(id_of_key(key)) for key in keys]

    async def _get(self, letter_id: str) -> UndeliveredEvent:
        key = key_of_id(letter_id)
        try:
            return (await self._read_stored(key)).event
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
        events = self._decode(letter.body)
        if refused := await self._backend.bus.publish(events):
            message = f"{len(refused)} of {len(events)} events were not accepted by the bus"
            raise BackendUnavailable(message)
        await self._backend.blobs.delete(letter.key)
        logger.info("event.replayed", extra={"id": letter_id, "events": len(events)})
        return len(events)
