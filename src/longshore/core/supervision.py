"""Supervision: when a worker process is started, recycled, hurried, killed or given up.

A slot is one of the processes that should run; successive workers run in it. The caller reports on
each worker what it observes and takes the steps that ``decide`` returns. Everything is an argument,
so that any sequence of deaths can be tested without a process.

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
                raise ValueError(f"{name} must be at least 1, not {count!r}")


@dataclass(slots=True, kw_only=True, eq=False)
class SupervisedWorker:
    """A worker in a slot, from the decision to start it until its process has exited."""

    slot: int
    started_at: timedelta  # before its start: when it is due
    restarted: bool = False  # it has a predecessor in its slot
    short_runs: int = 0  # of restarted workers in its slot, in a row
    # Set by the caller.
    status: WorkerStatus | None = None
    memory_bytes: int = 0
    exit_code: int | None = None  # None: it has not exited
    # Set by ``Supervision``.
    step: WorkerStep | None = None  # the last one; None: its start is not due
    recycle_reason: WorkerStopReason | None = None  # why it is to be drained when it is its turn
    stop_reason: WorkerStopReason | None = None  # why it was drained
    drained_at: timedelta = _ZERO
    kill_at: timedelta = _ZERO
    succession_decided: bool = False


class Supervision:
    """The workers of all slots and their next steps. Times are elapsed times."""

    def __init__(self, policy: SupervisionPolicy, *, now: timedelta, local: datetime) -> None:
        self._policy = policy
        slots = range(1, policy.processes + 1)
        self._workers = [SupervisedWorker(slot=slot, started_at=now) for slot in slots]
        self._recycled_until = local.replace(tzinfo=None)
        self._stops_requested = 0
        self.failure: SupervisedWorker | None = None  # the last worker of a slot that is given up

    @property
    def finished(self) -> bool:
        """Whether no worker is left and none will be started."""
        return not self._workers

    def recycle(self, reason: WorkerStopReason = WorkerStopReason.REQUESTED) -> None:
        """Replace all current workers, one after the other."""
        for worker in self._workers:
            if worker.step is not None:
                worker.recycle_reason = worker.recycle_reason or reason

    def stop(self) -> None:
        """Stop all workers: by draining; the second call at once; the third by killing."""
        self._stops_requested += 1
        self._workers = [worker for worker in self._workers if worker.step is not None]

    def decide(self, *, now: timedelta, local: datetime) -> list[SupervisedWorker]:
        """Returns the workers whose next step is due; the caller takes that step.

        Args:
            local: The current local time.
        """
        for worker in list(self._workers):
            self._observe(worker, now)
        self._workers = [worker for worker in self._workers if worker.exit_code is None]
        if self._daily_due(local.replace(tzinfo=None)):
            self.recycle(WorkerStopReason.DAILY)
        recycled = self._next_to_recycle(now)
        due = []
        for worker in self._workers:
            if step := self._next_step(worker, now, recycled=worker is recycled):
                worker.step = step
                due.append(worker)
        return due

    def _observe(self, worker: SupervisedWorker, now: timedelta) -> None:
        """Draw the conclusions of what the caller has reported on a worker."""
        if 0 < self._policy.memory_ceiling_bytes < worker.memory_bytes:
            worker.recycle_reason = WorkerStopReason.MEMORY
        # A worker that drains without a request is replaced when it has exited.
        draining = worker.status is WorkerStatus.DRAINING and worker.stop_reason is not None
        if (draining or worker.exit_code is not None) and not worker.succession_decided:
            worker.succession_decided = True
            self._decide_succession(worker, now)

    def _decide_succession(self, worker: SupervisedWorker, now: timedelta) -> None:
        """Decide the successor of a worker that has exited or accepts no more work."""
        by_itself = worker.stop_reason is None
        done = by_itself and worker.exit_code == 0 and self._policy.until_done
        if self._stops_requested or done:
            return
        lived = (now if by_itself else worker.drained_at) - worker.started_at
        short = lived < self._policy.short_life
        fault = by_itself or worker.stop_reason is WorkerStopReason.MEMORY
        if not short:
            worker.short_runs = 0
        elif fault and worker.restarted:
            worker.short_runs += 1
        if fault and worker.short_runs >= self._policy.restart_limit:
            self.failure = worker
            self.stop()
            return
        delay = self._policy.restart_delay if by_itself or (fault and short) else _ZERO
        successor = SupervisedWorker(
            slot=worker.slot,
            started_at=now + delay,
            restarted=True,
            short_runs=worker.short_runs,
        )
        self._workers.append(successor)

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

    def _next_to_recycle(self, now: timedelta) -> SupervisedWorker | None:
        """The first worker that is to be recycled, if all slots are served and none is drained."""
        for worker in self._workers:
            # A worker that has run for long enough counts as serving.
            steady = worker.status is not None or now - worker.started_at >= self._policy.short_life
            if worker.step is not WorkerStep.START or not steady:
                return None
        return next((worker for worker in self._workers if worker.recycle_reason), None)

    def _next_step(
        self, worker: SupervisedWorker, now: timedelta, *, recycled: bool
    ) -> WorkerStep | None:
        overdue = self._stops_requested >= _KILL or now >= worker.kill_at
        match worker.step:
            case None if now >= worker.started_at:
                worker.started_at = now
                return WorkerStep.START
            case WorkerStep.START if self._stops_requested or recycled:
                reason = WorkerStopReason.STOP if self._stops_requested else worker.recycle_reason
                worker.stop_reason, worker.drained_at = reason, now
                worker.kill_at = now + self._policy.kill_after
                return WorkerStep.DRAIN
            case WorkerStep.DRAIN | WorkerStep.STOP_NOW if overdue:
                return WorkerStep.KILL
            case WorkerStep.DRAIN if self._stops_requested >= _STOP_NOW:
                worker.kill_at = min(worker.kill_at, now + self._policy.urgent_kill_after)
                return WorkerStep.STOP_NOW
        return None
