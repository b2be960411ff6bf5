"""The whole AWS backend on the stand-in, for stories that are told with a clock that stands still.

Time passes there only when nobody can do anything more without it, so whatever is under way has to
be known: calls tell the loop, long polls look again when the clock or a queue has moved, and what
was committed is relayed before its answer is given.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longshore.adapters.aws.backend import aws_backend
from longshore.adapters.aws.calls import Answer, Aws, AwsPlace
from longshore.adapters.aws.names import Names
from longshore.core.states import Priority
from longshore.ports.backend import Backend
from longshore.services.dispatcher import CONSUMER, ENDING_EVENTS
from longshore.testing.clock import FakeClock
from tests.aws.backends import names_in, provide_lane
from tests.aws.pump import Pump
from tests.aws.standin import stand_in
from tests.unit.services.patience import PatientLoop

QUEUES = ("agents", "default", "fast", "first", "mail", "other", "second", "slow")
HEARD = {CONSUMER: ENDING_EVENTS}
_SENDS = {"send_message_batch", "send_message", "change_message_visibility_batch", "put_events"}


@dataclass(frozen=True, slots=True)
class Lane:
    """A queue and a priority of an installation."""

    names: Names
    queue: str
    priority: Priority

    @property
    def called(self) -> tuple[str, str]:
        """What its queues are called."""
        place = self.queue, self.priority
        return self.names.queue(*place), self.names.dead(*place)


class TellingAws(Aws):
    """Calls that a patient loop waits for."""

    def __init__(self, place: AwsPlace, clock: FakeClock) -> None:
        super().__init__(place)
        self._clock = clock
        self._moved = asyncio.Event()
        self._over = False
        self._lanes: dict[str, Lane] = {}

    def provide_when_asked(self, names: Names, queues: Sequence[str]) -> None:
        """Make the queues that a story really uses, which are few; all take their time."""
        lanes = [Lane(names, queue, priority) for queue in queues for priority in Priority]
        for lane in lanes:
            self._lanes |= dict.fromkeys(lane.called, lane)

    def end(self) -> None:
        """The story is told: time stands still no longer, so every poll comes to its end."""
        self._over = True
        self.moved()

    async def call(self, service: str, operation: str, **given: Any) -> Answer:
        if operation == "receive_message" and given.get("WaitTimeSeconds"):
            return await self._long_poll(given)
        if operation == "get_queue_url" and (lane := self._lanes.get(given["QueueName"])):
            for name in lane.called:
                del self._lanes[name]
            await provide_lane(self, lane.names, lane.queue, lane.priority)
        answer = await self._short(service, operation, given)
        if operation in _SENDS:
            self.moved()
        return answer

    def moved(self) -> None:
        """Something may be on a queue that was not there before."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def _short(self, service: str, operation: str, given: dict[str, Any]) -> Answer:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PatientLoop)
        loop.begin()
        try:
            return await super().call(service, operation, **given)
        finally:
            loop.end()

    async def _long_poll(self, given: dict[str, Any]) -> Answer:
        """As SQS does: an answer when a message is there, or when the time is over."""
        wait = given.pop("WaitTimeSeconds")
        ends = self._clock.elapsed().total_seconds() + wait
        with self._clock.watched_by(self.moved):
            while True:
                moved = self._moved
                answer = await self._short(
                    "sqs", "receive_message", {**given, "WaitTimeSeconds": 0}
                )
                over = self._over or self._clock.elapsed().total_seconds() >= ends
                if answer.get("Messages") or over:
                    return answer
                await moved.wait()


class _Relayed:
    """A ledger that answers when what was committed has been told."""

    def __init__(self, ledger: Any, pump: Pump) -> None:
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
async def whole_aws(
    tmp_path: Path,
    clock: FakeClock,
    aws: TellingAws | None = None,
    pumps: list[Pump] | None = None,
) -> AsyncIterator[Backend]:
    """Every port real, on an installation of its own.

    Args:
        pumps: Where the pump is put; then it is for the caller to have things told.
    """
    server = stand_in()
    with server.in_time_of(clock):
        aws = aws or TellingAws(server.place, clock)
        names = await names_in(aws, tmp_path, (), tuple(HEARD), HEARD)
        aws.provide_when_asked(names, QUEUES)
        async with aws_backend(aws, names, clock) as backend:
            pump = Pump(aws, names, backend.events, backend.bus)
            await pump.begin()
            if pumps is None:
                backend = replace(backend, ledger=_Relayed(backend.ledger, pump))
            else:
                pumps.append(pump)
            try:
                yield backend
            finally:
                aws.end()
