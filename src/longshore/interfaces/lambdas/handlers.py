"""The handlers of the Lambda functions: parse, call a service, answer.

A handler has the name of its function, with underscores. The handler ``api`` is in ``api_gateway``,
because it needs a web framework that would slow down the start of the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from longshore.core.events.codec import properties_of_body
from longshore.core.ids import is_task_id
from longshore.errors import UsageError
from longshore.interfaces.lambdas.container import (
    Answer,
    Batch,
    Record,
    failure_response,
    handler,
    records_of,
)
from longshore.services.app import Caller
from longshore.services.documents import to_dict
from longshore.services.event_delivery import Relay
from longshore.wiring.lambdas import (
    LambdaServices,
    open_archive,
    open_lambda_services,
    open_relay,
    open_services_with_secrets,
    read_event,
    read_undelivered,
)


def _retry(records: Sequence[Record]) -> Answer:
    """The response after which AWS reads a whole batch of the stream again."""
    return failure_response([records[0]["dynamodb"]["SequenceNumber"]])


@handler(open_relay, read=records_of, after_timeout=_retry)
async def relay(service: Relay, records: Sequence[Record]) -> Answer:
    """Publish the events of the ledger's stream; answer the first record to read again."""
    first = await service.publish(records)
    return failure_response([first] if first is not None else [])


@handler(open_archive, read=Batch, after_timeout=Batch.answer)
async def save_event(save: Callable[[Record], Awaitable[None]], batch: Batch) -> Answer:
    """Store events from the bus in the event table."""
    await batch.process_each(save)
    return batch.answer()


@handler(open_services_with_secrets, read=Batch, after_timeout=Batch.answer)
async def eventbridge_dlq_alert(services: LambdaServices, batch: Batch) -> Answer:
    """Store the events that could not be delivered, then send an alert."""
    events = batch.read(read_undelivered)
    left = await services.undelivered.store_and_alert(list(events.values()))
    batch.done.update(events.keys() - {undelivered.message_id for undelivered in left})
    return batch.answer()


@handler(open_lambda_services, read=Batch, after_timeout=Batch.answer)
async def dispatcher(services: LambdaServices, batch: Batch) -> Answer:
    """Dispatch the dependents of tasks that have ended."""
    events = batch.read(read_event)
    failed = {event.id for event in await services.dispatcher.handle(list(events.values()))}
    batch.done.update(name for name, event in events.items() if event.id not in failed)
    return batch.answer()


@handler(open_lambda_services, read=Batch, after_timeout=Batch.answer)
async def dlq_processor(services: LambdaServices, batch: Batch) -> Answer:
    """Fail the tasks whose messages were received too often."""

    async def settle(record: Record) -> None:
        message = services.read_dead_message(record)
        await services.dead_letters.settle_received(message, tenant=services.settings.tenant)

    await batch.process_each(settle)
    return batch.answer()


@handler(open_lambda_services, after_timeout=lambda event: {"finished": False})
async def sweeper(services: LambdaServices, event: Any) -> Answer:
    """Repair what crashes left behind. After a timeout the next sweep continues from there."""
    return {"finished": True, "repaired": dict(await services.sweeper.sweep())}


@handler(open_services_with_secrets)
async def health_check(services: LambdaServices, event: Any) -> Answer:
    """Check the health of every tenant, emit the events and send the alerts."""
    reports = await services.health_check.check_all()
    summaries = {report.tenant: properties_of_body(report.event())["summary"] for report in reports}
    return {"tenants": summaries}


@handler(open_lambda_services)
async def health_check_single(services: LambdaServices, event: Any) -> Answer:
    """Check one task by its global id, without an event or an alert."""
    task_id = event.get("taskId") if isinstance(event, dict) else None
    if not isinstance(task_id, str) or not is_task_id(task_id):
        raise UsageError('expected {"taskId": "job-…_name"}, with "tenantId" for another tenant')
    tenant = event.get("tenantId") or services.settings.tenant
    operations = services.application(Caller(tenant=tenant, name="health-check-single"))
    return to_dict(await operations.task_health(task_id))
