"""dispatcher: the bus → what follows from the end of a task."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from longshore.core.events.event import Event
from longshore.interfaces.lambdas.batches import BatchResponse, process_together
from longshore.interfaces.lambdas.container import Container, LambdaContext
from longshore.wiring.lambdas import LambdaServices, open_lambda_services

container = Container(open_lambda_services)


def handler(event: Any, context: LambdaContext) -> BatchResponse:
    """Move jobs forward whose tasks have ended."""
    return process_together(
        container, event, context, lambda wired, record: wired.read_event(record), _dispatch
    )


async def _dispatch(wired: LambdaServices, events: Mapping[str, Event]) -> Collection[str]:
    again = {event.id for event in await wired.dispatcher.handle(list(events.values()))}
    return [message_id for message_id, event in events.items() if event.id in again]
