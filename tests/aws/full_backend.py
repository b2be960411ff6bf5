"""The whole AWS backend on the stand-in, for scenarios whose clock moves only when all is idle.

Time passes only when no task can continue without it, so everything in progress is registered:
calls notify the loop, long polls look again when the clock or a queue has changed, and committed
events are relayed before the commit returns.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longshore.adapters.aws.backend import aws_backend
from longshore.adapters.aws.client import AwsClient, AwsClientOptions, AwsResponse
from longshore.adapters.aws.names import Names
from longshore.core.tasks.states import Priority
from longshore.ports.backend import Backend
from longshore.services.dispatcher import CONSUMER, ENDING_EVENTS
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.retention import OTHER_EVENTS_AGE
from tests.aws.backends import create_lane, installation_names
from tests.aws.event_pump import EventPump
from tests.aws.stand_in import stand_in
from tests.unit.services.virtual_time import IdleAwareLoop

QUEUES = ("agents", "default", "fast", "first", "mail", "other", "second", "slow")
EVENT_TYPES_BY_CONSUMER = {CONSUMER: ENDING_EVENTS}
_SEND_OPERATIONS = {
    "send_message_batch",
    "send_message",
    "change_message_visibility_batch",
    "put_events",
}


@dataclass(frozen=True, slots=True)
class InstallationLane:
    """A queue and a priority of an installation."""

    names: Names
    queue: str
    priority: Priority

    @property
    def queue_names(self) -> tuple[str, str]:
        """The names of its queue and of its dead letter queue."""
        lane = self.queue, self.priority
        return self.names.queue(*lane), self.names.dead_letter_queue(*lane)


class LoopAwareAws(AwsClient):
    """A client whose calls the loop waits for."""

    def __init__(self, options: AwsClientOptions, clock: FakeClock) -> None:
        super().__init__(options)
        self._clock = clock
        self._changed = asyncio.Event()
        self._ended = False
        self._lanes: dict[str, InstallationLane] = {}

    def create_on_demand(self, names: Names, queues: Sequence[str]) -> None:
        """Create queues at their first use: a scenario uses few, and creating all is slow."""
        lanes = [
            InstallationLane(names, queue, priority) for queue in queues for priority in Priority
        ]
        for lane in lanes:
            self._lanes |= dict.fromkeys(lane.queue_names, lane)

    def end(self) -> None:
        """The scenario has ended, so every long poll returns."""
        self._ended = True
        self.notify_changed()

    async def call(self, service: str, operation: str, **parameters: Any) -> AwsResponse:
        if operation == "receive_message" and parameters.get("WaitTimeSeconds"):
            return await self._long_poll(parameters)
        if operation == "get_queue_url" and (lane := self._lanes.get(parameters["QueueName"])):
            for name in lane.queue_names:
                del self._lanes[name]
            await create_lane(self, lane.names, lane.queue, lane.priority)
        answer = await self._call_now(service, operation, parameters)
        if operation in _SEND_OPERATIONS:
            self.notify_changed()
        return answer

    def notify_changed(self) -> None:
        """Something may be on a queue that was not there before."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _call_now(
        self, service: str, operation: str, parameters: dict[str, Any]
    ) -> AwsResponse:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, IdleAwareLoop)
        loop.begin()
        try:
            return await super().call(service, operation, **parameters)
        finally:
            loop.end()

    async def _long_poll(self, parameters: dict[str, Any]) -> AwsResponse:
        """As SQS does: an answer when a message is there, or when the time is over."""
        wait = parameters.pop("WaitTimeSeconds")
        ends = self._clock.elapsed().total_seconds() + wait
        with self._clock.watched_by(self.notify_changed):
            while True:
                moved = self._changed
                answer = await self._call_now(
                    "sqs", "receive_message", {**parameters, "WaitTimeSeconds": 0}
                )
                over = self._ended or self._clock.elapsed().total_seconds() >= ends
                if answer.get("Messages") or over:
                    return answer
                await moved.wait()


class _RelayingLedger:
    """A ledger whose commits return after their events were relayed."""

    def __init__(self, ledger: Any, pump: EventPump) -> None:
        self._ledger = ledger
        self._pump = pump

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def commit(self, *changes: Any) -> Any:
        try:
            return await self._ledger.commit(*changes)
        finally:
            await self._pump.catch_up()


@asynccontextmanager
async def full_aws_backend(
    tmp_path: Path,
    clock: FakeClock,
    aws: LoopAwareAws | None = None,
    pumps: list[EventPump] | None = None,
) -> AsyncIterator[Backend]:
    """Every port real, on an installation of its own.

    Args:
        pumps: The list to which the pump is added; the caller then has events delivered.
    """
    server = stand_in()
    with server.follow_clock(clock):
        aws = aws or LoopAwareAws(server.client_options, clock)
        names = await installation_names(
            aws, tmp_path, (), tuple(EVENT_TYPES_BY_CONSUMER), EVENT_TYPES_BY_CONSUMER
        )
        aws.create_on_demand(names, QUEUES)
        opened = aws_backend(aws, names, clock, other_events_retention=OTHER_EVENTS_AGE)
        async with opened as backend:
            pump = EventPump(aws, names, backend.events, backend.bus)
            await pump.begin()
            if pumps is None:
                backend = replace(backend, ledger=_RelayingLedger(backend.ledger, pump))
            else:
                pumps.append(pump)
            try:
                yield backend
            finally:
                aws.end()
