"""Functions as AWS runs them: a process for each invocation, which may die in the middle of it.

A mapping hands a batch to a function and looks at the answer. What failed, and all of a batch whose
function has died, broken down or taken too long, is handed over again: a stream's from the first
failed record on, a queue's message by message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

from longshore.core.events.event import Event
from longshore.errors import BackendUnavailable
from longshore.ports.events import Delivery
from longshore.services.dispatcher import CONSUMER, ENDING_EVENTS
from longshore.services.relay import Relay
from longshore.testing.simulation.faults import Fault
from longshore.testing.simulation.processes import Fleet, Machine, Process
from longshore.testing.simulation.streamed import Streamed, StreamedBus, StreamedStore
from longshore.testing.simulation.world import World

_BATCH = 20
_TIMEOUT = 25.0
_AGAIN_AFTER = 1.0
_SWEEP_EVERY = 20.0
_LONG = timedelta(hours=1)

ResultT = TypeVar("ResultT")


class Functions:
    """All functions of an installation, and what invokes them."""

    def __init__(self, world: World, fleet: Fleet) -> None:
        self._world = world
        self._fleet = fleet
        self._machine = Machine(world, "functions")
        self._numbers = count(1)
        store: Any = world.backend.ledger
        self._store: StreamedStore = store._store  # what ports do not show
        bus: Any = world.backend.bus
        self._bus: StreamedBus = bus

    def start(self) -> None:
        """Invoke them from now on."""
        world = self._world
        world.begin(self._relayed())
        world.begin(self._consumed("history", self._save))
        world.begin(self._consumed(CONSUMER, self._dispatch))
        world.begin(self._swept())

    @property
    def at_rest(self) -> bool:
        """Whether nothing is on its way."""
        return self._bus.empty

    def order_of(self, event: Event) -> int:
        """The place of an event in the order of commits."""
        return self._store.order_of(event)

    # The stream ---------------------------------------------------------------------------------

    async def _relayed(self) -> None:
        stream = self._store.stream
        while True:
            await self._store.stream_waiters.until(lambda: stream or None)
            batch = stream[:_BATCH]
            answered, failed = await self._invoked("relay", partial(_tell, batch))
            places = [record.place for record in batch]
            done = len(batch) if answered else 0
            if answered and failed is not None:
                done = places.index(failed)
            del stream[:done]
            if done < len(batch):
                await self._pause()

    # Queues -------------------------------------------------------------------------------------

    async def _consumed(
        self, consumer: str, work: Callable[[Process, Delivery], Awaitable[Sequence[Event]]]
    ) -> None:
        while True:
            delivery = await self._bus.receive(
                consumer, types=ENDING_EVENTS, limit=_BATCH, wait=_LONG
            )
            if delivery is not None:
                self._world.begin(self._handed(consumer, delivery, work))

    async def _handed(
        self,
        consumer: str,
        delivery: Delivery,
        work: Callable[[Process, Delivery], Awaitable[Sequence[Event]]],
    ) -> None:
        answered, failed = await self._invoked(consumer, lambda process: work(process, delivery))
        if answered:
            left = {event.id for event in failed or ()}
            self._bus.drop(consumer, delivery.receipt, but=left)
        if not answered or failed:
            self._world.faults.count(Fault.FUNCTION_AGAIN)

    async def _save(self, process: Process, delivery: Delivery) -> Sequence[Event]:
        log: Any = process.services.backend.events
        failed = []
        for event in delivery.events:
            try:
                await log.save([event])
            except BackendUnavailable:
                failed.append(event)
        return failed

    async def _dispatch(self, process: Process, delivery: Delivery) -> Sequence[Event]:
        received_at = self._world.time()
        line: Any = process.services.backend.bus
        line.brings(delivery)
        failed = await process.services.dispatcher.hear(delivery.events)
        left = {event.id for event in failed}
        dealt_with = [event for event in delivery.events if event.id not in left]
        await self._world.chronicle.acknowledged(process.name, dealt_with, received_at)
        return failed

    # The clock ----------------------------------------------------------------------------------

    async def _swept(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY)
            await self._invoked("sweeper", lambda process: process.services.sweeper.sweep())

    # Invocations --------------------------------------------------------------------------------

    async def _invoked(
        self, name: str, work: Callable[[Process], Awaitable[ResultT]]
    ) -> tuple[bool, ResultT | None]:
        """Whether the function has answered, and what."""
        world = self._world
        process = self._fleet.process(self._machine, f"{name}-{next(self._numbers)}")
        working = world.begin(_awaited(work(process)))
        over = asyncio.ensure_future(process.over.wait())
        await asyncio.wait((working, over), timeout=_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if process.dead or not working.done():
            process.die()
            return False, None
        process.end()
        error = working.exception()
        if error is None:
            return True, working.result()
        if not isinstance(error, BackendUnavailable):
            world.breach(0, process.name, f"a function ended by {error!r}")
        return False, None

    async def _pause(self) -> None:
        self._world.faults.count(Fault.FUNCTION_AGAIN)
        await asyncio.sleep(_AGAIN_AFTER)


async def _awaited(work: Awaitable[ResultT]) -> ResultT:
    return await work


async def _tell(batch: Sequence[Streamed], process: Process) -> str | None:
    relay = Relay(
        bus=process.services.backend.bus,
        place_of=lambda record: str(record["place"]),
        told_by=lambda record: record["events"],
        aside=_nowhere,
    )
    return await relay.tell([record._asdict() for record in batch])


async def _nowhere(_: object, reason: str) -> None:
    raise AssertionError(reason)
