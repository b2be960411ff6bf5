"""eventbridge-dlq-alert: events that were not delivered → kept, and people told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from longshore.core.undelivered import UndeliveredEvent
from longshore.interfaces.lambdas.batches import BatchResponse, process_together
from longshore.interfaces.lambdas.container import Container, LambdaContext
from longshore.wiring.lambdas import LambdaServices, open_services_with_secrets

container = Container(open_services_with_secrets)


def handler(event: Any, context: LambdaContext) -> BatchResponse:
    """Keep each of them, then tell people."""
    return process_together(
        container, event, context, lambda wired, record: wired.read_undelivered(record), _store
    )


async def _store(wired: LambdaServices, letters: Mapping[str, UndeliveredEvent]) -> Collection[str]:
    left = await wired.undelivered.store_and_alert(list(letters.values()))
    return [letter.message_id for letter in left]
