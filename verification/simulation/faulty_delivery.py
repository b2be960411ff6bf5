"""Faulty delivery of messages and events: lost, late, duplicated, or only part of a batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import Any

from longshore.core.events.event import Event
from longshore.errors import BackendUnavailable
from longshore.ports.clock import Clock
from longshore.ports.events import Delivery
from longshore.ports.task_queue import Message, OutgoingMessage
from verification.simulation.faults import Fault, Faults
from verification.simulation.monitor import Monitor, QueueProcess
from verification.simulation.simulation import Simulation

_MAX_MESSAGE_DELAY_S = 40.0
_MAX_DELAY_S = 60.0
_MAX_REPEATED = 8


class FaultyQueue:
    """The queue as a process sees it: its calls have faults."""

    def __init__(
        self,
        process: QueueProcess,
        monitor: Monitor,
        simulation: Simulation,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._process = process
        self._monitor = monitor
        self._simulation = simulation
        self._faults = simulation.faults
        self._clock = clock
        self._rng = rng
        self._port: Any = simulation.backend.queue
        self.calls: dict[str, Callable[..., Awaitable[Any]]] = {
            "queue.send": self._send,
            "queue.receive": self._receive,
            "queue.delete": self._delete,
            "queue.extend": self._extend,
            "queue.delay": self._delay,
        }

    def _store_time(self, moment: datetime) -> datetime:
        """Convert a time of the process's clock to the queue's clock."""
        return self._simulation.clock.now() + (moment - self._clock.now())

    async def _delay(self, receipt: str, *, until: datetime) -> None:
        await self._port.delay(receipt, until=self._store_time(until))

    async def _send(self, messages: list[OutgoingMessage]) -> list[OutgoingMessage]:
        await self._monitor.on_send(messages)
        sent: list[OutgoingMessage] = []
        unsent: list[OutgoingMessage] = []
        for message in messages:
            if self._faults.occurs(Fault.PARTIAL_BATCH, self._rng):
                unsent.append(message)
                continue
            if self._faults.occurs(Fault.MESSAGE_DROPPED, self._rng):
                self._simulation.record(self._process.name, "message dropped", message.body)
                continue
            sent.append(self._maybe_delayed(message))
            if self._faults.occurs(Fault.MESSAGE_DUPLICATED, self._rng):
                sent.append(self._maybe_delayed(replace(message, merge_key=None)))
        refused: list[OutgoingMessage] = await self._port.send(sent)
        return [*refused, *unsent]

    async def _receive(self, *arguments: Any, **keywords: Any) -> list[Message]:
        messages: list[Message] = await self._port.receive(*arguments, **keywords)
        await self._monitor.on_receive(messages)
        for message in messages:
            if self._faults.occurs(Fault.DELIVERED_TWICE, self._rng):
                await self._port.extend([message.receipt], hidden_for=timedelta(0))
        return messages

    async def _extend(self, receipts: list[str], *, hidden_for: timedelta) -> list[str]:
        some = self._random_part(receipts)
        stale: list[str] = await self._port.extend(some, hidden_for=hidden_for)
        self._refuse_partial(some, receipts)
        return stale

    def _random_part(self, receipts: list[str]) -> list[str]:
        return [
            receipt
            for receipt in receipts
            if not self._faults.occurs(Fault.PARTIAL_BATCH, self._rng)
        ]

    def _refuse_partial(self, handled: list[str], receipts: list[str]) -> None:
        if len(handled) < len(receipts):
            message = f"{len(handled)} of {len(receipts)} messages were processed"
            raise BackendUnavailable(message)

    async def _delete(self, receipts: list[str]) -> list[str]:
        await self._monitor.on_delete(receipts)
        some = self._random_part(receipts)
        stale: list[str] = await self._port.delete(some)
        self._refuse_partial(some, receipts)
        return stale

    def _maybe_delayed(self, message: OutgoingMessage) -> OutgoingMessage:
        seen = (
            self._store_time(message.visible_at)
            if message.visible_at
            else self._simulation.clock.now()
        )
        if self._faults.occurs(Fault.MESSAGE_DELAYED, self._rng):
            seen += timedelta(seconds=self._rng.random() * _MAX_MESSAGE_DELAY_S)
        return replace(message, visible_at=seen)


class LateEvents:
    """Delays and repeats events between the bus and its consumers.

    A delayed event may be acknowledged on the bus already, so it is stored here until a delivery
    that contains it is acknowledged.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._numbers = count(1)
        self._delivered: list[Event] = []
        self._delayed: dict[int, tuple[float, Event]] = {}  # with the time of its delivery

    def mix(
        self, delivery: Delivery | None, simulation: Simulation, faults: Faults
    ) -> Delivery | None:
        """Remove events that will be late from a delivery; add due late events and old events."""
        events: list[Event] = []
        for event in delivery.events if delivery else ():
            if faults.occurs(Fault.EVENT_LATE, self._rng):
                moment = simulation.time() + self._rng.random() * _MAX_DELAY_S
                self._delayed[next(self._numbers)] = (moment, event)
            else:
                events.append(event)
        now = simulation.time()
        due = [key for key, (moment, _) in self._delayed.items() if moment <= now or faults.ended]
        events += [self._delayed[key][1] for key in due]
        if self._delivered and faults.occurs(Fault.EVENT_DUPLICATED, self._rng):
            events += [self._rng.choice(self._delivered) for _ in range(_MAX_REPEATED)]
        self._delivered += events
        if not events and delivery is None:
            return None
        receipt = delivery.receipt if delivery else "0"
        return Delivery(events=tuple(events), receipt=":".join([receipt, *map(str, due)]))

    def acknowledge(self, receipt: str) -> str:
        """Forget the late events of a delivery. Returns the bus's own receipt."""
        first, *delayed = receipt.split(":")
        for key in delayed:
            self._delayed.pop(int(key), None)
        return first
