"""A supervision with a clock: tests report what happens to workers and read the decisions."""

from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.core.supervision import (
    StartWorker,
    Supervision,
    SupervisionAction,
    SupervisionPolicy,
)

SECOND = timedelta(seconds=1)
TICK = timedelta(microseconds=1)
EVENING = datetime(2030, 1, 7, 22, tzinfo=UTC)
DELAY, SHORT, LIMIT = 5 * SECOND, 10 * SECOND, 10


class SupervisionHarness:
    """A supervision with a clock, whose actions are carried out immediately."""

    def __init__(self, **policy: Any) -> None:
        self.now = timedelta(0)
        self.local = EVENING
        self.supervision = Supervision(SupervisionPolicy(**policy), now=self.now, local=self.local)

    def advance(self, duration: timedelta) -> list[SupervisionAction]:
        self.now += duration
        self.local += duration
        return self.decide()

    def decide(self) -> list[SupervisionAction]:
        return self.supervision.decide(now=self.now, local=self.local)

    def start(self) -> None:
        """Start the first worker of each slot; it accepts work."""
        for decision in self.decide():
            assert isinstance(decision, StartWorker)
            self.supervision.worker_serving(decision.serial)

    def end(self, serial: int, code: int = 1) -> list[SupervisionAction]:
        self.supervision.worker_ended(serial, code, now=self.now)
        return self.decide()

    def drain(self, serial: int) -> list[SupervisionAction]:
        self.supervision.worker_draining(serial, now=self.now)
        return self.decide()

    def serve(self, serial: int) -> list[SupervisionAction]:
        self.supervision.worker_serving(serial)
        return self.decide()

    def measure(self, serial: int, memory_bytes: int) -> list[SupervisionAction]:
        self.supervision.memory_measured(serial, memory_bytes)
        return self.decide()

    def stop(self) -> list[SupervisionAction]:
        self.supervision.stop()
        return self.decide()

    def recycle(self) -> list[SupervisionAction]:
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
        assert isinstance(again, StartWorker)
        serial = again.serial
    return serial
