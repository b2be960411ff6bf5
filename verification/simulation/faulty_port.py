"""The backend as a process sees it: every call of a port may be delayed, lost, repeated or refused.

Calls of a dead process never start and never return. They are not cancelled either, because a
killed process does not run its ``finally`` blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
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
from longshore.ports.task_source import Turn, WorkerInstance
from verification.simulation.faults import Fault, FaultProfile
from verification.simulation.faulty_delivery import FaultyQueue, LateEvents
from verification.simulation.monitor import Monitor, QueueProcess
from verification.simulation.simulation import TENANT, Simulation
from verification.simulation.stream_backend import StreamRetention
from verification.simulation.workload import ActionKind

_PORTS = (
    *("ledger", "queue", "queue_controls", "events", "bus", "output", "blobs", "definitions"),
    *("keys", "budgets", "source", "retention"),
)
_LISTINGS = frozenset(
    {
        *("ledger.leased_tasks", "ledger.unqueued_tasks", "ledger.open_intents"),
        *("ledger.unrecorded_ends", "ledger.unnotified_dependents", "ledger.unreported_ends"),
        *("ledger.list_tasks", "ledger.list_jobs", "ledger.find_ids"),
        *("ledger.failed_tasks", "ledger.failed_tenants", "ledger.parked_tasks"),
        "retention.ended_jobs",
    }
)
_KEY_ARGUMENTS = (
    *("after", "cursor", "state", "job_id", "name", "created_from", "created_before"),
)
# Calls that wait by themselves: a late answer does not mean a slow connection.
_LONG_POLLS = frozenset(
    {
        "queue.receive",
        "queue_controls.paused_queues",
        "bus.receive",
        "ledger.wait_for_wake",
        "source.claim",
        "source.wait_for_ends",
        "output.wait_for_output",
    }
)
_MIN_DELAY_S = 0.001
_USUAL_DELAY_S = 0.02
_LONG_DELAY_S = 8.0
_MAX_WRITE_DELAY_S = 20.0
_MAX_ROW_DELAY_S = 8.0
_OVERTAKEN_RETRY_FACTOR = 10.0

# Tasks whose events this reader has received and whose rows it cannot read yet: until when, and up
# to which event.
_UNREADABLE: ContextVar[Mapping[str, tuple[float, int]]] = ContextVar("_UNREADABLE")


class SimulatedProcess(QueueProcess, Protocol):
    """What a faulty port needs to know about its process."""

    @property
    def disconnected(self) -> bool:
        """Whether it cannot reach the backend at the moment."""
        ...

    async def wait_until_running(self) -> None:
        """Return when the process runs; never if it is dead."""
        ...

    async def wait_until_dead(self) -> None:
        """Return when the process is dead."""
        ...

    def die(self) -> None:
        """Kill the process."""
        ...


class StaleReads:
    """Old listings and late events, which all processes of a run share."""

    def __init__(self, rng: Random) -> None:
        self.listings: dict[tuple[Any, ...], Any] = {}
        self.late_events = LateEvents(rng)


def faulty_backend(
    process: SimulatedProcess, simulation: Simulation, clock: Clock, stale_reads: StaleReads
) -> Backend:
    """The backend as this process sees it."""
    rng = simulation.random_for(f"line of {process.name}")
    monitor = Monitor(process, simulation)
    ports: dict[str, Any] = {
        name: FaultyPort(process, monitor, simulation, clock, name, rng, stale_reads)
        for name in _PORTS
        if getattr(simulation.backend, name) is not None
    }
    return replace(simulation.backend, clock=clock, **ports)


@cache
def _is_coroutine_method(port: type, name: str) -> bool:
    return iscoroutinefunction(getattr(port, name, None))


def _ignore(*_: object) -> None:
    """Used where no monitor observes a call."""


@dataclass(frozen=True, slots=True)
class _PortCall:
    """A call of a port's method: ``name`` is ``port.method``."""

    name: str
    carry_out: Callable[..., Awaitable[Any]]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def run(self) -> Awaitable[Any]:
        return self.carry_out(*self.arguments, **self.keywords)


class FaultyPort:
    """Wraps a port: its methods are those of the port, with faults."""

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
        self._name = name
        self._port: Any = getattr(simulation.backend, name)
        self._rng = rng
        self._stale_reads = stale_reads
        self._unanswered_changes: dict[str, None] = {}  # ids of changes that were committed
        # Each draws whether its fault occurs; in this order.
        self._before = (
            *(self._delay_call, self._crash_before, self._disconnect, self._throttle),
            *(self._refuse_write, self._write_late),
        )
        self._after = (
            *(self._retry_by_client, self._serve_stale_listing, self._crash_after),
            *(self._delay_answer, self._lose_answer),
        )
        self._special_calls: Mapping[str, Callable[..., Awaitable[Any]]] = {
            "ledger.commit": self._commit,
            "ledger.get_tasks": self._tasks,
            "queue_controls.pause": self._pause,
            "queue_controls.hold": self._hold,
            "queue_controls.resume": self._resume,
            "blobs.put": self._put,
            "blobs.delete": self._remove,
            "bus.receive": self._receive_events,
            "bus.acknowledge": self._acknowledge,
            "source.turn": self._turn,
            "source.claim": self._claim,
            "source.end_worker": self._end_worker,
            "retention.remove_jobs": self._remove_jobs,
            **FaultyQueue(process, monitor, simulation, clock, rng).calls,
        }

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._port, name)
        if _is_coroutine_method(type(self._port), name):  # type: ignore[arg-type]
            attribute = self._observed(f"{self._name}.{name}", attribute)
            setattr(self, name, attribute)  # no lookup the next time
        return attribute

    def _observed(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        """The method with faults; the monitors see its call, its answer or its failure."""
        call = self._with_faults(name, method)
        if name in ("bus.acknowledge", "ledger.leased_tasks"):
            return self._with_notice(name, call)
        who, pauses, alerts = (
            self._process.name,
            self._simulation.pause_monitor,
            self._simulation.alert_monitor,
        )
        on_answer: dict[str, Callable[..., object]] = {
            "queue_controls.paused_queues": lambda answer, *_: pauses.on_informed(who, answer),
            "queue.receive": lambda answer, *_: self._monitor.on_handed_over(answer),
            "blobs.get": lambda _, key: alerts.on_read(key, who),
        }
        on_failure: dict[str, Callable[..., object]] = {
            "queue_controls.paused_queues": lambda *_: pauses.on_delay(who),
            "blobs.put": lambda key, *_: alerts.on_store_failed(key, who),
            "blobs.delete": lambda key: alerts.on_store_failed(key, who),
        }
        if name not in on_answer and name not in on_failure:
            return call
        answered, failed = on_answer.get(name, _ignore), on_failure.get(name, _ignore)

        async def observed(*arguments: Any, **keywords: Any) -> Any:
            try:
                answer = await call(*arguments, **keywords)
            except BackendUnavailable:
                failed(*arguments)
                raise
            except NotFound:
                answered(None, *arguments)
                raise
            answered(answer, *arguments)
            return answer

        return observed

    def _with_notice(
        self, name: str, call: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        """The call; the monitors see it before it is carried out, which may be much later."""

        async def announced(*arguments: Any, **keywords: Any) -> Any:
            if name == "bus.acknowledge":
                await self._monitor.on_acknowledge(arguments[1])
            else:
                self._simulation.alert_monitor.on_check_started(self._process.name)
            return await call(*arguments, **keywords)

        return announced

    def _with_faults(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        carry_out = self._special_calls.get(name, method)

        async def call(*arguments: Any, **keywords: Any) -> Any:
            port_call = _PortCall(name, carry_out, arguments, keywords)
            if self._faults.ended:
                return await self._run_without_faults(port_call)
            await self._process.wait_until_running()
            for before in self._before:
                await before(port_call)
            answer = await port_call.run()
            for after in self._after:
                answer = await after(port_call, answer)
            return answer

        return call

    async def _run_without_faults(self, call: _PortCall) -> Any:
        await self._process.wait_until_running()
        await asyncio.sleep(_MIN_DELAY_S)
        await self._process.wait_until_running()
        answer = await call.run()
        await self._process.wait_until_running()
        return answer

    # Faults before the call is carried out ------------------------------------------------------

    async def _delay_call(self, _: _PortCall) -> None:
        await self._delay()

    async def _crash_before(self, call: _PortCall) -> None:
        if self._faults.occurs(Fault.CRASH_BEFORE, self._rng):
            await self._die(Fault.CRASH_BEFORE, call.name)

    async def _disconnect(self, call: _PortCall) -> None:
        if self._process.disconnected:
            message = f"{call.name} cannot be reached"
            raise BackendUnavailable(message)

    async def _throttle(self, call: _PortCall) -> None:
        if self._faults.occurs(Fault.THROTTLE, self._rng):
            self._simulation.record(self._process.name, "throttled", call.name)
            message = f"{call.name} was throttled"
            raise BackendUnavailable(message)

    async def _refuse_write(self, call: _PortCall) -> None:
        refused_until = self._simulation.writes_refused_until
        if call.name == "ledger.commit" and self._simulation.time() < refused_until:
            message = "rows cannot be written at the moment"
            raise BackendUnavailable(message)

    async def _write_late(self, call: _PortCall) -> None:
        if call.name not in _LONG_POLLS and self._faults.occurs(Fault.LATE_WRITE, self._rng):
            self._simulation.record(self._process.name, "timed out", call.name)
            self._simulation.start_task(self._run_later(call))
            message = f"{call.name} timed out"
            raise OutcomeUnknown(message)

    # Faults after the call was carried out ------------------------------------------------------

    async def _retry_by_client(self, call: _PortCall, answer: Any) -> Any:
        """The client library loses the answer and sends the commit again by itself."""
        if call.name != "ledger.commit" or not self._faults.occurs(Fault.CLIENT_RETRY, self._rng):
            return answer
        await self._let_others_commit(call.arguments)
        try:
            return await self._commit(*call.arguments)
        except VersionConflict as conflict:
            conflict.maybe_committed = True  # as the client library reports it
            raise

    async def _serve_stale_listing(self, call: _PortCall, answer: Any) -> Any:
        if call.name not in _LISTINGS:
            return answer
        key = (call.name, *(str(call.keywords.get(name)) for name in _KEY_ARGUMENTS))
        previous = self._stale_reads.listings.get(key, answer)
        if self._faults.occurs(Fault.STALE_INDEX, self._rng):
            return previous
        self._stale_reads.listings[key] = answer
        if isinstance(answer, list) and self._faults.occurs(Fault.INDEX_DUPLICATED, self._rng):
            return self._rng.sample([*answer, *answer], 2 * len(answer))
        return answer

    async def _crash_after(self, call: _PortCall, answer: Any) -> Any:
        if self._faults.occurs(Fault.CRASH_AFTER, self._rng):
            await self._die(Fault.CRASH_AFTER, call.name)
        return answer

    async def _delay_answer(self, _: _PortCall, answer: Any) -> Any:
        if self._faults.ended:
            await self._process.wait_until_running()
        else:
            await self._delay()
        return answer

    async def _lose_answer(self, call: _PortCall, answer: Any) -> Any:
        if self._faults.occurs(Fault.UNKNOWN, self._rng):
            self._simulation.record(self._process.name, "answer lost", call.name)
            if call.name == "ledger.commit":
                self._unanswered_changes.update(
                    (change.row.change_id, None) for change in call.arguments
                )
            message = f"the answer of {call.name} was lost"
            raise OutcomeUnknown(message)
        return answer

    async def _delay(self) -> None:
        """Wait a moment, in which other processes may act."""
        if self._faults.occurs(Fault.SLOW, self._rng):
            seconds = self._rng.random() * _LONG_DELAY_S
            self._simulation.pause_monitor.on_delay(self._process.name, seconds)
        else:
            # Often zero: most calls are answered in order.
            seconds = max(self._rng.random() - 0.5, 0.0) * _USUAL_DELAY_S
        await asyncio.sleep(seconds)
        await self._process.wait_until_running()

    async def _die(self, fault: Fault, name: str) -> None:
        self._simulation.record(self._process.name, fault.name.lower().replace("_", " "), name)
        self._process.die()
        await self._process.wait_until_running()

    async def _run_later(self, call: _PortCall) -> None:
        await asyncio.sleep(self._rng.random() * _MAX_WRITE_DELAY_S)
        try:
            await call.run()
            if call.name in ("blobs.put", "blobs.delete"):
                self._simulation.alert_monitor.on_stored_late(call.arguments[0])
        except LongshoreError as error:
            self._simulation.record("late write", type(error).__name__, str(error))

    # Calls that the monitors observe, or that have faults of their own --------------------------

    async def _commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        # A process that lost the answer of its commit is the most likely to make a mistake.
        retried = any(change.row.change_id in self._unanswered_changes for change in changes)
        factor = _OVERTAKEN_RETRY_FACTOR if retried else 1.0
        if self._faults.occurs(Fault.COMMIT_OVERTAKEN, self._rng, factor=factor):
            await self._let_others_commit(changes)
        before = await self._monitor.rows_before(changes)
        effects: tuple[Effect, ...] = await self._port.commit(*changes)
        self._monitor.on_commit(changes, before)
        return effects

    async def _turn(self, worker: WorkerInstance, commands: Any, **keywords: Any) -> Turn:
        with self._monitor.observed_commits():
            turn: Turn = await self._port.turn(worker, commands, **keywords)
        await self._monitor.on_turn(worker, commands, turn)
        return turn

    async def _claim(self, *arguments: Any, **keywords: Any) -> Any:
        """A claim that waits ends with its process."""
        with self._monitor.observed_commits():
            claim = asyncio.ensure_future(self._port.claim(*arguments, **keywords))
            death = asyncio.ensure_future(self._process.wait_until_dead())
        try:
            await asyncio.wait((claim, death), return_when=asyncio.FIRST_COMPLETED)
            if not claim.done():
                claim.cancel()
                await self._process.wait_until_running()
            return await claim
        finally:
            claim.cancel()
            death.cancel()

    async def _end_worker(self, *arguments: Any, **keywords: Any) -> Any:
        with self._monitor.observed_commits():
            return await self._port.end_worker(*arguments, **keywords)

    async def _let_others_commit(self, changes: Sequence[AnyChange]) -> None:
        """Wait until another process has changed one of these rows, or for a few seconds."""
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
        pause: QueuePause = await self._port.pause(name, **keywords)
        self._simulation.pause_monitor.on_switched(name, paused=True)
        return pause

    async def _hold(self, name: str, **keywords: Any) -> QueuePause:
        hold: QueuePause = await self._port.hold(name, **keywords)
        now = self._simulation.clock.now()
        if hold.is_active(now):  # the clock of this process may be wrong
            self._simulation.record_action(
                self._process.name, ActionKind.HOLD_QUEUE, f"{name}, by {hold.by}"
            )
            self._simulation.pause_monitor.on_hold(name, hold.remaining(now).total_seconds())
        return hold

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

    async def _remove_jobs(self, job_ids: Sequence[str], **keywords: Any) -> list[str]:
        if isinstance(self._port, StreamRetention):
            on_removed = self._monitor.on_removed
            return await self._port.remove_jobs(job_ids, on_removed=on_removed, **keywords)
        ledger = self._simulation.backend.ledger
        jobs = {job_id: await ledger.get_job(job_id) for job_id in job_ids}
        tasks = {job_id: await ledger.list_tasks(TENANT, job_id=job_id) for job_id in job_ids}
        removed: list[str] = await self._port.remove_jobs(job_ids, **keywords)
        for job_id in removed:
            self._monitor.on_removed(jobs[job_id], tasks[job_id].items)
        return removed

    async def _receive_events(self, consumer: str, **keywords: Any) -> Delivery | None:
        delivery: Delivery | None = await self._port.receive(consumer, **keywords)
        if self._simulation.profile is FaultProfile.DEFAULT:
            delivery = self._stale_reads.late_events.mix(delivery, self._simulation, self._faults)
        if delivery is not None:
            self._monitor.on_events(delivery)
            self.deliver(delivery)
        return delivery

    def deliver(self, delivery: Delivery) -> None:
        """The current task has received these events, perhaps before it can read their rows."""
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
