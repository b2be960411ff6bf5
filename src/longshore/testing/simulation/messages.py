"""The queue as one process has it: messages are lost, late, doubled, and dealt with in part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from longshore.errors import BackendUnavailable
from longshore.ports.clock import Clock
from longshore.ports.queue import Message, Outgoing
from longshore.testing.simulation.faults import Fault
from longshore.testing.simulation.onlooker import Onlooker
from longshore.testing.simulation.pauses import Listener
from longshore.testing.simulation.world import World

_LATEST_MESSAGE = 40.0


class TroubledQueue:
    """Carries calls to the queue, with trouble."""

    def __init__(
        self, process: Listener, onlooker: Onlooker, world: World, clock: Clock, rng: Random
    ) -> None:
        self._process = process
        self._onlooker = onlooker
        self._world = world
        self._faults = world.faults
        self._clock = clock
        self._rng = rng
        self._port: Any = world.backend.queue
        self.calls: dict[str, Callable[..., Awaitable[Any]]] = {
            "queue.send": self._send,
            "queue.receive": self._receive,
            "queue.delete": self._delete,
            "queue.extend": self._extend,
            "queue.put_off": self._put_off,
        }

    def _true(self, moment: datetime) -> datetime:
        """A moment by the process's clock as the queue has it, which is told only how long."""
        return self._world.clock.now() + (moment - self._clock.now())

    async def _put_off(self, receipt: str, *, until: datetime) -> None:
        await self._port.put_off(receipt, until=self._true(until))

    async def _send(self, messages: list[Outgoing]) -> list[Outgoing]:
        await self._onlooker.sends(messages)
        sent: list[Outgoing] = []
        unsent: list[Outgoing] = []
        for message in messages:
            if self._faults.happens(Fault.BATCH_PARTLY, self._rng):
                unsent.append(message)
                continue
            if self._faults.happens(Fault.MESSAGE_DROPPED, self._rng):
                self._world.note(self._process.name, "message dropped", message.body)
                continue
            sent.append(self._perhaps_late(message))
            if self._faults.happens(Fault.MESSAGE_DOUBLED, self._rng):
                sent.append(self._perhaps_late(replace(message, key=None)))
        refused: list[Outgoing] = await self._port.send(sent)
        return [*refused, *unsent]

    async def _receive(self, *arguments: Any, **named: Any) -> list[Message]:
        messages: list[Message] = await self._port.receive(*arguments, **named)
        await self._onlooker.received(messages)
        for message in messages:
            if self._faults.happens(Fault.DELIVERED_TWICE, self._rng):
                await self._port.extend([message.receipt], hidden_for=timedelta(0))
        return messages

    async def _extend(self, receipts: list[str], *, hidden_for: timedelta) -> list[str]:
        some = self._partly(receipts)
        stale: list[str] = await self._port.extend(some, hidden_for=hidden_for)
        self._check_all(some, receipts)
        return stale

    def _partly(self, receipts: list[str]) -> list[str]:
        return [one for one in receipts if not self._faults.happens(Fault.BATCH_PARTLY, self._rng)]

    def _check_all(self, some: list[str], receipts: list[str]) -> None:
        if len(some) < len(receipts):
            message = f"{len(some)} of {len(receipts)} messages were dealt with"
            raise BackendUnavailable(message)

    async def _delete(self, receipts: list[str]) -> list[str]:
        await self._onlooker.deletes(receipts)
        some = self._partly(receipts)
        stale: list[str] = await self._port.delete(some)
        self._check_all(some, receipts)
        return stale

    def _perhaps_late(self, message: Outgoing) -> Outgoing:
        seen = self._true(message.visible_at) if message.visible_at else self._world.clock.now()
        if self._faults.happens(Fault.MESSAGE_DELAYED, self._rng):
            seen += timedelta(seconds=self._rng.random() * _LATEST_MESSAGE)
        return replace(message, visible_at=seen)
