"""dlq-processor: the queues' own dead-letter queues → tasks that failed."""

from __future__ import annotations

from typing import Any

from longshore.interfaces.lambdas.batches import Answer, Record, each
from longshore.interfaces.lambdas.container import Container, Context
from longshore.wiring.functions import Wired, wired

container = Container(wired)


def handler(event: Any, context: Context) -> Answer:
    """Let each dead message have its effect, before it is removed."""
    return each(container, event, context, _take)


async def _take(wired: Wired, record: Record) -> None:
    message = wired.dead_message_in(record)
    await wired.services.dead_letters.take(message, tenant=wired.settings.tenant)
