"""The supervisor: keeps worker processes running. What to do is decided in ``core.supervision``.

It opens no store and takes no work, so it has little that can fail; if it fails all the same, its
workers notice and drain by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from longshore.core.supervision import (
    DrainWorker,
    KillWorker,
    StartWorker,
    StopWorkerNow,
    Supervision,
    SupervisionAction,
    SupervisionFailure,
    SupervisionPolicy,
)
from longshore.ports.clock import Clock
from longshore.services.resilience import race

logger = logging.getLogger(__name__)

CHECK_INTERVAL = timedelta(seconds=1)
START_FAILED = 126
"""The exit code of a worker that could not be started, as in a shell."""


class WorkerStatus(StrEnum):
    """What a worker reports to its supervisor."""

    SERVING = "serving"
    DRAINING = "draining"


class WorkerProcess(Protocol):
    """A worker in a process of its own."""

    @property
    def process_id(self) -> int:
        """The operating system's id of the process."""
        ...

    def request_stop(self) -> None:
        """The first call drains, the second releases running tasks. Does nothing after its end."""
        ...

    def kill(self) -> None:
        """Kill the process. Does nothing after its end."""
        ...

    def memory_bytes(self) -> int:
        """Resident memory of the process; 0 if it cannot be read."""
        ...

    async def wait(self) -> int:
        """Wait for the end. Returns the exit code, or minus the signal that ended the process."""
        ...


WorkerLauncher = Callable[[int, Callable[[WorkerStatus], None]], WorkerProcess]
"""Starts a worker in a slot, by its number, and passes on the status that the worker reports.

Raises ``OSError`` if the worker could not be started.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerHandle:
    slot: int
    process: WorkerProcess

    def log(self, event: str, level: int = logging.INFO, **fields: object) -> None:
        """Log an event about this worker."""
        about = {"worker": self.slot, "pid": self.process.process_id}
        logger.log(level, event, extra={**about, **fields})


class Supervisor:
    """Runs until all workers have ended."""

    def __init__(self, policy: SupervisionPolicy, start: WorkerLauncher, clock: Clock) -> None:
        self._start = start
        self._clock = clock
        self._supervision = Supervision(policy, now=clock.elapsed(), local=clock.now().astimezone())
        self._running: dict[int, _WorkerHandle] = {}  # by their serials
        self._watchers: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    @property
    def failure(self) -> SupervisionFailure | None:
        """Why the supervisor gave up; None: it did not."""
        return self._supervision.failure

    @property
    def running(self) -> int:
        """The number of worker processes."""
        return len(self._running)

    def stop(self) -> None:
        """Drain all workers; the second call ends them at once, the third kills them."""
        self._supervision.stop()
        self._changed.set()

    def recycle(self) -> None:
        """Replace all workers by new ones, one after the other."""
        self._supervision.recycle()
        self._changed.set()

    async def run(self) -> None:
        """Keep workers running until ``stop``, or until restarting them is pointless."""
        try:
            while not self._supervision.finished:
                self._changed.clear()
                self._check()
                async with race(self._changed.wait(), self._clock.sleep(CHECK_INTERVAL)):
                    pass
        finally:
            # If this fails, no worker is killed: the workers notice and drain by themselves.
            for waiting in self._watchers:
                waiting.cancel()
            await asyncio.gather(*self._watchers, return_exceptions=True)

    def _check(self) -> None:
        for serial, running in self._running.items():
            self._supervision.memory_measured(serial, running.process.memory_bytes())
        now, local = self._clock.elapsed(), self._clock.now().astimezone()
        for decision in self._supervision.decide(now=now, local=local):
            self._carry_out(decision)

    def _carry_out(self, decision: SupervisionAction) -> None:
        match decision:
            case StartWorker(slot=slot, serial=serial):
                self._start_worker(slot, serial)
            case DrainWorker(serial=serial, reason=reason):
                self._running[serial].log("worker.draining", reason=reason.value)
                self._running[serial].process.request_stop()
            case StopWorkerNow(serial=serial):
                self._running[serial].log("worker.stopped_now")
                self._running[serial].process.request_stop()
            case KillWorker(serial=serial):
                self._running[serial].log("worker.killed", logging.WARNING)
                self._running[serial].process.kill()

    def _start_worker(self, slot: int, serial: int) -> None:
        try:
            process = self._start(slot, lambda status: self._on_status(serial, status))
        except OSError as error:
            logger.warning("worker.start_failed", extra={"worker": slot, "error": str(error)})
            self._supervision.worker_ended(serial, START_FAILED, now=self._clock.elapsed())
            self._changed.set()
            return
        running = self._running[serial] = _WorkerHandle(slot=slot, process=process)
        running.log("worker.started")
        waiting = asyncio.ensure_future(self._watch(serial, running))
        self._watchers.add(waiting)
        waiting.add_done_callback(self._watchers.discard)

    async def _watch(self, serial: int, running: _WorkerHandle) -> None:
        code = await running.process.wait()
        running.log("worker.ended", code=code)
        del self._running[serial]
        self._supervision.worker_ended(serial, code, now=self._clock.elapsed())
        self._changed.set()

    def _on_status(self, serial: int, status: WorkerStatus) -> None:
        if serial not in self._running:
            return  # its last status arrived after its end
        match status:
            case WorkerStatus.SERVING:
                self._supervision.worker_serving(serial)
            case WorkerStatus.DRAINING:
                self._supervision.worker_draining(serial, now=self._clock.elapsed())
        self._changed.set()
