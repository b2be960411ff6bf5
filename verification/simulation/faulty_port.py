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

from longshore.core.queues import QueuePause
from longshore.core.tasks.changes import Effect
from longshore.core.tasks.rows import TaskRow
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
from verification.simulation.faults import Fault, FaultProfile
from verification.simulation.faulty_delivery import FaultyQueue, LateEvents
from verification.simulation.monitor import Monitor, QueueProcess
from verification.simulation.simulation import Simulation
from verification.simulation.workload import ActionKind

_PORTS = (
    *("ledger", "queue", "queue_controls", "events", "bus", "output", "blobs", "definitions"),
    *("keys", "budgets"),
)
_LISTINGS = frozenset(
    {
        *("ledger.leased_tasks", "ledger.unqueued_tasks", "ledger.open_intents"),
        *("ledger.unrecorded_ends", "ledger.unnotified_dependents", "ledger.unreported_ends"),
        *("ledger.list_tasks", "ledger.list_jobs", "ledger.find_ids"),
        *("ledger.failed_tasks", "ledger.failed_tenants", "ledger.parked_tasks"),
    }
)
_KEY_ARGUMENTS = (
    *("after", "cursor", "state", "job_id", "name", "created_from", "created_before"),
)
# These wait by themselves: what comes of them late is no sign of a slow line.
_LONG_POLLS = frozenset(
    {
        "queue.receive",
        "queue_controls.paused_queues",
        "bus.receive",
        "ledger.wait_for_wake",
        "output.wait_for_output",
    }
)
_MIN_DELAY_S = 0.001
_USUAL_DELAY_S = 0.02
_LONG_DELAY_S = 8.0
_MAX_WRITE_DELAY_S = 20.0
_MAX_ROW_DELAY_S = 8.0
_OVERTAKEN_RETRY_FACTOR = 10.0

# Tasks of which this reader has heard and whose rows it cannot read yet: until when, and up to
# which event.
_UNREADABLE: ContextVar[Mapping[str, tuple[float, int]]] = ContextVar("_UNREADABLE")


class SimulatedProcess(QueueProcess, Protocol):
    """What the line has to know of the process at its end."""

    @property
    def disconnected(self) -> bool:
        """Whether it can reach nothing at the moment."""
        ...

    async def wait_until_running(self) -> None:
        """Return when the process runs; never, if it is dead."""
        ...

    def die(self) -> None:
        """From now on nothing comes from it."""
        ...


class StaleReads:
    """What all lines of a run share: old listings, and events that are still on their way."""

    def __init__(self, rng: Random) -> None:
        self.listings: dict[tuple[Any, ...], Any] = {}
        self.late_events = LateEvents(rng)


def faulty_backend(
    process: SimulatedProcess, simulation: Simulation, clock: Clock, stale_reads: StaleReads
) -> Backend:
    """The backend as this process has it."""
    rng = simulation.random_for(f"line of {process.name}")
    onlooker = Monitor(process, simulation)
    ports: dict[str, Any] = {
        name: FaultyPort(process, onlooker, simulation, clock, name, rng, stale_reads)
        for name in _PORTS
    }
    return replace(simulation.backend, clock=clock, **ports)


@cache
def _is_coroutine_method(port: type, name: str) -> bool:
    return iscoroutinefunction(getattr(port, name))


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


class FaultyPort:
    """Stands before a port; its methods are the port's, with trouble."""

    def __init__(
        self,
        process: SimulatedProcess,
        monitor: Monitor,
        simulation: Simulation,
        clock: Clock,
        name: str,
        rng: Random,
        stale_reads: StaleReads,
    ) -> None:
        self._process = process
        self._monitor = monitor
        self._simulation = simulation
        self._faults = simulation.faults
        self._clock = clock
        self._name = name
        self._port: Any = getattr(simulation.backend, name)
        self._rng = rng
        self._stale_reads = stale_reads
        self._unanswered_changes: dict[str, None] = {}  # ids of changes that were committed

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if _is_coroutine_method(type(self._port), name):  # type: ignore[arg-type]
            found = self._observed(f"{self._name}.{name}", found)
            setattr(self, name, found)  # the next time there is nothing to look up
        return found

    def _observed(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        """The method; what is answered, and what is not, is told where it matters later."""
        call = self._with_faults(name, method)
        if name in ("bus.acknowledge", "ledger.leased_tasks"):
            return self._with_notice(name, call)
        who, pauses, ears = (
            self._process.name,
            self._simulation.pause_monitor,
            self._simulation.alert_monitor,
        )
        answers: dict[str, Callable[..., object]] = {
            "queue_controls.paused_queues": lambda answer, *_: pauses.on_informed(who, answer),
            "queue.receive": lambda answer, *_: self._monitor.on_handed_over(answer),
            "blobs.get": lambda _, key: ears.on_read(key, who),
        }
        troubles: dict[str, Callable[..., object]] = {
            "queue_controls.paused_queues": lambda *_: pauses.on_delay(who),
            "blobs.put": lambda key, *_: ears.on_store_failed(key, who),
            "blobs.delete": lambda key: ears.on_store_failed(key, who),
        }
        if name not in answers and name not in troubles:
            return call
        answered, unanswered = answers.get(name, _ignore), troubles.get(name, _ignore)

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

    def _with_notice(
        self, name: str, call: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        """A call that says something by being made: it may be carried out much later."""

        async def announced(*arguments: Any, **named: Any) -> Any:
            if name == "bus.acknowledge":
                await self._monitor.on_acknowledge(arguments[1])
            else:
                self._simulation.alert_monitor.on_check_started(self._process.name)
            return await call(*arguments, **named)

        return announced

    def _with_faults(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        process, faults, rng, world = self._process, self._faults, self._rng, self._simulation
        special: dict[str, Callable[..., Awaitable[Any]]] = {
            "ledger.commit": self._commit,
            "ledger.get_tasks": self._tasks,
            "queue_controls.pause": self._pause,
            "queue_controls.hold": self._hold,
            "queue_controls.resume": self._resume,
            "blobs.put": self._put,
            "blobs.delete": self._remove,
            "bus.receive": self._receive_events,
            "bus.acknowledge": self._acknowledge,
        }
        if self._name == "queue":
            special = FaultyQueue(process, self._monitor, world, self._clock, rng).calls
        carry_out = special.get(name, method)
        listing, waiting = name in _LISTINGS, name in _LONG_POLLS

        async def untroubled(*arguments: Any, **named: Any) -> Any:
            await process.wait_until_running()
            await asyncio.sleep(_MIN_DELAY_S)
            await process.wait_until_running()
            answer = await carry_out(*arguments, **named)
            await process.wait_until_running()
            return answer

        async def call(*arguments: Any, **named: Any) -> Any:
            if faults.ended:
                return await untroubled(*arguments, **named)
            await process.wait_until_running()
            await self._delay()
            if faults.occurs(Fault.CRASH_BEFORE, rng):
                await self._die(Fault.CRASH_BEFORE, name)
            if process.disconnected:
                message = f"{name} is out of reach"
                raise BackendUnavailable(message)
            if faults.occurs(Fault.THROTTLE, rng):
                world.record(process.name, "throttled", name)
                message = f"{name} was turned away"
                raise BackendUnavailable(message)
            if name == "ledger.commit" and world.time() < world.writes_refused_until:
                message = "rows cannot be written at the moment"
                raise BackendUnavailable(message)
            if not waiting and faults.occurs(Fault.LATE_WRITE, rng):
                world.record(process.name, "given up", name)
                world.start_task(self._run_later(name, carry_out, arguments, named))
                message = f"the answer of {name} did not come"
                raise OutcomeUnknown(message)
            answer = await carry_out(*arguments, **named)
            if name == "ledger.commit" and faults.occurs(Fault.CLIENT_RETRY, rng):
                answer = await self._retried_by_client(arguments)
            if listing:
                answer = self._maybe_stale(name, named, answer)
            if faults.occurs(Fault.CRASH_AFTER, rng):
                await self._die(Fault.CRASH_AFTER, name)
            if faults.ended:
                await process.wait_until_running()
            else:
                await self._delay()
            if faults.occurs(Fault.UNKNOWN, rng):
                world.record(process.name, "answer lost", name)
                if name == "ledger.commit":
                    self._unanswered_changes.update(
                        (change.row.change_id, None) for change in arguments
                    )
                message = f"the answer of {name} was lost"
                raise OutcomeUnknown(message)
            return answer

        return call

    async def _delay(self) -> None:
        """A moment, in which others may be faster."""
        if self._faults.occurs(Fault.SLOW, self._rng):
            seconds = self._rng.random() * _LONG_DELAY_S
            self._simulation.pause_monitor.on_delay(self._process.name, seconds)
        else:
            # Often none: most answers come in the order of the questions.
            seconds = max(self._rng.random() - 0.5, 0.0) * _USUAL_DELAY_S
        await asyncio.sleep(seconds)
        await self._process.wait_until_running()

    async def _die(self, fault: Fault, name: str) -> None:
        self._simulation.record(self._process.name, fault.name.lower().replace("_", " "), name)
        self._process.die()
        await self._process.wait_until_running()

    async def _run_later(
        self, name: str, method: Callable[..., Awaitable[Any]], arguments: Any, keywords: Any
    ) -> None:
        await asyncio.sleep(self._rng.random() * _MAX_WRITE_DELAY_S)
        try:
            await method(*arguments, **keywords)
            if name in ("blobs.put", "blobs.delete"):
                self._simulation.alert_monitor.on_stored_late(arguments[0])
        except LongshoreError as error:
            self._simulation.record("late write", type(error).__name__, str(error))

    def _maybe_stale(self, name: str, keywords: dict[str, Any], answer: Any) -> Any:
        which = tuple(str(keywords.get(part)) for part in _KEY_ARGUMENTS)
        key = (name, *which)
        old = self._stale_reads.listings.get(key, answer)
        if self._faults.occurs(Fault.STALE_INDEX, self._rng):
            return old
        self._stale_reads.listings[key] = answer
        if isinstance(answer, list) and self._faults.occurs(Fault.INDEX_DUPLICATED, self._rng):
            return self._rng.sample([*answer, *answer], 2 * len(answer))
        return answer

    async def _commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        # Whoever has not heard of its own commit is the likeliest to get it wrong.
        again = any(change.row.change_id in self._unanswered_changes for change in changes)
        likelier = _OVERTAKEN_RETRY_FACTOR if again else 1.0
        if self._faults.occurs(Fault.COMMIT_OVERTAKEN, self._rng, factor=likelier):
            await self._let_others_commit(changes)
        before = await self._monitor.rows_before(changes)
        effects: tuple[Effect, ...] = await self._port.commit(*changes)
        self._monitor.on_commit(changes, before)
        return effects

    async def _retried_by_client(self, changes: Sequence[AnyChange]) -> tuple[Effect, ...]:
        """The client library has lost an answer and asks again, without a word to anybody."""
        await self._let_others_commit(changes)
        try:
            return await self._commit(*changes)
        except VersionConflict as conflict:
            conflict.maybe_committed = True  # so much is known of the library
            raise

    async def _let_others_commit(self, changes: Sequence[AnyChange]) -> None:
        """Wait until somebody else has changed one of these rows, but not for ever."""
        rows = [change.row.id for change in changes]
        await self._simulation.history.wait_for_change(rows, timeout_s=_LONG_DELAY_S)
        await self._process.wait_until_running()

    async def _tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        rows: list[TaskRow] = await self._port.get_tasks(task_ids)
        unreadable = _UNREADABLE.get(None)
        if not unreadable or self._faults.ended:
            return rows
        return [self._maybe_previous_row(row, *unreadable.get(row.id, (0.0, 0))) for row in rows]

    def _maybe_previous_row(self, row: TaskRow, until: float, sequence: int) -> TaskRow:
        if self._simulation.time() >= until or row.last_sequence != sequence:
            return row
        return self._simulation.history.previous_rows.get(row.id, row)

    async def _pause(self, name: str, **keywords: Any) -> QueuePause:
        held: QueuePause = await self._port.pause(name, **keywords)
        self._simulation.pause_monitor.on_switched(name, paused=True)
        return held

    async def _hold(self, name: str, **keywords: Any) -> QueuePause:
        held: QueuePause = await self._port.hold(name, **keywords)
        now = self._simulation.clock.now()
        if held.is_active(now):  # not by the clock of this process, which may be wrong
            self._simulation.record_action(
                self._process.name, ActionKind.HOLD_QUEUE, f"{name}, by {held.by}"
            )
            self._simulation.pause_monitor.on_hold(name, held.remaining(now).total_seconds())
        return held

    async def _resume(self, name: str) -> QueuePause | None:
        ended: QueuePause | None = await self._port.resume(name)
        self._simulation.pause_monitor.on_switched(name, paused=False)
        return ended

    async def _put(self, key: str, data: bytes) -> int:
        size: int = await self._port.put(key, data)
        self._simulation.alert_monitor.on_stored(key, data)
        return size

    async def _remove(self, key: str) -> bool:
        removed: bool = await self._port.delete(key)
        self._simulation.alert_monitor.on_stored(key, None)
        return removed

    async def _receive_events(self, consumer: str, **keywords: Any) -> Delivery | None:
        brought: Delivery | None = await self._port.receive(consumer, **keywords)
        delivery = brought
        if self._simulation.profile is FaultProfile.DEFAULT:
            delivery = self._stale_reads.late_events.mix(brought, self._simulation, self._faults)
        if delivery is not None:
            self._monitor.on_events(delivery)
            self.deliver(delivery)
        return delivery

    def deliver(self, delivery: Delivery) -> None:
        """Whoever asks for this knows of events, perhaps before their rows can be read."""
        _UNREADABLE.set(self._unreadable_rows(delivery))

    def _unreadable_rows(self, delivery: Delivery) -> dict[str, tuple[float, int]]:
        now, rng = self._simulation.time(), self._rng
        return {
            event.entity_id: (now + rng.random() * _MAX_ROW_DELAY_S, event.sequence)
            for event in delivery.events
            if self._faults.occurs(Fault.EVENT_EARLY, rng)
        }

    async def _acknowledge(self, consumer: str, receipt: str) -> None:
        if self._simulation.profile is FaultProfile.DEFAULT:
            receipt = self._stale_reads.late_events.acknowledge(receipt)
        await self._port.acknowledge(consumer, receipt)
