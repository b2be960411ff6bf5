"""The supervisor: keeps worker processes running. What to do is decided in ``core.supervision``.

It opens no store and takes no work, so it has little that can fail; if it fails all the same, its
workers notice and drain by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Protocol

from longshore.core.supervision import (
    SupervisedWorker,
    Supervision,
    SupervisionPolicy,
    WorkerStatus,
    WorkerStep,
)
from longshore.ports.clock import Clock
from longshore.services.resilience import race

logger = logging.getLogger(__name__)

CHECK_INTERVAL = timedelta(seconds=1)
START_FAILED = 126
"""The exit code of a worker that could not be started, as in a shell."""


class WorkerProcess(Protocol):
    """A worker in a process of its own."""

    process_id: int
    ended: asyncio.Future[int]
    """The exit code, or minus the signal that ended the process."""

    def request_stop(self) -> None:
        """The first call drains, the second releases running tasks. Does nothing after its end."""
        ...

    def kill(self) -> None:
        """Kill the process. Does nothing after its end."""
        ...

    def memory_bytes(self) -> int:
        """Resident memory of the process; 0 if it cannot be read."""
        ...


WorkerLauncher = Callable[[int, Callable[[WorkerStatus], None]], WorkerProcess]
"""Starts a worker in a slot, by its number, and passes on the status that the worker reports.

Raises ``OSError`` if the worker could not be started.
"""


class Supervisor:
    """Runs until all workers have ended."""

    def __init__(self, policy: SupervisionPolicy, start: WorkerLauncher, clock: Clock) -> None:
        self._start = start
        self._clock = clock
        self._supervision = Supervision(policy, now=clock.elapsed(), local=clock.now().astimezone())
        self._processes: dict[SupervisedWorker, WorkerProcess] = {}
        self._changed = asyncio.Event()

    @property
    def failure(self) -> SupervisedWorker | None:
        """The last worker of the slot that the supervisor gave up; None: it did not give up."""
        return self._supervision.failure

    @property
    def running(self) -> int:
        """The number of worker processes."""
        return len(self._processes)

    def stop(self) -> None:
        """Drain all workers; the second call ends them at once, the third kills them."""
        self._supervision.stop()
        self._changed.set()

    def recycle(self) -> None:
        """Replace all workers by new ones, one after the other."""
        self._supervision.recycle()
        self._changed.set()

    async def run(self) -> None:
        """Keep workers running until ``stop``, or until restarting them is pointless.

        If this fails, no worker is killed: the workers notice and drain by themselves.
        """
        self._check()
        while not self._supervision.finished:
            async with race(self._changed.wait(), self._clock.sleep(CHECK_INTERVAL)):
                self._changed.clear()
            self._check()

    def _check(self) -> None:
        for worker, process in self._processes.items():
            worker.memory_bytes = process.memory_bytes()
        now, local = self._clock.elapsed(), self._clock.now().astimezone()
        for worker in self._supervision.decide(now=now, local=local):
            self._take_step(worker)

    def _take_step(self, worker: SupervisedWorker) -> None:
        if worker.step is WorkerStep.START:
            self._start_worker(worker)
            return
        process = self._processes[worker]
        about = {"worker": worker.slot, "pid": process.process_id}
        match worker.step:
            case WorkerStep.DRAIN:
                logger.info("worker.draining", extra={**about, "reason": worker.stop_reason})
                process.request_stop()
            case WorkerStep.STOP_NOW:
                logger.info("worker.stopped_now", extra=about)
                process.request_stop()
            case WorkerStep.KILL:
                logger.warning("worker.killed", extra=about)
                process.kill()

    def _start_worker(self, worker: SupervisedWorker) -> None:
        number = worker.slot
        try:
            process = self._start(number, partial(self._on_status, worker))
        except OSError as error:
            logger.warning("worker.start_failed", extra={"worker": number, "error": str(error)})
            worker.exit_code = START_FAILED
            self._changed.set()
            return
        self._processes[worker] = process
        logger.info("worker.started", extra={"worker": number, "pid": process.process_id})
        process.ended.add_done_callback(partial(self._on_end, worker))

    def _on_status(self, worker: SupervisedWorker, status: WorkerStatus) -> None:
        worker.status = status
        self._changed.set()

    def _on_end(self, worker: SupervisedWorker, ended: asyncio.Future[int]) -> None:
        process = self._processes.pop(worker)
        code = worker.exit_code = ended.result()
        about = {"worker": worker.slot, "pid": process.process_id}
        logger.info("worker.ended", extra={**about, "code": code})
        self._changed.set()
