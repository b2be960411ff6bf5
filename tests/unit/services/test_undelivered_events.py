"""Undelivered events that an operator discards."""

import asyncio
from datetime import timedelta

import pytest

from longshore.core.undelivered import UndeliveredEvent
from longshore.errors import NotFound
from longshore.services.event_delivery import UndeliveredEvents
from longshore.services.health import AlertSender
from longshore.testing.clock import FakeClock
from longshore.testing.memory.backend import memory_backend
from tests.unit.services.harness import TENANT


def test_a_discarded_event_is_deleted_and_the_others_stay() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        backend = memory_backend(clock)
        store = UndeliveredEvents(
            backend=backend,
            alert_sender=AlertSender(backend, [], cool_down=timedelta(0)),
            decode=lambda _: [],
            tenant=TENANT,
        )
        letters = [
            UndeliveredEvent(
                message_id=name, sent_at=clock.now(), body="odd", source="history", reason="lost"
            )
            for name in ("a", "b")
        ]
        for letter in letters:
            await store._store(letter)

        await store.discard(letters[0].id)

        assert await store.list() == [letters[1]]
        with pytest.raises(NotFound, match="undelivered event"):
            await store.discard(letters[0].id)

    asyncio.run(scenario())
