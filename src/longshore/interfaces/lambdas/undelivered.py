"""eventbridge-dlq-alert: events that were not delivered → kept, and people told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from longshore.core.undelivered import Undelivered
from longshore.interfaces.lambdas.batches import Answer, together
from longshore.interfaces.lambdas.container import Container, Context
from longshore.wiring.functions import Wired, telling_people

container = Container(telling_people)


def handler(event: Any, context: Context) -> Answer:
    """Keep each of them, then tell people."""
    return together(
        container, event, context, lambda wired, record: wired.undelivered_in(record), _take
    )


async def _take(wired: Wired, letters: Mapping[str, Undelivered]) -> Collection[str]:
    left = await wired.undelivered.take(list(letters.values()))
    return [letter.message_id for letter in left]
