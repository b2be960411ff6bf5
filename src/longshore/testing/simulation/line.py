"""The line between a process and the backend: every call goes over it, and it is not reliable.

A dead process's calls never return, and none of them begins; nothing of it is cancelled, because a
process that is killed does not run its ``finally`` blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from inspect import iscoroutinefunction
from random import Random
from typing import Any, Protocol

from longshore.core.changes import Effect
from longshore.core.rows import TaskRow
from longshore.errors import (
    BackendUnavailable,
    LongshoreError,
    NotFound,
    OutcomeUnknown,
    VersionConflict,
)
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.ports.events import Delivery
from longshore.ports.ledger import AnyChange
from longshore.ports.queues import PausedQueue
from longshore.testing.simulation.deeds import Deed
from longshore.testing.simulation.faults import Fault, Weather
from longshore.testing.simulation.late_events import LateEvents
from longshore.testing.simulation.messages import TroubledQueue
from longshore.testing.simulation.onlooker import Onlooker
from longshore.testing.simulation.pauses import Listener
from longshore.testing.simulation.world import World

_PORTS = (
    *("ledger", "queue", "queues", "events", "bus", "output", "blobs", "definitions", "keys"),
    "accounts",
)
_LISTINGS = frozenset(
    {
        *("ledger.held", "ledger.unrung", "ledger.open_intents", "ledger.unrecorded_ends"),
        *("ledger.untold_parents", "ledger.untold_ends", "ledger.list_tasks", "ledger.list_jobs"),
        *("ledger.find", "ledger.failed", "ledger.failed_tenants", "ledger.parked"),
    }
)
_WHICH = (*("after", "cursor", "state", "job_id", "name", "created_from", "created_before"),)
# These wait by themselves: what comes of them late is no sign of a slow line.
_WAITING = frozenset(
    {"queue.receive", "queues.paused_of", "bus.receive", "ledger.nudged", "output.wait"}
)
_LEAST_DELAY = 0.001
_USUAL_DELAY = 0.02
_LONG_DELAY = 8.0
_LATEST_WRITE = 20.0
_LATEST_ROW = 8.0
_OVERTAKEN_AGAIN = 10.0

# Tasks of which this reader has heard and whose rows it cannot read yet: until when, and up to
# which event.
_UNREADABLE: ContextVar[Mapping[str, tuple[float, int]]] = ContextVar("_UNREADABLE")


class Alive(Listener, Protocol):
    """What the line has to know of the process at its end."""

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


class Rumours:
    """What all lines of a run share: old listings, and events that are still on their way."""

    def __init__(self, rng: Random) -> None:
        self.listings: dict[tuple[Any, ...], Any] = {}
        self.late_events = LateEvents(rng)


def over_the_line(process: Alive, world: World, clock: Clock, rumours: Rumours) -> Backend:
    """The backend as this process has it."""
    rng = world.chance(f"line of {process.name}")
    onlooker = Onlooker(process, world)
    ports: dict[str, Any] = {
        name: Line(process, onlooker, world, clock, name, rng, rumours) for name in _PORTS
    }
    return replace(world.backend, clock=clock, **ports)


@cache
def _is_call(port: type, name: str) -> bool:
    return iscoroutinefunction(getattr(port, name))


def _nothing(*_: object) -> None:
    """Nobody wants to know."""


class Line:
    """Stands before a port; its methods are the port's, with trouble."""

    def __init__(
        self,
        process: Alive,
        onlooker: Onlooker,
        world: World,
        clock: Clock,
        name: str,
        rng: Random,
        rumours: Rumours,
    ) -> None:
        self._process = process
        self._onlooker = onlooker
        self._world = world
        self._faults = world.faults
        self._clock = clock
        self._name = name
        self._port: Any = getattr(world.backend, name)
        self._rng = rng
        self._rumours = rumours
        self._unanswered: dict[str, None] = {}  # ids of changes that were committed

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if _is_call(type(self._port), name):  # type: ignore[arg-type]
            found = self._overheard(f"{self._name}.{name}", found)
            setattr(self, name, found)  # the next time there is nothing to look up
        return found

    def _overheard(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        """The method; what is answered, and what is not, is told where it matters later."""
        call = self._troubled(name, method)
        if name in ("bus.acknowledge", "ledger.held"):
            return self._announced(name, call)
        who, pauses, ears = self._process.name, self._world.pauses, self._world.ears
        answers: dict[str, Callable[..., object]] = {
            "queues.paused_of": lambda answer, *_: pauses.told(who, answer),
            "queue.receive": lambda answer, *_: self._onlooker.handed(answer),
            "blobs.get": lambda _, key: ears.read(key, who),
        }
        troubles: dict[str, Callable[..., object]] = {
            "queues.paused_of": lambda *_: pauses.trouble(who),
            "blobs.put": lambda key, *_: ears.not_written(key, who),
            "blobs.delete": lambda key: ears.not_written(key, who),
        }
        if name not in answers and name not in troubles:
            return call
        answered, unanswered = answers.get(name, _nothing), troubles.get(name, _nothing)

        async def overheard(*arguments: Any, **named: Any) -> Any:
            try:
                answer = await call(*arguments, **named)
            except BackendUnavailable:
                unanswered(*arguments)
                raise
            except NotFound:
                answered(None, *arguments)
                raise
            answered(answer, *arguments)
            return answer

        return overheard

    def _announced(
        self, name: str, call: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        """A call that says something by being made: it may be carried out much later."""

        async def announced(*arguments: Any, **named: Any) -> Any:
            if name == "bus.acknowledge":
                await self._onlooker.acknowledges(arguments[1])
            else:
                self._world.ears.check_begins(self._process.name)
            return await call(*arguments, **named)

        return announced

    def _troubled(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        process, faults, rng, world = self._process, self._faults, self._rng, self._world
        special: dict[str, Callable[..., Awaitable[Any]]] = {
            "ledger.commit": self._commit,
            "ledger.tasks": self._tasks,
            "queues.pause": self._pause,
            "queues.hold": self._hold,
            "queues.resume": self._resume,
            "blobs.put": self._put,
            "blobs.delete": self._remove,
            "bus.receive": self._events,
            "bus.acknowledge": self._acknowledge,
        }
        if self._name == "queue":
            special = TroubledQueue(process, self._onlooker, world, self._clock, rng).calls
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
            if name == "ledger.commit" and world.time() < world.rows_refused_until:
                message = "rows cannot be written at the moment"
                raise BackendUnavailable(message)
            if not waiting and faults.happens(Fault.LATE_WRITE, rng):
                world.note(process.name, "given up", name)
                world.begin(self._later(name, carry_out, arguments, named))
                message = f"the answer of {name} did not come"
                raise OutcomeUnknown(message)
            answer = await carry_out(*arguments, **named)
            if name == "ledger.commit" and faults.happens(Fault.MADE_AGAIN, rng):
                answer = await self._made_again(arguments)
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
                if name == "ledger.commit":
                    self._unanswered.update((change.row.change_id, None) for change in arguments)
                message = f"the answer of {name} was lost"
                raise OutcomeUnknown(message)
            return answer

        return call

    async def _passes(self) -> None:
        """A moment, in which others may be faster."""
        if self._faults.happens(Fault.SLOW, self._rng):
            seconds = self._rng.random() * _LONG_DELAY
            self._world.pauses.trouble(self._process.name, seconds)
        else:
            # Often none: most answers come in the order of the questions.
            seconds = max(self._rng.random() - 0.5, 0.0) * _USUAL_DELAY
        await asyncio.sleep(seconds)
        await self._process.awake()

    async def _die(self, fault: Fault, name: str) -> None:
        self._world.note(self._process.name, fault.name.lower().replace("_", " "), name)
        self._process.die()
        await self._process.awake()

    async def _later(
        self, name: str, method: Callable[..., Awaitable[Any]], given: Any, named: Any
    ) -> None:
        await asyncio.sleep(self._rng.random() * _LATEST_WRITE)
        try:
            await method(*given, **named)
            if name in ("blobs.put", "blobs.delete"):
                self._world.ears.written_late(given[0])
        except LongshoreError as error:
            self._world.note("late write", type(error).__name__, str(error))

    def _perhaps_old(self, name: str, named: dict[str, Any], answer: Any) -> Any:
        which = tuple(str(named.get(part)) for part in _WHICH)
        key = (name, *which)
        old = self._rumours.listings.get(key, answer)
        if self._faults.happens(Fault.STALE_INDEX, self._rng):
            return old
        self._rumours.listings[key] = answer
        if isinstance(answer, list) and self._faults.happens(Fault.INDEX_TWICE, self._rng):
            return self._rng.sample([*answer, *answer], 2 * len(answer))
        return answer

    async def _commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        # Whoever has not heard of its own commit is the likeliest to get it wrong.
        again = any(change.row.change_id in self._unanswered for change in changes)
        likelier = _OVERTAKEN_AGAIN if again else 1.0
        if self._faults.happens(Fault.OVERTAKEN, self._rng, likelier=likelier):
            await self._overtaken(changes)
        before = await self._onlooker.rows_of(changes)
        effects: tuple[Effect, ...] = await self._port.commit(*changes)
        self._onlooker.committed(changes, before)
        return effects

    async def _made_again(self, changes: Sequence[AnyChange]) -> tuple[Effect, ...]:
        """The client library has lost an answer and asks again, without a word to anybody."""
        await self._overtaken(changes)
        try:
            return await self._commit(*changes)
        except VersionConflict as conflict:
            conflict.perhaps_ours = True  # so much is known of the library
            raise

    async def _overtaken(self, changes: Sequence[AnyChange]) -> None:
        """Wait until somebody else has changed one of these rows, but not for ever."""
        rows = [change.row.id for change in changes]
        await self._world.chronicle.change_of(rows, within=_LONG_DELAY)
        await self._process.awake()

    async def _tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        rows: list[TaskRow] = await self._port.tasks(task_ids)
        unreadable = _UNREADABLE.get(None)
        if not unreadable or self._faults.over:
            return rows
        return [self._perhaps_before(row, *unreadable.get(row.id, (0.0, 0))) for row in rows]

    def _perhaps_before(self, row: TaskRow, until: float, sequence: int) -> TaskRow:
        if self._world.time() >= until or row.last_sequence != sequence:
            return row
        return self._world.chronicle.before.get(row.id, row)

    async def _pause(self, name: str, **named: Any) -> PausedQueue:
        held: PausedQueue = await self._port.pause(name, **named)
        self._world.pauses.switched(name, paused=True)
        return held

    async def _hold(self, name: str, **named: Any) -> PausedQueue:
        held: PausedQueue = await self._port.hold(name, **named)
        now = self._world.clock.now()
        if held.holds(now):  # not by the clock of this process, which may be wrong
            self._world.did(self._process.name, Deed.HOLD, f"{name}, by {held.by}")
            self._world.pauses.held(name, held.left(now).total_seconds())
        return held

    async def _resume(self, name: str) -> PausedQueue | None:
        ended: PausedQueue | None = await self._port.resume(name)
        self._world.pauses.switched(name, paused=False)
        return ended

    async def _put(self, key: str, data: bytes) -> int:
        size: int = await self._port.put(key, data)
        self._world.ears.written(key, data)
        return size

    async def _remove(self, key: str) -> bool:
        removed: bool = await self._port.delete(key)
        self._world.ears.written(key, None)
        return removed

    async def _events(self, consumer: str, **named: Any) -> Delivery | None:
        brought: Delivery | None = await self._port.receive(consumer, **named)
        delivery = brought
        if self._world.weather is Weather.ANY:
            delivery = self._rumours.late_events.mixed_up(brought, self._world, self._faults)
        if delivery is not None:
            self._onlooker.hears(delivery)
            self.brings(delivery)
        return delivery

    def brings(self, delivery: Delivery) -> None:
        """Whoever asks for this knows of events, perhaps before their rows can be read."""
        _UNREADABLE.set(self._too_early(delivery))

    def _too_early(self, delivery: Delivery) -> dict[str, tuple[float, int]]:
        now, rng = self._world.time(), self._rng
        return {
            event.entity_id: (now + rng.random() * _LATEST_ROW, event.sequence)
            for event in delivery.events
            if self._faults.happens(Fault.EVENT_EARLY, rng)
        }

    async def _acknowledge(self, consumer: str, receipt: str) -> None:
        if self._world.weather is Weather.ANY:
            receipt = self._rumours.late_events.received(receipt)
        await self._port.acknowledge(consumer, receipt)
