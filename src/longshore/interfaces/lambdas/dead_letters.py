"""dlq-processor: the queues' own dead-letter queues → tasks that failed."""

from __future__ import annotations

from typing import Any

from longshore.interfaces.lambdas.batches import BatchResponse, Record, process_each
from longshore.interfaces.lambdas.container import Container, LambdaContext
from longshore.wiring.lambdas import LambdaServices, open_lambda_services

container = Container(open_lambda_services)


def handler(event: Any, context: LambdaContext) -> BatchResponse:
    """Let each dead message have its effect, before it is removed."""
    return process_each(container, event, context, _process)


async def _process(wired: LambdaServices, record: Record) -> None:
    message = wired.read_dead_message(record)
    await wired.dead_letters.settle_received(message, tenant=wired.settings.tenant)
