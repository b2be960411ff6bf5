"""A supervision with a clock: tests report on workers and read the steps that are decided.

A worker is named by its serial number, in the order of the starts.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from longshore.core.supervision import (
    SupervisedWorker,
    Supervision,
    SupervisionPolicy,
    WorkerStatus,
    WorkerStep,
    WorkerStopReason,
)

SECOND = timedelta(seconds=1)
TICK = timedelta(microseconds=1)
EVENING = datetime(2030, 1, 7, 22, tzinfo=UTC)
DELAY, SHORT, LIMIT = 5 * SECOND, 10 * SECOND, 10


class Decided(NamedTuple):
    """A step, the worker that it concerns, and its slot or the reason."""

    step: WorkerStep
    serial: int
    slot: int | None = None
    reason: WorkerStopReason | None = None


def start(*, slot: int, serial: int) -> Decided:
    return Decided(WorkerStep.START, serial, slot=slot)


def drain(*, serial: int, reason: WorkerStopReason) -> Decided:
    return Decided(WorkerStep.DRAIN, serial, reason=reason)


def stop_now(*, serial: int) -> Decided:
    return Decided(WorkerStep.STOP_NOW, serial)


def kill(*, serial: int) -> Decided:
    return Decided(WorkerStep.KILL, serial)


class SupervisionHarness:
    """A supervision with a clock, whose steps are taken immediately."""

    def __init__(self, **policy: Any) -> None:
        self.now = timedelta(0)
        self.local = EVENING
        self.supervision = Supervision(SupervisionPolicy(**policy), now=self.now, local=self.local)
        self.workers: list[SupervisedWorker] = []

    def worker(self, serial: int) -> SupervisedWorker:
        return self.workers[serial - 1]

    def advance(self, duration: timedelta) -> list[Decided]:
        self.now += duration
        self.local += duration
        return self.decide()

    def decide(self) -> list[Decided]:
        due = self.supervision.decide(now=self.now, local=self.local)
        return [self._decided(worker) for worker in due]

    def _decided(self, worker: SupervisedWorker) -> Decided:
        step = worker.step
        assert step is not None
        if step is WorkerStep.START:
            self.workers.append(worker)
        return Decided(
            step,
            self.workers.index(worker) + 1,
            slot=worker.slot if step is WorkerStep.START else None,
            reason=worker.stop_reason if step is WorkerStep.DRAIN else None,
        )

    def start(self) -> None:
        """Start the first worker of each slot; it accepts work."""
        for decided in self.decide():
            assert decided.step is WorkerStep.START
            self.worker(decided.serial).status = WorkerStatus.SERVING

    def end(self, serial: int, code: int = 1) -> list[Decided]:
        self.worker(serial).exit_code = code
        return self.decide()

    def drain(self, serial: int) -> list[Decided]:
        self.worker(serial).status = WorkerStatus.DRAINING
        return self.decide()

    def serve(self, serial: int) -> list[Decided]:
        self.worker(serial).status = WorkerStatus.SERVING
        return self.decide()

    def measure(self, serial: int, memory_bytes: int) -> list[Decided]:
        self.worker(serial).memory_bytes = memory_bytes
        return self.decide()

    def stop(self) -> list[Decided]:
        self.supervision.stop()
        return self.decide()

    def recycle(self) -> list[Decided]:
        self.supervision.recycle()
        return self.decide()


def started_harness(**policy: Any) -> SupervisionHarness:
    harness = SupervisionHarness(**policy)
    harness.start()
    return harness


def die_shortly(harness: SupervisionHarness, serial: int, times: int) -> int:
    """Let workers of one slot die immediately. Returns the serial of the last one started."""
    for _ in range(times):
        harness.end(serial)
        (again,) = harness.advance(DELAY)
        assert again.step is WorkerStep.START
        serial = again.serial
    return serial
