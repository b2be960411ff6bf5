"""Functions as AWS runs them: a process for each invocation, which may crash at any point.

An event source mapping passes a batch to a function and reads the answer. Failed items, and the
whole batch of a function that crashed, raised or timed out, are delivered again: those of a stream
from the first failed record on, those of a queue message by message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

from longshore.core.events.event import Event
from longshore.errors import BackendUnavailable
from longshore.ports.events import Delivery
from longshore.services.dispatcher import CONSUMER, ENDING_EVENTS
from longshore.services.event_delivery import Relay
from verification.simulation.faults import Fault
from verification.simulation.processes import Fleet, Machine, Process
from verification.simulation.simulation import Simulation
from verification.simulation.stream_backend import StreamBus, StreamRecord, StreamStore

_BATCH = 20
_TIMEOUT_S = 25.0
_RETRY_DELAY_S = 1.0
_SWEEP_INTERVAL_S = 20.0
_LONG_POLL = timedelta(hours=1)

ResultT = TypeVar("ResultT")


class LambdaFunctions:
    """All functions of an installation, and their event source mappings."""

    def __init__(self, simulation: Simulation, fleet: Fleet) -> None:
        self._simulation = simulation
        self._fleet = fleet
        self._machine = Machine(simulation, "functions")
        self._numbers = count(1)
        store: Any = simulation.backend.ledger
        self._store: StreamStore = store._store  # not part of a port
        bus: Any = simulation.backend.bus
        self._bus: StreamBus = bus

    def start(self) -> None:
        """Start invoking the functions."""
        world = self._simulation
        world.start_task(self._run_relay())
        world.start_task(self._run_consumer("history", self._save))
        world.start_task(self._run_consumer(CONSUMER, self._dispatch))
        world.start_task(self._run_sweeper())

    @property
    def idle(self) -> bool:
        """Whether no event is in transit."""
        return self._bus.empty

    def commit_position(self, event: Event) -> int:
        """The position of an event in the order of commits."""
        return self._store.commit_position(event)

    # The stream ---------------------------------------------------------------------------------

    async def _run_relay(self) -> None:
        stream = self._store.stream
        while True:
            await self._store.stream_waiters.wait_until(lambda: stream or None)
            batch = stream[:_BATCH]
            answered, failed = await self._invoke("relay", partial(_relay_batch, batch))
            places = [record.position for record in batch]
            done = len(batch) if answered else 0
            if answered and failed is not None:
                done = places.index(failed)
            del stream[:done]
            if done < len(batch):
                await self._pause()

    # Queues -------------------------------------------------------------------------------------

    async def _run_consumer(
        self, consumer: str, work: Callable[[Process, Delivery], Awaitable[Sequence[Event]]]
    ) -> None:
        while True:
            delivery = await self._bus.receive(
                consumer, types=ENDING_EVENTS, limit=_BATCH, wait=_LONG_POLL
            )
            if delivery is not None:
                self._simulation.start_task(self._invoke_consumer(consumer, delivery, work))

    async def _invoke_consumer(
        self,
        consumer: str,
        delivery: Delivery,
        work: Callable[[Process, Delivery], Awaitable[Sequence[Event]]],
    ) -> None:
        answered, failed = await self._invoke(consumer, lambda process: work(process, delivery))
        if answered:
            left = {event.id for event in failed or ()}
            self._bus.drop(consumer, delivery.receipt, keep=left)
        if not answered or failed:
            self._simulation.faults.count(Fault.FUNCTION_RETRIED)

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
        received_at = self._simulation.time()
        line: Any = process.services.backend.bus
        line.deliver(delivery)
        failed = await process.services.dispatcher.handle(delivery.events)
        left = {event.id for event in failed}
        dealt_with = [event for event in delivery.events if event.id not in left]
        await self._simulation.history.on_acknowledged(process.name, dealt_with, received_at)
        return failed

    # The clock ----------------------------------------------------------------------------------

    async def _run_sweeper(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            await self._invoke("sweeper", lambda process: process.services.sweeper.sweep())

    # Invocations --------------------------------------------------------------------------------

    async def _invoke(
        self, name: str, work: Callable[[Process], Awaitable[ResultT]]
    ) -> tuple[bool, ResultT | None]:
        """Returns whether the function has answered, and its answer."""
        world = self._simulation
        process = self._fleet.new_process(self._machine, f"{name}-{next(self._numbers)}")
        working = world.start_task(_as_coroutine(work(process)))
        over = asyncio.ensure_future(process.finished.wait())
        await asyncio.wait((working, over), timeout=_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if process.dead or not working.done():
            process.die()
            return False, None
        process.end()
        error = working.exception()
        if error is None:
            return True, working.result()
        if not isinstance(error, BackendUnavailable):
            world.report_violation(0, process.name, f"a function ended by {error!r}")
        return False, None

    async def _pause(self) -> None:
        self._simulation.faults.count(Fault.FUNCTION_RETRIED)
        await asyncio.sleep(_RETRY_DELAY_S)


async def _as_coroutine(work: Awaitable[ResultT]) -> ResultT:
    return await work


class _SimulatedStream:
    """The records of the simulated stream; each one can be read."""

    def position_of(self, record: Mapping[str, Any]) -> str:
        return str(record["position"])

    def events_in(self, record: Mapping[str, Any]) -> Sequence[Event]:
        events: Sequence[Event] = record["events"]
        return events

    async def dead_letter(self, record: object, reason: str) -> None:
        raise AssertionError(reason)


async def _relay_batch(batch: Sequence[StreamRecord], process: Process) -> str | None:
    relay = Relay(bus=process.services.backend.require_bus(), stream=_SimulatedStream())
    return await relay.publish([record._asdict() for record in batch])
