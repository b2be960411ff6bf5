"""Supervision: when a worker process is started, recycled, hurried, killed or given up.

A slot is one of the processes that should run. Successive workers run in a slot, each with its own
serial number. The caller reports what happened and carries out what ``decide`` returns. Everything
is an argument, so that any sequence of deaths can be tested without a process.

- A worker that ended by itself is replaced after a delay, so that an error at each start does not
  consume the machine. After too many short-lived workers in a row, supervision gives up and says
  why.
- Recycling is draining: the old worker accepts no more work, its successor starts at that moment,
  and the old worker finishes its tasks. One slot at a time, and only while all other slots are
  served: there is at most one worker more or less than configured.
- A worker that exceeds its memory soon after each start counts as short-lived; otherwise it would
  be recycled for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from enum import StrEnum

_ZERO, _DAY = timedelta(0), timedelta(days=1)


class WorkerStopReason(StrEnum):
    """Why a worker is drained."""

    STOP = "stop"  # all workers stop
    MEMORY = "memory"  # it uses too much memory
    DAILY = "daily"  # the daily recycling
    REQUESTED = "requested"  # an operator requested it


# How often a stop was requested.
_STOP_NOW, _KILL = 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionPolicy:
    """Limits and delays of worker processes."""

    processes: int = 1
    restart_delay: timedelta = timedelta(seconds=5)
    restart_limit: int = 10  # this many short-lived workers in a row: give up
    short_life: timedelta = timedelta(seconds=10)  # a worker that ran for less is short-lived
    memory_ceiling_bytes: int = 2**30  # 0: none
    recycle_at: time | None = None  # local time of day; None: never
    kill_after: timedelta = timedelta(seconds=45)  # after a drain request; longer than a drain
    urgent_kill_after: timedelta = timedelta(seconds=5)  # after a stop without grace was requested
    until_done: bool = False  # a worker that exits with 0 is not replaced

    def __post_init__(self) -> None:
        for name in ("processes", "restart_limit"):
            if (count := getattr(self, name)) < 1:
                message = f"{name} must be at least 1, not {count!r}"
                raise ValueError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Start a worker in a slot, with this serial number."""

    slot: int
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainWorker:
    """Ask a worker to accept no more work and to exit when it has finished."""

    serial: int
    reason: WorkerStopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorkerNow:
    """Ask a worker a second time: it releases its tasks and exits."""

    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillWorker:
    """Kill a worker that has not exited in time."""

    serial: int


SupervisionAction = StartWorker | DrainWorker | StopWorkerNow | KillWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionFailure:
    """Why supervision gives up."""

    slot: int
    restarts: int
    code: int | None  # the exit code of the last worker; None: it is still running
    out_of_memory: bool  # it used too much memory


@dataclass(slots=True, kw_only=True)
class _Slot:
    number: int
    due: timedelta | None  # when to start a worker; None: one runs, or none is needed
    starts: int = 0
    short_runs: int = 0  # of restarted workers, in a row
    done: bool = False


@dataclass(slots=True, kw_only=True)
class _Worker:
    serial: int
    slot: _Slot
    started_at: timedelta
    restarted: bool
    serving: bool = False
    stop_reason: WorkerStopReason | None = None
    stop_requested_at: timedelta = _ZERO
    urgent_at: timedelta | None = None
    killed: bool = False
    succession_decided: bool = False  # whether its successor was decided


class Supervision:
    """The slots, their workers and the next actions. Times are elapsed times."""

    def __init__(self, policy: SupervisionPolicy, *, now: timedelta, local: datetime) -> None:
        self._policy = policy
        self._slots = [_Slot(number=n + 1, due=now) for n in range(policy.processes)]
        self._workers: dict[int, _Worker] = {}
        self._to_recycle: dict[int, WorkerStopReason] = {}  # by serial, in order
        self._recycled_until = local.replace(tzinfo=None)
        self._serial = 0
        self._stops_requested = 0
        self.failure: SupervisionFailure | None = None

    @property
    def stopping(self) -> bool:
        """Whether all workers are to stop."""
        return self._stops_requested > 0

    @property
    def finished(self) -> bool:
        """Whether no worker is left."""
        return not self._workers and (self.stopping or all(p.done for p in self._slots))

    def worker_serving(self, serial: int) -> None:
        """A worker has started to accept work."""
        self._workers[serial].serving = True

    def worker_draining(self, serial: int, *, now: timedelta) -> None:
        """A worker accepts no more work."""
        worker = self._workers[serial]
        # A worker that drains for another reason is replaced when it has exited.
        if worker.stop_reason is not None and not worker.succession_decided:
            self._decide_succession(worker, None, now)

    def worker_ended(self, serial: int, code: int, *, now: timedelta) -> None:
        """A worker's process has exited."""
        worker = self._workers.pop(serial)
        self._to_recycle.pop(serial, None)
        if not worker.succession_decided:
            self._decide_succession(worker, code, now)

    def memory_measured(self, serial: int, memory_bytes: int) -> None:
        """Record how much memory a worker's process uses."""
        if 0 < self._policy.memory_ceiling_bytes < memory_bytes:
            self._to_recycle[serial] = WorkerStopReason.MEMORY

    def recycle(self, reason: WorkerStopReason = WorkerStopReason.REQUESTED) -> None:
        """Replace all current workers, one after the other."""
        for serial in self._workers:
            self._to_recycle.setdefault(serial, reason)

    def stop(self) -> None:
        """Stop all workers: by draining; the second call at once; the third by killing."""
        self._stops_requested += 1

    def decide(self, *, now: timedelta, local: datetime) -> list[SupervisionAction]:
        """Returns the actions that are due, each once; the caller carries them out.

        Args:
            local: The current local time.
        """
        if self._daily_due(local.replace(tzinfo=None)):
            self.recycle(WorkerStopReason.DAILY)
        if self.stopping:
            streams = (self._drains(now), self._urgent_stops(now))
        else:
            streams = (self._starts(now), self._recycles(now))
        return [*(decision for stream in streams for decision in stream), *self._kills(now)]

    def _decide_succession(self, worker: _Worker, code: int | None, now: timedelta) -> None:
        """Decide the successor of a worker that has exited or accepts no more work."""
        worker.succession_decided = True
        if self.stopping:
            return
        by_itself, slot = worker.stop_reason is None, worker.slot
        if by_itself and code == 0 and self._policy.until_done:
            slot.done = True
            return
        lived = (now if by_itself else worker.stop_requested_at) - worker.started_at
        short = lived < self._policy.short_life
        fault = by_itself or worker.stop_reason is WorkerStopReason.MEMORY
        if not short:
            slot.short_runs = 0
        elif fault and worker.restarted:
            slot.short_runs += 1
        if fault and slot.short_runs >= self._policy.restart_limit:
            self._give_up(worker, code)
            return
        slot.due = now + (self._policy.restart_delay if by_itself or (fault and short) else _ZERO)

    def _give_up(self, worker: _Worker, code: int | None) -> None:
        self.failure = SupervisionFailure(
            slot=worker.slot.number,
            restarts=worker.slot.short_runs,
            code=code,
            out_of_memory=worker.stop_reason is WorkerStopReason.MEMORY,
        )
        self.stop()

    def _daily_due(self, local: datetime) -> bool:
        """Whether the daily recycling is due, also if its time was missed.

        By date, so that an hour that occurs twice or never makes no difference.
        """
        if self._policy.recycle_at is None:
            return False
        latest = datetime.combine(local.date(), self._policy.recycle_at)
        if latest > local:
            latest -= _DAY
        due = latest > self._recycled_until
        self._recycled_until = max(latest, self._recycled_until)
        return due

    def _starts(self, now: timedelta) -> Iterator[SupervisionAction]:
        for slot in self._slots:
            if slot.due is not None and slot.due <= now:
                self._serial += 1
                self._workers[self._serial] = _Worker(
                    serial=self._serial, slot=slot, started_at=now, restarted=slot.starts > 0
                )
                slot.due = None
                slot.starts += 1
                yield StartWorker(slot=slot.number, serial=self._serial)

    def _recycles(self, now: timedelta) -> Iterator[SupervisionAction]:
        # No worker is asked twice: the one that was asked before has exited by then.
        at_rest = not any(slot.due is not None for slot in self._slots) and all(
            worker.stop_reason is None and self._is_steady(worker, now)
            for worker in self._workers.values()
        )
        if at_rest and self._to_recycle:
            serial = next(iter(self._to_recycle))
            yield self._request_stop(self._workers[serial], self._to_recycle.pop(serial), now)

    def _is_steady(self, worker: _Worker, now: timedelta) -> bool:
        """Whether the slot is served. A worker that has run for long enough counts as serving."""
        return worker.serving or now - worker.started_at >= self._policy.short_life

    def _request_stop(
        self, worker: _Worker, reason: WorkerStopReason, now: timedelta
    ) -> DrainWorker:
        worker.stop_reason, worker.stop_requested_at = reason, now
        return DrainWorker(serial=worker.serial, reason=reason)

    def _drains(self, now: timedelta) -> Iterator[SupervisionAction]:
        # Not workers that drain already: a second request means to stop at once.
        for worker in self._workers.values():
            if worker.stop_reason is None:
                yield self._request_stop(worker, WorkerStopReason.STOP, now)

    def _urgent_stops(self, now: timedelta) -> Iterator[SupervisionAction]:
        for worker in self._workers.values():
            if self._stops_requested >= _STOP_NOW and worker.urgent_at is None:
                worker.urgent_at = now
                yield StopWorkerNow(serial=worker.serial)

    def _kills(self, now: timedelta) -> Iterator[SupervisionAction]:
        for worker in self._workers.values():
            overdue = self._stops_requested >= _KILL or now >= self._kill_at(worker)
            if worker.stop_reason is not None and not worker.killed and overdue:
                worker.killed = True
                yield KillWorker(serial=worker.serial)

    def _kill_at(self, worker: _Worker) -> timedelta:
        """Returns when a draining worker is killed."""
        latest = worker.stop_requested_at + self._policy.kill_after
        if worker.urgent_at is None:
            return latest
        return min(latest, worker.urgent_at + self._policy.urgent_kill_after)
