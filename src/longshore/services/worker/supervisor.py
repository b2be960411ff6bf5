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
"""The code of a worker that could not be started at all, as a shell has it."""


class WorkerStatus(StrEnum):
    """What a worker tells its supervisor."""

    SERVING = "serving"
    DRAINING = "draining"


class WorkerProcess(Protocol):
    """A worker in a process of its own."""

    @property
    def process_id(self) -> int:
        """By which the operating system knows it."""
        ...

    def request_stop(self) -> None:
        """The first time: drain. The second time: give back what runs. No harm if it has ended."""
        ...

    def kill(self) -> None:
        """End it without a word. No harm if it has ended."""
        ...

    def memory_bytes(self) -> int:
        """Resident memory of the process itself; 0 if that cannot be seen."""
        ...

    async def wait(self) -> int:
        """Wait for its end; its exit code, or minus the signal that ended it."""
        ...


WorkerLauncher = Callable[[int, Callable[[WorkerStatus], None]], WorkerProcess]
"""Starts a worker for a place, by its number, and hands on what that worker says.

An ``OSError`` says that it could not be started.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerHandle:
    slot: int
    process: WorkerProcess

    def log(self, event: str, level: int = logging.INFO, **fields: object) -> None:
        """A record about it."""
        known = {"worker": self.slot, "pid": self.process.process_id}
        logger.log(level, event, extra={**known, **fields})


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
        """Why it gave up; None: it has not."""
        return self._supervision.failure

    @property
    def running(self) -> int:
        """How many worker processes there are now."""
        return len(self._running)

    def stop(self) -> None:
        """Drain all; asked again, end them at once; a third time, kill them."""
        self._supervision.stop()
        self._changed.set()

    def recycle(self) -> None:
        """Replace all workers by fresh ones, one after the other."""
        self._supervision.recycle()
        self._changed.set()

    async def run(self) -> None:
        """Keep workers running until ``stop``, or until there is no point in going on."""
        try:
            while not self._supervision.finished:
                self._changed.clear()
                self._check()
                await self._wait_for_next_check()
        finally:
            # Should this break, nobody is killed: the workers notice and drain by themselves.
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
            case StartWorker(slot=place, serial=serial):
                self._start_worker(place, serial)
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
            process = self._start(slot, lambda word: self._on_status(serial, word))
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
            return  # its last words came after its end
        match status:
            case WorkerStatus.SERVING:
                self._supervision.worker_serving(serial)
            case WorkerStatus.DRAINING:
                self._supervision.worker_draining(serial, now=self._clock.elapsed())
        self._changed.set()

    async def _wait_for_next_check(self) -> None:
        due_in = self._supervision.time_until_due(self._clock.elapsed())
        longest = CHECK_INTERVAL if due_in is None else min(due_in, CHECK_INTERVAL)
        async with race(self._changed.wait(), self._clock.sleep(longest)):
            pass
