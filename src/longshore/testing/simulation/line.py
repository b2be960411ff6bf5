"""The line between a process and the backend: every call goes over it, and it is not reliable.

A dead process's calls never return, and none of them begins; nothing of it is cancelled, because a
process that is killed does not run its ``finally`` blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from inspect import iscoroutinefunction
from random import Random
from typing import Any, Protocol

from longshore.core.changes import Effect
from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.messages import task_named_in
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import TaskState
from longshore.errors import BackendUnavailable, LongshoreError, OutcomeUnknown
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.ports.events import Delivery
from longshore.ports.ledger import AnyChange
from longshore.ports.queue import Message, Outgoing
from longshore.testing.simulation.faults import Fault
from longshore.testing.simulation.late_events import LateEvents
from longshore.testing.simulation.world import World

_PORTS = (
    *("ledger", "queue", "queues", "events", "bus", "output", "blobs", "definitions", "keys"),
)
_LISTINGS = frozenset(
    {
        *("ledger.held", "ledger.unrung", "ledger.open_intents", "ledger.unrecorded_ends"),
        *("ledger.untold_parents", "ledger.untold_ends", "ledger.list_tasks", "ledger.list_jobs"),
        "ledger.find",
    }
)
_WHICH = (*("after", "cursor", "state", "job_id", "name", "created_from", "created_before"),)
_REPORTS = frozenset(
    event.TYPE
    for event in (
        *(e.TaskHeartbeat, e.TaskProcessingFailed, e.TaskReleased, e.TaskCompleted, e.TaskFailed),
        *(e.TaskTimeout, e.TaskSubmittedForReview),
    )
)
# These wait by themselves: what comes of them late is no sign of a slow line.
_WAITING = frozenset(
    {"queue.receive", "queues.paused_of", "bus.receive", "ledger.nudged", "output.wait"}
)
_LEAST_DELAY = 0.001
_USUAL_DELAY = 0.02
_LONG_DELAY = 8.0
_LATEST_WRITE = 20.0
_LATEST_MESSAGE = 40.0


class Alive(Protocol):
    """What the line has to know of the process at its end."""

    @property
    def name(self) -> str: ...
    @property
    def cut_off(self) -> bool:
        """Whether it can reach nothing at the moment."""
        ...

    async def awake(self) -> None:
        """Return when the process runs; never, if it is dead."""
        ...

    def die(self) -> None:
        """From now on nothing comes from it."""
        ...


@dataclass(frozen=True, slots=True)
class _Delivered:
    task_id: str
    attempt: int  # the last there was, when the message was received
    at: datetime


class Rumours:
    """What all lines of a run share: old listings, and events that are still on their way."""

    def __init__(self, rng: Random) -> None:
        self.listings: dict[tuple[Any, ...], Any] = {}
        self.deliveries: dict[str, _Delivered] = {}  # by receipt
        self.latest: dict[tuple[str, str], str] = {}  # receipts by task and process
        self.late_events = LateEvents(rng)


def over_the_line(process: Alive, world: World, clock: Clock, rumours: Rumours) -> Backend:
    """The backend as this process has it."""
    rng = world.chance(f"line of {process.name}")
    ports: dict[str, Any] = {
        name: Line(process, world, clock, name, rng, rumours) for name in _PORTS
    }
    return replace(world.backend, clock=clock, **ports)


@cache
def _is_call(port: type, name: str) -> bool:
    return iscoroutinefunction(getattr(port, name))


class Line:
    """Stands before a port; its methods are the port's, with trouble."""

    def __init__(
        self, process: Alive, world: World, clock: Clock, name: str, rng: Random, rumours: Rumours
    ) -> None:
        self._process = process
        self._world = world
        self._faults = world.faults
        self._clock = clock
        self._name = name
        self._port: Any = getattr(world.backend, name)
        self._rng = rng
        self._rumours = rumours

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if _is_call(type(self._port), name):  # type: ignore[arg-type]
            found = self._troubled(f"{self._name}.{name}", found)
            setattr(self, name, found)  # the next time there is nothing to look up
        return found

    def _troubled(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        process, faults, rng, world = self._process, self._faults, self._rng, self._world
        special: dict[str, Callable[..., Awaitable[Any]]] = {
            "ledger.commit": self._commit,
            "queue.send": self._send,
            "queue.receive": self._receive,
            "queue.delete": self._delete,
            "queue.put_off": self._put_off,
            "bus.receive": self._events,
            "bus.acknowledge": self._acknowledge,
        }
        carry_out = special.get(name, method)
        listing, waiting = name in _LISTINGS, name in _WAITING

        async def untroubled(*arguments: Any, **named: Any) -> Any:
            await process.awake()
            await asyncio.sleep(_LEAST_DELAY)
            await process.awake()
            answer = await carry_out(*arguments, **named)
            await process.awake()
            return answer

        async def call(*arguments: Any, **named: Any) -> Any:
            if faults.over:
                return await untroubled(*arguments, **named)
            await process.awake()
            await self._passes()
            if faults.happens(Fault.CRASH_BEFORE, rng):
                await self._die(Fault.CRASH_BEFORE, name)
            if process.cut_off:
                message = f"{name} is out of reach"
                raise BackendUnavailable(message)
            if faults.happens(Fault.THROTTLE, rng):
                world.note(process.name, "throttled", name)
                message = f"{name} was turned away"
                raise BackendUnavailable(message)
            if not waiting and faults.happens(Fault.LATE_WRITE, rng):
                world.note(process.name, "given up", name)
                world.begin(self._later(carry_out, arguments, named))
                message = f"the answer of {name} did not come"
                raise OutcomeUnknown(message)
            answer = await carry_out(*arguments, **named)
            if listing:
                answer = self._perhaps_old(name, named, answer)
            if faults.happens(Fault.CRASH_AFTER, rng):
                await self._die(Fault.CRASH_AFTER, name)
            if faults.over:
                await process.awake()
            else:
                await self._passes()
            if faults.happens(Fault.UNKNOWN, rng):
                world.note(process.name, "answer lost", name)
                message = f"the answer of {name} was lost"
                raise OutcomeUnknown(message)
            return answer

        return call

    async def _passes(self) -> None:
        """A moment, in which others may be faster."""
        if self._faults.happens(Fault.SLOW, self._rng):
            seconds = self._rng.random() * _LONG_DELAY
        else:
            # Often none: most answers come in the order of the questions.
            seconds = max(self._rng.random() - 0.5, 0.0) * _USUAL_DELAY
        await asyncio.sleep(seconds)
        await self._process.awake()

    async def _die(self, fault: Fault, name: str) -> None:
        self._world.note(self._process.name, fault.name.lower().replace("_", " "), name)
        self._process.die()
        await self._process.awake()

    async def _later(self, method: Callable[..., Awaitable[Any]], given: Any, named: Any) -> None:
        await asyncio.sleep(self._rng.random() * _LATEST_WRITE)
        try:
            await method(*given, **named)
        except LongshoreError as error:
            self._world.note("late write", type(error).__name__, str(error))

    def _perhaps_old(self, name: str, named: dict[str, Any], answer: Any) -> Any:
        which = tuple(str(named.get(part)) for part in _WHICH)
        key = (name, *which)
        old = self._rumours.listings.get(key, answer)
        if self._faults.happens(Fault.STALE_INDEX, self._rng):
            return old
        self._rumours.listings[key] = answer
        return answer

    async def _commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        before = {change.row.id: await self._task(change.row) for change in changes}
        effects = await self._world.backend.ledger.commit(*changes)
        for change in changes:
            old = before[change.row.id]
            if old is not None and isinstance(change.row, TaskRow):
                self._look_at(old, change.row, change.events)
        return effects

    async def _task(self, row: TaskRow | JobRow) -> TaskRow | None:
        return await self._world.backend.ledger.task(row.id) if isinstance(row, TaskRow) else None

    def _look_at(self, old: TaskRow, new: TaskRow, events: Sequence[Event]) -> None:
        """Only the holder reports, whatever the fence says that comes with it."""
        holder = old.lease.worker_id if old.lease else None
        if holder == self._process.name or old.change_id == new.change_id:
            return
        early = old.lease is not None and self._world.clock.now() < old.lease.expires_at
        if early and new.lease is None and holder in self._world.alive:
            text = f"{self._process.name} ends the lease of {holder}, who is alive and may use it"
            self._world.breach(2, new.id, text)
        reports = [event.type for event in events if event.type in _REPORTS]
        by_a_worker = [event.type for event in events if event.context.origin == "worker"]
        said = [name for name in reports if name in by_a_worker]
        if new.checkpoint not in (old.checkpoint, None):
            said.append("a checkpoint")
        for what in said:
            text = f"{self._process.name} commits {what}, and {holder or 'nobody'} holds the task"
            self._world.breach(3, new.id, text)

    def _true(self, moment: datetime) -> datetime:
        """A moment by the process's clock as the queue has it, which is told only how long."""
        return self._world.clock.now() + (moment - self._clock.now())

    async def _put_off(self, receipt: str, *, until: datetime) -> None:
        await self._port.put_off(receipt, until=self._true(until))

    async def _send(self, messages: list[Outgoing]) -> list[Outgoing]:
        sent: list[Outgoing] = []
        for message in messages:
            if self._faults.happens(Fault.MESSAGE_DROPPED, self._rng):
                self._world.note(self._process.name, "message dropped", message.body)
                continue
            sent.append(self._perhaps_late(message))
            if self._faults.happens(Fault.MESSAGE_DOUBLED, self._rng):
                sent.append(self._perhaps_late(replace(message, key=None)))
        refused: list[Outgoing] = await self._port.send(sent)
        return refused

    async def _receive(self, *arguments: Any, **named: Any) -> list[Message]:
        messages: list[Message] = await self._port.receive(*arguments, **named)
        for message in messages:
            task_id = task_named_in(message.body)
            row = isinstance(task_id, str) and await self._world.backend.ledger.task(task_id)
            if row:
                delivered = _Delivered(row.id, row.attempt, self._world.clock.now())
                self._rumours.deliveries[message.receipt] = delivered
                self._rumours.latest[row.id, self._process.name] = message.receipt
        return messages

    async def _delete(self, receipts: list[str]) -> list[str]:
        for receipt in receipts:
            delivered = self._rumours.deliveries.get(receipt)
            # It may hold the task by a later message, and be done with this one.
            if delivered and self._rumours.latest[delivered.task_id, self._process.name] == receipt:
                await self._may_be_deleted(delivered)
        stale: list[str] = await self._port.delete(receipts)
        return stale

    async def _may_be_deleted(self, delivered: _Delivered) -> None:
        """A message goes when the outcome is committed, or when nothing is left to do."""
        row = await self._world.backend.ledger.task(delivered.task_id)
        if row is None:
            return
        margin = self._world.settings.worker.skew_margin
        unrung = row.rung_at is None or row.rung_at < delivered.at - margin
        ours = row.lease is not None and row.lease.worker_id == self._process.name
        at_work = ours and row.attempt == delivered.attempt + 1
        if at_work or (row.state is TaskState.PENDING and unrung):
            text = f"{self._process.name} deletes its message while the task is {row.state.value}"
            self._world.breach(1, row.id, text)

    def _perhaps_late(self, message: Outgoing) -> Outgoing:
        seen = self._true(message.visible_at) if message.visible_at else self._world.clock.now()
        if self._faults.happens(Fault.MESSAGE_DELAYED, self._rng):
            seen += timedelta(seconds=self._rng.random() * _LATEST_MESSAGE)
        return replace(message, visible_at=seen)

    async def _events(self, consumer: str, **named: Any) -> Delivery | None:
        delivery: Delivery | None = await self._port.receive(consumer, **named)
        return self._rumours.late_events.mixed_up(delivery, self._world, self._faults)

    async def _acknowledge(self, consumer: str, receipt: str) -> None:
        await self._port.acknowledge(consumer, self._rumours.late_events.received(receipt))
