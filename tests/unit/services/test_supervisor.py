"""The supervisor with workers that a test lets live and die, on a clock that it moves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from longshore.core.supervision import SupervisionPolicy, WorkerStatus
from longshore.services.worker.supervisor import (
    CHECK_INTERVAL,
    START_FAILED,
    Supervisor,
)
from longshore.testing.clock import FakeClock
from tests.unit.services.harness import SECOND, scenario

DELAY = SupervisionPolicy().restart_delay
KILL_AFTER = SupervisionPolicy().kill_after


class FakeWorker:
    """A worker that does what a test says."""

    def __init__(
        self, number: int, process_id: int, on_status: Callable[[WorkerStatus], None]
    ) -> None:
        self.number = number
        self.process_id = process_id
        self.report_status = on_status
        self.stop_requests = 0
        self.killed = False
        self.memory = 0
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def request_stop(self) -> None:
        self.stop_requests += 1

    def kill(self) -> None:
        self.killed = True

    def memory_bytes(self) -> int:
        return self.memory

    def end(self, code: int = 0) -> None:
        self.ended.set_result(code)


class Fleet:
    """A supervisor at work, and all workers that it ever started."""

    def __init__(self, clock: FakeClock, policy: SupervisionPolicy) -> None:
        self.clock = clock
        self.workers: list[FakeWorker] = []
        self.broken = False
        self.supervisor = Supervisor(policy, self._start, clock)

    def _start(self, number: int, on_status: Callable[[WorkerStatus], None]) -> FakeWorker:
        if self.broken:
            raise OSError(11, "no more processes")
        self.workers.append(FakeWorker(number, 100 + len(self.workers), on_status))
        return self.workers[-1]

    async def settle(self) -> None:
        await self.clock.run(timedelta(0))

    async def serve(self) -> None:
        await self.settle()
        for worker in self.workers:
            worker.report_status(WorkerStatus.SERVING)
        await self.settle()


@asynccontextmanager
async def at_work(**policy: Any) -> AsyncIterator[Fleet]:
    """A supervisor whose workers serve; at the end they all end."""
    clock = FakeClock(datetime(2030, 1, 7, 12, tzinfo=UTC))
    fleet = Fleet(clock, SupervisionPolicy(**policy))
    running = asyncio.ensure_future(fleet.supervisor.run())
    await fleet.serve()
    yield fleet
    fleet.supervisor.stop()
    for worker in fleet.workers:
        if worker not in ended(fleet):
            worker.end()
    await fleet.settle()
    await running


def ended(fleet: Fleet) -> list[FakeWorker]:
    return [worker for worker in fleet.workers if worker.ended.done()]


@scenario
async def test_a_worker_that_died_is_replaced_after_the_delay() -> None:
    async with at_work(processes=2) as fleet:
        fleet.workers[1].end(-9)

        await fleet.clock.run(DELAY - SECOND)
        assert len(fleet.workers) == 2
        assert fleet.supervisor.running == 1
        await fleet.clock.run(SECOND)

        assert [worker.number for worker in fleet.workers] == [1, 2, 2]
        assert fleet.supervisor.running == 2


@scenario
async def test_a_stop_asks_each_worker_once_and_waits_for_all() -> None:
    async with at_work(processes=2) as fleet:
        fleet.supervisor.stop()
        await fleet.settle()

        fleet.workers[0].end()
        await fleet.clock.run(10 * SECOND)

        assert [worker.stop_requests for worker in fleet.workers] == [1, 1]
        assert fleet.supervisor.running == 1


@scenario
async def test_a_second_stop_asks_again_and_a_third_kills() -> None:
    async with at_work() as fleet:
        (worker,) = fleet.workers
        fleet.supervisor.stop()
        await fleet.settle()
        fleet.supervisor.stop()
        await fleet.settle()
        assert (worker.stop_requests, worker.killed) == (2, False)

        fleet.supervisor.stop()
        await fleet.settle()

        assert (worker.stop_requests, worker.killed) == (2, True)


@scenario
async def test_a_worker_that_does_not_stop_is_killed() -> None:
    async with at_work() as fleet:
        fleet.supervisor.stop()
        await fleet.settle()

        await fleet.clock.run(KILL_AFTER - SECOND)
        assert not fleet.workers[0].killed
        await fleet.clock.run(SECOND)

        assert fleet.workers[0].killed


@scenario
async def test_a_recycled_worker_is_followed_when_it_takes_no_more_work() -> None:
    async with at_work(processes=2) as fleet:
        fleet.supervisor.recycle()
        await fleet.settle()
        assert [worker.stop_requests for worker in fleet.workers] == [1, 0]

        fleet.workers[0].report_status(WorkerStatus.DRAINING)
        await fleet.settle()
        assert [worker.number for worker in fleet.workers] == [1, 2, 1]

        fleet.workers[2].report_status(WorkerStatus.SERVING)
        fleet.workers[0].end()
        await fleet.settle()
        assert [worker.stop_requests for worker in fleet.workers] == [1, 1, 0]


@scenario
async def test_a_worker_that_has_grown_too_large_is_recycled_at_the_next_look() -> None:
    async with at_work(memory_ceiling_bytes=1000) as fleet:
        await fleet.clock.run(60 * SECOND)

        fleet.workers[0].memory = 1001
        await fleet.clock.run(CHECK_INTERVAL)

        assert fleet.workers[0].stop_requests == 1


@scenario
async def test_workers_are_recycled_at_the_time_of_day_that_the_machine_shows() -> None:
    at = datetime(2030, 1, 7, 12, 30, tzinfo=UTC).astimezone().time()
    async with at_work(recycle_at=time(at.hour, at.minute)) as fleet:
        await fleet.clock.run(timedelta(minutes=29, seconds=59))
        assert fleet.workers[0].stop_requests == 0

        await fleet.clock.run(SECOND)

        assert fleet.workers[0].stop_requests == 1


@scenario
async def test_workers_that_keep_ending_are_given_up_and_the_rest_is_drained() -> None:
    async with at_work(processes=2, restart_limit=2) as fleet:
        for _ in range(3):
            fleet.workers[-1].end(5)
            await fleet.clock.run(DELAY)

        assert [worker.number for worker in fleet.workers] == [1, 2, 2, 2]
        assert fleet.supervisor.failure is not None
        assert fleet.supervisor.failure.exit_code == 5
        assert fleet.workers[0].stop_requests == 1


@scenario
async def test_what_cannot_be_started_is_tried_again_and_given_up_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with at_work(restart_limit=2) as fleet:
        fleet.broken = True
        fleet.workers[0].end(1)

        await fleet.clock.run(3 * DELAY)

        assert fleet.supervisor.failure is not None
        assert fleet.supervisor.failure.exit_code == START_FAILED
        notices = [record for record in caplog.records if record.msg == "worker.start_failed"]
        assert len(notices) == 2
        assert "no more processes" in notices[0].error


@scenario
async def test_a_status_that_arrives_after_the_end_is_ignored() -> None:
    async with at_work(processes=2) as fleet:
        fleet.supervisor.recycle()
        await fleet.settle()
        fleet.workers[0].end()
        await fleet.settle()

        fleet.workers[0].report_status(WorkerStatus.DRAINING)
        await fleet.settle()

        assert [worker.number for worker in fleet.workers] == [1, 2, 1]


@scenario
async def test_a_cancelled_supervisor_kills_no_worker() -> None:
    fleet = Fleet(FakeClock(), SupervisionPolicy())
    running = asyncio.ensure_future(fleet.supervisor.run())
    await fleet.serve()

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert running.cancelled()
    assert (fleet.workers[0].stop_requests, fleet.workers[0].killed) == (0, False)
