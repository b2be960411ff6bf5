"""What functions on AWS are built of: settings and their secrets, the way to AWS, services.

Each function opens no more than it needs, because it is what a cold start waits for. Only those
who tell people read secrets. What takes long to load is loaded with this module, while AWS starts
the process and gives it more than its share of a processor.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from longshore.adapters.aws import records
from longshore.adapters.aws.bus import EventBridgeBus
from longshore.adapters.aws.events import DynamoEventLog
from longshore.adapters.aws.parameters import parameters_of
from longshore.adapters.aws.queue_calls import Sqs
from longshore.adapters.process.presence import FilePresence
from longshore.adapters.system.clock import SystemClock
from longshore.core.dead_letters import DeadMessage
from longshore.core.events.event import Event
from longshore.core.undelivered import Undelivered
from longshore.errors import ConfigurationError
from longshore.ports.backend import Backend
from longshore.services.relay import Relay
from longshore.services.undelivered import UndeliveredEvents
from longshore.settings import Settings, load_settings
from longshore.wiring import Services, alerting_on, services_on
from longshore.wiring.backends import AwsHouse, aws_backend_in, aws_house, event_indexes

Record = Mapping[str, Any]


@contextlib.asynccontextmanager
async def _installation(*, secrets: bool = False) -> AsyncIterator[tuple[Settings, AwsHouse]]:
    """Where this function runs, as its environment says and, with secrets, SSM."""
    settings = load_settings()
    if settings.backend != "aws":
        raise ConfigurationError(["functions run on AWS: set LONGSHORE_BACKEND to aws"])
    house = aws_house(settings)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(house.aws.close)
        if secrets:
            settings = load_settings(await parameters_of(house.aws, settings.environment))
        yield settings, house


@contextlib.asynccontextmanager
async def relaying() -> AsyncIterator[Relay]:
    """The relay, from the ledger's stream to the bus."""
    async with _installation() as (_, house):
        clock = SystemClock()
        yield Relay(
            bus=EventBridgeBus(house.aws, house.names, clock),
            place_of=records.place_of,
            told_by=records.told_by,
            aside=records.Aside(Sqs(house.aws, clock), house.names),
        )


@dataclass(frozen=True, slots=True)
class Archive:
    """Where the history of everything is kept."""

    _log: DynamoEventLog

    async def save(self, record: Record) -> None:
        """Keep the event that a message from the bus holds, and tell nobody.

        Raises:
            UsageError: it holds none.
        """
        await self._log.save([records.event_in(record)])


@contextlib.asynccontextmanager
async def archiving() -> AsyncIterator[Archive]:
    """The event table, for what comes from the bus."""
    async with _installation() as (settings, house):
        yield Archive(
            DynamoEventLog(
                *(house.aws, house.names, SystemClock()),
                keeps=settings.aws.keep_events or None,
                indexes=event_indexes(settings),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wired:
    """All services, and what reads the records that mappings hand over."""

    services: Services
    undelivered: UndeliveredEvents
    event_in: Callable[[Record], Event]
    dead_message_in: Callable[[Record], DeadMessage]
    undelivered_in: Callable[[Record], Undelivered]

    @property
    def settings(self) -> Settings:
        """By which all of it was built."""
        return self.services.settings


@contextlib.asynccontextmanager
async def wired(*, secrets: bool = False) -> AsyncIterator[Wired]:
    """Everything; with ``secrets`` people can be told of things."""
    async with contextlib.AsyncExitStack() as stack:
        settings, house = await stack.enter_async_context(_installation(secrets=secrets))
        backend = await stack.enter_async_context(aws_backend_in(settings, house))
        folder = settings.data_dir.absolute()
        presence = stack.enter_context(contextlib.closing(FilePresence(folder)))
        clock = backend.clock
        yield Wired(
            services=services_on(settings, backend, presence),
            undelivered=undelivered_on(settings, backend),
            event_in=records.event_in,
            dead_message_in=lambda record: records.dead_message_in(
                record, house.names, clock.now()
            ),
            undelivered_in=records.undelivered_in,
        )


def undelivered_on(settings: Settings, backend: Backend) -> UndeliveredEvents:
    """What looks after events that were not delivered, on the backend on AWS."""
    return UndeliveredEvents(
        backend=backend,
        alerting=alerting_on(settings, backend),
        read=records.events_of,
        tenant=settings.tenant,
    )


telling_people = partial(wired, secrets=True)
"""Everything, with what is needed to tell people."""
