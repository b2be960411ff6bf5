"""The clock of a scenario is patient: what these tests say of time holds for threads, too."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.testing.clock import FakeClock
from tests.unit.services.harness import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    ServiceHarness,
    open_backend,
    scenario,
)
from tests.unit.services.virtual_time import advance

MANY = 200  # more turns of the loop than any fixed number that a test would wait for


@scenario
async def test_virtual_time_waits_for_a_busy_thread() -> None:
    clock = FakeClock()

    async def work() -> list[timedelta]:
        return [await asyncio.to_thread(clock.elapsed) for _ in range(MANY)]

    working = asyncio.ensure_future(work())
    await advance(clock, SECOND)

    assert working.result() == [timedelta(0)] * MANY
    assert clock.elapsed() == SECOND


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_virtual_time_waits_for_a_busy_backend(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, seen = ServiceHarness(backend), []

        async def work() -> None:
            for number in range(MANY):
                await backend.blobs.put(f"blob-{number}", b"x")
                await backend.blobs.list_keys(f"blob-{number}")
                seen.append(harness.clock.elapsed())

        working = asyncio.ensure_future(work())
        await harness.advance(SECOND)

        assert working.done()
        assert seen == [timedelta(0)] * MANY


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_each_sleeper_is_done_with_its_work_before_the_next_wakes(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, wake_ups = ServiceHarness(backend), []

        async def work(number: int) -> None:
            await harness.clock.sleep(number * SECOND)
            for part in range(5):
                await backend.blobs.put(f"blob-{number}-{part}", b"x")
            wake_ups.append((number, harness.clock.elapsed()))

        working = [asyncio.ensure_future(work(number)) for number in (3, 1, 2)]
        await harness.advance(3 * SECOND)
        await asyncio.gather(*working)

        assert wake_ups == [(number, number * SECOND) for number in (1, 2, 3)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_virtual_time_waits_for_abandoned_work_too(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        looks = [asyncio.ensure_future(backend.blobs.list_keys("blob")) for _ in range(20)]
        writes = [asyncio.ensure_future(backend.blobs.put("blob", b"x")) for _ in range(20)]
        await asyncio.sleep(0)
        for item in (*looks, *writes):
            item.cancel()

        await harness.advance(NO_WAIT)

        assert all(item.done() for item in (*looks, *writes))
        await harness.advance(SECOND)
        assert harness.clock.elapsed() == SECOND


@scenario
async def test_a_task_that_waits_for_the_clock_or_for_ever_does_not_block_virtual_time() -> None:
    clock, woken = FakeClock(), []

    async def sleep() -> None:
        await clock.sleep(SECOND)
        woken.append(clock.elapsed())

    waiting = [asyncio.ensure_future(asyncio.Event().wait()), asyncio.ensure_future(sleep())]
    await advance(clock, 2 * SECOND)

    assert woken == [SECOND]
    waiting[0].cancel()
