"""Undelivered events: kept before anything else, told to people once, brought out again on request.

The blob store is all that there is of them: a message is removed from its queue when it is kept
there and every channel knows of it. What a channel was told is kept beside it, so that a message
that comes again, because another channel was out of reach, is not told twice to the same people.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from longshore.core.events.event import Event
from longshore.core.undelivered import (
    FOLDER,
    Kept,
    Undelivered,
    UndeliveredNotice,
    id_in,
    kept_from_json,
    kept_to_json,
    key_of,
)
from longshore.errors import BackendUnavailable, NotFound, UsageError
from longshore.ports.backend import Backend
from longshore.services.alerting import Alerting

logger = logging.getLogger(__name__)


class UndeliveredEvents:
    """Looks after events that did not get to whoever should hear of them."""

    def __init__(
        self,
        *,
        backend: Backend,
        alerting: Alerting,
        read: Callable[[str], Sequence[Event]],
        tenant: str,
    ) -> None:
        """See the class.

        Args:
            read: The events that a message's body holds; raises UsageError if it holds none.
            tenant: Who is told of what names no tenant.
        """
        self._backend = backend
        self._alerting = alerting
        self._read = read
        self._tenant = tenant

    async def take(self, letters: Sequence[Undelivered]) -> list[Undelivered]:
        """Keep them and tell people; returns those of which somebody is still to be told.

        Raises:
            BackendError: they could not be kept; nobody was told of anything.
        """
        groups: dict[tuple[str, frozenset[str]], list[Undelivered]] = {}
        for letter in letters:
            kept = await self._kept(letter)
            tenant = letter.facts().tenant or self._tenant
            groups.setdefault((tenant, kept.told), []).append(letter)
        left: list[Undelivered] = []
        for (tenant, known_to), some in groups.items():
            told = await self._announced(tenant, known_to, some)
            if not self._alerting.channels <= told:
                left += some
        return left

    async def _announced(
        self, tenant: str, known_to: frozenset[str], letters: Sequence[Undelivered]
    ) -> frozenset[str]:
        now = self._backend.clock.now()
        notice = UndeliveredNotice(tenant=tenant, at=now, events=tuple(letters))
        told = await self._alerting.announce(notice, known_to=known_to)
        if told != known_to:
            for letter in letters:
                await self._backend.blobs.put(
                    letter.key, kept_to_json(Kept(letter=letter, told=told))
                )
        return told

    async def _kept(self, letter: Undelivered) -> Kept:
        """Stored when this returns."""
        try:
            return await self._read_kept(letter.key)
        except NotFound:
            logger.error(  # noqa: TRY400 - that it is not there is as it should be
                "event.undelivered",
                extra={"id": letter.id, "source": letter.source, "reason": letter.reason},
            )
        except UsageError as error:
            extra = {"id": letter.id, "error": str(error)}
            logger.warning("event.kept_unreadable", extra=extra)
        kept = Kept(letter=letter)
        await self._backend.blobs.put(letter.key, kept_to_json(kept))
        return kept

    async def _read_kept(self, key: str) -> Kept:
        return kept_from_json(await self._backend.blobs.get(key))

    async def list(self, *, limit: int = 100, after: str = "") -> list[Undelivered]:
        """What is kept, oldest first, behind the one with the id ``after``."""
        behind = key_of(after) if after else ""
        keys = await self._backend.blobs.keys(FOLDER, after=behind, limit=limit)
        return [await self._named(id_in(key)) for key in keys]

    async def _named(self, letter_id: str) -> Undelivered:
        key = key_of(letter_id)
        try:
            return (await self._read_kept(key)).letter
        except NotFound:
            raise NotFound("undelivered event", letter_id) from None

    async def replay(self, letter_id: str) -> int:
        """Tell the bus once more, and forget it; how many events that were.

        Everybody who listens hears of them again, which harms nobody.

        Raises:
            NotFound: there is no such undelivered event.
            UsageError: it cannot be read, and stays.
            BackendUnavailable: the bus has not taken it, and it stays.
        """
        letter = await self._named(letter_id)
        events = self._read(letter.body)
        if refused := await self._backend.bus.publish(events):
            message = f"{len(refused)} of {len(events)} events were not accepted by the bus"
            raise BackendUnavailable(message)
        await self._backend.blobs.delete(letter.key)
        logger.info("event.replayed", extra={"id": letter_id, "events": len(events)})
        return len(events)
