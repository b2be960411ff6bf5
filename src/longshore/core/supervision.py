"""Supervision: when a worker process is started, recycled, hurried, killed or given up.

A slot is one of the processes that should run; successive workers run in it. The caller reports on
each worker what it observes and carries out what ``decide`` returns. Everything is an argument, so
that any sequence of deaths can be tested without a process.

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

# How often a stop was requested.
_STOP_NOW, _KILL = 2, 3


class WorkerStopReason(StrEnum):
    """Why a worker is drained."""

    STOP = "stop"  # all workers stop
    MEMORY = "memory"  # it uses too much memory
    DAILY = "daily"  # the daily recycling
    REQUESTED = "requested"  # an operator requested it


class WorkerStatus(StrEnum):
    """What a worker reports to its supervisor."""

    SERVING = "serving"
    DRAINING = "draining"


class WorkerStep(StrEnum):
    """A step in the life of a worker, each taken at most once and in this order."""

    START = "start"
    DRAIN = "drain"  # ask it to accept no more work and to exit when it has finished
    STOP_NOW = "stop now"  # ask it a second time: it releases its tasks and exits
    KILL = "kill"  # it has not exited in time


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
class SupervisionFailure:
    """Why supervision gives up."""

    slot: int
    restarts: int
    code: int | None  # the exit code of the last worker; None: it is still running
    out_of_memory: bool  # it used too much memory


@dataclass(slots=True, kw_only=True)
class WorkerSlot:
    """One of the processes that should run."""

    number: int
    due: timedelta | None  # when to start a worker; None: one runs, or none is needed
    starts: int = 0
    short_runs: int = 0  # of restarted workers, in a row


@dataclass(slots=True, kw_only=True, eq=False)
class SupervisedWorker:
    """A worker process: the caller's observations, and what was decided about it."""

    slot: WorkerSlot
    started_at: timedelta
    # Set by the caller.
    status: WorkerStatus | None = None
    memory_bytes: int = 0
    exit_code: int | None = None  # None: it runs
    # Set by ``Supervision``.
    step: WorkerStep = WorkerStep.START  # the last one
    stop_reason: WorkerStopReason | None = None  # before ``DRAIN``: why it is to be recycled
    drained_at: timedelta = _ZERO
    kill_at: timedelta = _ZERO
    succession_decided: bool = False


WorkerSteps = Iterator[tuple[WorkerStep, SupervisedWorker]]


class Supervision:
    """The slots, their workers and the next steps. Times are elapsed times."""

    def __init__(self, policy: SupervisionPolicy, *, now: timedelta, local: datetime) -> None:
        self._policy = policy
        self._slots = [WorkerSlot(number=n + 1, due=now) for n in range(policy.processes)]
        self._workers: list[SupervisedWorker] = []
        self._recycled_until = local.replace(tzinfo=None)
        self._stops_requested = 0
        self.failure: SupervisionFailure | None = None

    @property
    def finished(self) -> bool:
        """Whether no worker is left and none will be started."""
        return not self._workers and self._slots_are_filled()

    def recycle(self, reason: WorkerStopReason = WorkerStopReason.REQUESTED) -> None:
        """Replace all current workers, one after the other."""
        for worker in self._workers:
            worker.stop_reason = worker.stop_reason or reason

    def stop(self) -> None:
        """Stop all workers: by draining; the second call at once; the third by killing."""
        self._stops_requested += 1
        for slot in self._slots:
            slot.due = None

    def decide(
        self, *, now: timedelta, local: datetime
    ) -> list[tuple[WorkerStep, SupervisedWorker]]:
        """Returns the steps that are due, at most one for each worker; the caller takes them.

        Args:
            local: The current local time.
        """
        for worker in self._workers:
            self._observe(worker, now)
        self._workers = [worker for worker in self._workers if worker.exit_code is None]
        if self._daily_due(local.replace(tzinfo=None)):
            self.recycle(WorkerStopReason.DAILY)
        return [*self._starts(now), *self._ends(now)]

    def _observe(self, worker: SupervisedWorker, now: timedelta) -> None:
        """Draw the conclusions of what the caller has reported on a worker."""
        unasked = worker.step is WorkerStep.START
        if unasked and 0 < self._policy.memory_ceiling_bytes < worker.memory_bytes:
            worker.stop_reason = WorkerStopReason.MEMORY
        # A worker that drains without having been asked is replaced when it has exited.
        draining = worker.status is WorkerStatus.DRAINING and not unasked
        if (draining or worker.exit_code is not None) and not worker.succession_decided:
            worker.succession_decided = True
            self._decide_succession(worker, now)

    def _decide_succession(self, worker: SupervisedWorker, now: timedelta) -> None:
        """Decide the successor of a worker that has exited or accepts no more work."""
        if self._stops_requested:
            return
        by_itself, slot = worker.step is WorkerStep.START, worker.slot
        if by_itself and worker.exit_code == 0 and self._policy.until_done:
            return
        lived = (now if by_itself else worker.drained_at) - worker.started_at
        short = lived < self._policy.short_life
        out_of_memory = not by_itself and worker.stop_reason is WorkerStopReason.MEMORY
        fault = by_itself or out_of_memory
        if not short:
            slot.short_runs = 0
        elif fault and slot.starts > 1:
            slot.short_runs += 1
        if fault and slot.short_runs >= self._policy.restart_limit:
            self.failure = SupervisionFailure(
                slot=slot.number,
                restarts=slot.short_runs,
                code=worker.exit_code,
                out_of_memory=out_of_memory,
            )
            self.stop()
            return
        slot.due = now + (self._policy.restart_delay if by_itself or (fault and short) else _ZERO)

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

    def _starts(self, now: timedelta) -> WorkerSteps:
        for slot in self._slots:
            if slot.due is not None and slot.due <= now:
                slot.due = None
                slot.starts += 1
                worker = SupervisedWorker(slot=slot, started_at=now)
                self._workers.append(worker)
                yield worker.step, worker

    def _ends(self, now: timedelta) -> WorkerSteps:
        """The next step of each worker that is to end."""
        recycled = self._next_to_recycle(now)
        for worker in self._workers:
            if worker.step is WorkerStep.START:
                if self._stops_requested:
                    worker.stop_reason = WorkerStopReason.STOP
                elif worker is not recycled:
                    continue
                worker.step = WorkerStep.DRAIN
                worker.drained_at, worker.kill_at = now, now + self._policy.kill_after
            elif worker.step is WorkerStep.KILL:
                continue
            elif self._stops_requested >= _KILL or now >= worker.kill_at:
                worker.step = WorkerStep.KILL
            elif self._stops_requested >= _STOP_NOW and worker.step is WorkerStep.DRAIN:
                worker.step = WorkerStep.STOP_NOW
                worker.kill_at = min(worker.kill_at, now + self._policy.urgent_kill_after)
            else:
                continue
            yield worker.step, worker

    def _next_to_recycle(self, now: timedelta) -> SupervisedWorker | None:
        """The first worker that is to be recycled, if all slots are served and none is draining."""
        at_rest = self._slots_are_filled() and all(
            worker.step is WorkerStep.START and self._is_steady(worker, now)
            for worker in self._workers
        )
        if not at_rest:
            return None
        return next((worker for worker in self._workers if worker.stop_reason is not None), None)

    def _slots_are_filled(self) -> bool:
        return all(slot.due is None for slot in self._slots)

    def _is_steady(self, worker: SupervisedWorker, now: timedelta) -> bool:
        """Whether the slot is served. A worker that has run for long enough counts as serving."""
        return worker.status is not None or now - worker.started_at >= self._policy.short_life
