"""dispatcher: the bus → what follows from the end of a task."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from longshore.core.events.event import Event
from longshore.interfaces.lambdas.batches import Answer, together
from longshore.interfaces.lambdas.container import Container, Context
from longshore.wiring.functions import Wired, wired

container = Container(wired)


def handler(event: Any, context: Context) -> Answer:
    """Move jobs forward whose tasks have ended."""
    return together(container, event, context, lambda wired, record: wired.event_in(record), _hear)


async def _hear(wired: Wired, events: Mapping[str, Event]) -> Collection[str]:
    again = {event.id for event in await wired.services.dispatcher.hear(list(events.values()))}
    return [message_id for message_id, event in events.items() if event.id in again]
