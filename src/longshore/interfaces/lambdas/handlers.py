"""The handlers of the Lambda functions: parse, call a service, answer.

A handler has the name of its function, with underscores. The handler ``api`` is in ``api_gateway``,
because it needs a web framework that would slow down the start of the others.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from longshore.core.events.codec import properties_of_body
from longshore.core.events.event import Event
from longshore.core.ids import is_task_id
from longshore.core.undelivered import UndeliveredEvent
from longshore.errors import UsageError
from longshore.interfaces.lambdas.container import (
    BatchResponse,
    Container,
    InvocationTimeout,
    LambdaContext,
    Record,
    failure_response,
    handler,
    process_each,
    process_together,
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

logger = logging.getLogger(__name__)


@handler(open_relay)
def relay(container: Container[Relay], event: Any, context: LambdaContext) -> BatchResponse:
    """Publish the events of the ledger's stream; answer the first record to read again."""
    records = records_of(event)
    try:
        first = container.run(lambda relay: relay.publish(records), context)
    except InvocationTimeout as error:
        logger.warning("batch.timed_out", extra={"error": str(error)})
        first = records[0]["dynamodb"]["SequenceNumber"]
    return failure_response([first] if first is not None else [])


@handler(open_archive)
def save_event(
    container: Container[Callable[[Record], Awaitable[None]]], event: Any, context: LambdaContext
) -> BatchResponse:
    """Store events from the bus in the event table."""
    return process_each(container, event, context, lambda save, record: save(record))


@handler(open_services_with_secrets)
def eventbridge_dlq_alert(
    container: Container[LambdaServices], event: Any, context: LambdaContext
) -> BatchResponse:
    """Store the events that could not be delivered, then send an alert."""

    async def store(
        services: LambdaServices, events: Mapping[str, UndeliveredEvent]
    ) -> Collection[str]:
        left = await services.undelivered.store_and_alert(list(events.values()))
        return [undelivered.message_id for undelivered in left]

    return process_together(container, event, context, read_undelivered, store)


@handler(open_lambda_services)
def dispatcher(
    container: Container[LambdaServices], event: Any, context: LambdaContext
) -> BatchResponse:
    """Dispatch the dependents of tasks that have ended."""

    async def dispatch(services: LambdaServices, events: Mapping[str, Event]) -> Collection[str]:
        failed = {event.id for event in await services.dispatcher.handle(list(events.values()))}
        return [message_id for message_id, event in events.items() if event.id in failed]

    return process_together(container, event, context, read_event, dispatch)


@handler(open_lambda_services)
def dlq_processor(
    container: Container[LambdaServices], event: Any, context: LambdaContext
) -> BatchResponse:
    """Fail the tasks whose messages were received too often."""

    async def settle(services: LambdaServices, record: Record) -> None:
        message = services.read_dead_message(record)
        await services.dead_letters.settle_received(message, tenant=services.settings.tenant)

    return process_each(container, event, context, settle)


@handler(open_lambda_services)
def sweeper(
    container: Container[LambdaServices], event: Any, context: LambdaContext
) -> dict[str, Any]:
    """Repair what crashes left behind. After a timeout the next sweep continues from there."""
    try:
        repairs = container.run(lambda services: services.sweeper.sweep(), context)
    except InvocationTimeout as error:
        logger.warning("sweep.timed_out", extra={"error": str(error)})
        return {"finished": False}
    return {"finished": True, "repaired": dict(repairs)}


@handler(open_services_with_secrets)
def health_check(
    container: Container[LambdaServices], event: Any, context: LambdaContext
) -> dict[str, Any]:
    """Check the health of every tenant, emit the events and send the alerts."""
    reports = container.run(lambda services: services.health_check.check_all(), context)
    summaries = {report.tenant: properties_of_body(report.event())["summary"] for report in reports}
    return {"tenants": summaries}


@handler(open_lambda_services)
def health_check_single(
    container: Container[LambdaServices], event: Any, context: LambdaContext
) -> dict[str, Any]:
    """Check one task by its global id, without an event or an alert."""
    task_id = event.get("taskId") if isinstance(event, dict) else None
    if not isinstance(task_id, str) or not is_task_id(task_id):
        message = 'expected {"taskId": "job-…_name"}, with "tenantId" for another tenant'
        raise UsageError(message)

    async def check(services: LambdaServices) -> dict[str, Any]:
        tenant = event.get("tenantId") or services.settings.tenant
        operations = services.application(Caller(tenant=tenant, name="health-check-single"))
        return to_dict(await operations.task_health(task_id))

    return container.run(check, context)
