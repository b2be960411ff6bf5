"""What the Lambda functions need: settings with secrets, AWS clients, services.

Each function opens only what it needs, because a cold start waits for it. Only functions that send
alerts read secrets. Modules that are slow to import are imported here, because AWS gives a process
more CPU while it starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property, partial

from longshore.adapters.aws import lambda_records
from longshore.adapters.aws.client import read_parameters
from longshore.adapters.aws.events.event_bus import EventBridgeBus, event_in_message
from longshore.adapters.aws.events.event_log import DynamoEventLog
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.sqs import SqsClient
from longshore.adapters.system import SystemClock
from longshore.core.events.event import Event
from longshore.core.queues import QueueMessage
from longshore.errors import ConfigurationError
from longshore.execution.host.registry import FileWorkerRegistry
from longshore.ports.events import Record
from longshore.services.event_delivery import Relay, UndeliveredEvents
from longshore.settings import Settings, load_settings
from longshore.wiring.backends import (
    AwsInstallation,
    event_indexes,
    open_aws_backend,
    open_installation,
)
from longshore.wiring.services import Services


@contextlib.asynccontextmanager
async def _open_installation(
    *, secrets: bool = False
) -> AsyncIterator[tuple[Settings, AwsInstallation]]:
    """The installation that the environment names. Secrets are read from SSM."""
    settings = load_settings()
    if settings.backend != "aws":
        raise ConfigurationError(["a Lambda function needs LONGSHORE_BACKEND=aws"])
    async with open_installation(settings) as installation:
        if secrets:
            settings = load_settings(await read_parameters(installation.aws, settings.environment))
        yield settings, installation


@contextlib.asynccontextmanager
async def open_relay() -> AsyncIterator[Relay]:
    """The relay from the ledger's stream to the bus."""
    async with _open_installation() as (_, installation):
        clock = SystemClock()
        sqs = SqsClient(installation.aws, clock)
        yield Relay(
            bus=EventBridgeBus(installation.aws, installation.names, clock),
            stream=lambda_records.DynamoChangeStream(sqs, installation.names),
        )


@contextlib.asynccontextmanager
async def open_archive() -> AsyncIterator[Callable[[Record], Awaitable[None]]]:
    """Stores the event of a message from the bus in the event table, without publishing it."""
    async with _open_installation() as (settings, installation):
        log = DynamoEventLog(
            *(installation.aws, installation.names, SystemClock()),
            retention=settings.retention.other_events or None,
            indexes=event_indexes(settings),
        )
        yield lambda record: log.save([read_event(record)])


def undelivered_events(services: Services) -> UndeliveredEvents:
    """The events that could not be delivered, on the AWS backend."""
    return UndeliveredEvents(
        backend=services.backend,
        alert_sender=services.alert_sender,
        decode=lambda_records.events_in_undelivered,
        tenant=services.settings.tenant,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LambdaServices(Services):
    """The services of a function."""

    names: Names

    undelivered = cached_property(undelivered_events)

    def read_dead_message(self, record: Record) -> QueueMessage:
        return lambda_records.dead_message_in_record(record, self.names)


@contextlib.asynccontextmanager
async def open_lambda_services(*, secrets: bool = False) -> AsyncIterator[LambdaServices]:
    """All services; alerts need ``secrets``."""
    async with (
        _open_installation(secrets=secrets) as (settings, installation),
        open_aws_backend(settings, installation) as backend,
    ):
        with contextlib.closing(FileWorkerRegistry(settings.data_dir.absolute())) as registry:
            yield LambdaServices(
                settings=settings,
                backend=backend,
                worker_registry=registry,
                names=installation.names,
            )


def read_event(record: Record) -> Event:
    """The event in a message from the bus.

    Raises:
        UsageError: the message holds no event.
    """
    return event_in_message(record["body"])


read_undelivered = lambda_records.undelivered_in_record
open_services_with_secrets = partial(open_lambda_services, secrets=True)
"""All services, able to send alerts."""
