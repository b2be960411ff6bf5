"""The clocks held to their contract, and what only the fake one can do."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from longshore.adapters.system import SystemClock
from longshore.ports.clock import Clock, sleep_until_multiple
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.clock import ClockContract

SECOND = timedelta(seconds=1)
NOON = datetime(2030, 1, 7, 12, tzinfo=UTC)


class TestSystemClock(ClockContract):
    def make_clock(self) -> Clock:
        return SystemClock()


class TestFakeClockThatLeaps(ClockContract):
    def make_clock(self) -> Clock:
        return FakeClock()

    async def let_pass(self, clock: Clock, duration: timedelta) -> None:
        assert isinstance(clock, FakeClock)
        clock.advance(duration)


class TestFakeClockThatRuns(TestFakeClockThatLeaps):
    async def let_pass(self, clock: Clock, duration: timedelta) -> None:
        assert isinstance(clock, FakeClock)
        await clock.run(duration)


def _run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 10))


def test_a_sleep_lasts_until_its_duration_has_passed_however_late_the_loop_is() -> None:
    class StepClock(SystemClock):
        """A clock on which a millisecond passes between two readings."""

        readings = 0

        def elapsed(self) -> timedelta:
            self.readings += 1
            return timedelta(milliseconds=self.readings)

    async def scenario() -> None:
        clock = StepClock()
        duration = timedelta(milliseconds=10)
        start = clock.elapsed()

        await clock.sleep(duration)

        assert timedelta(milliseconds=clock.readings) - start >= duration

    _run(scenario())


def test_loops_that_poll_wake_up_together() -> None:
    async def scenario() -> None:
        clock = FakeClock(NOON)
        clock.advance(SECOND / 4)
        polls = [asyncio.create_task(sleep_until_multiple(clock, SECOND))]
        await asyncio.sleep(0)
        clock.advance(SECOND / 4)
        polls.append(asyncio.create_task(sleep_until_multiple(clock, SECOND)))
        await asyncio.sleep(0)

        assert clock.next_deadline == SECOND
        clock.advance(SECOND / 2)
        await asyncio.gather(*polls)

    _run(scenario())


def test_long_sleeps_are_interrupted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        clock = SystemClock()
        moment = timedelta(seconds=101)
        monkeypatch.setattr(SystemClock, "elapsed", lambda self: moment)
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            nonlocal moment
            pauses.append(seconds)
            moment += timedelta(seconds=seconds)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        await clock.sleep(11 * SECOND)

        assert pauses == [4, 5, 2]

    _run(scenario())


def test_a_fake_clock_does_not_move_by_itself() -> None:
    async def scenario() -> None:
        clock = FakeClock(NOON)
        sleeper = asyncio.create_task(clock.sleep(SECOND))

        await asyncio.sleep(0.01)

        assert (clock.now(), clock.elapsed()) == (NOON, timedelta(0))
        assert not sleeper.done()
        sleeper.cancel()

    _run(scenario())


def test_a_sleeper_of_a_fake_clock_sleeps_until_its_deadline_exactly() -> None:
    async def scenario() -> None:
        clock = FakeClock(NOON)
        sleeper = asyncio.create_task(clock.sleep(SECOND))
        await asyncio.sleep(0)

        clock.advance(SECOND - timedelta(microseconds=1))
        await asyncio.sleep(0)
        assert not sleeper.done()
        clock.advance(timedelta(microseconds=1))
        await sleeper

        assert clock.now() == NOON + SECOND

    _run(scenario())


def test_a_leap_wakes_sleepers_in_order_of_deadline_and_then_of_going_to_sleep() -> None:
    async def scenario() -> None:
        clock = FakeClock(NOON)
        woken: list[str] = []

        async def sleep(name: str, seconds: int) -> None:
            await clock.sleep(seconds * SECOND)
            woken.append(name)

        names = [("late", 9), ("b", 2), ("c", 2), ("a", 1)]
        sleepers = [asyncio.create_task(sleep(name, seconds)) for name, seconds in names]
        await asyncio.sleep(0)
        clock.advance(10 * SECOND)
        await asyncio.gather(*sleepers)

        assert woken == ["a", "b", "c", "late"]

    _run(scenario())


def test_a_running_clock_stops_at_each_deadline_on_its_way() -> None:
    async def scenario() -> None:
        clock = FakeClock(NOON)
        ticks: list[datetime] = []

        async def tick() -> None:
            while True:
                await clock.sleep(2 * SECOND)
                ticks.append(clock.now())

        ticking = asyncio.create_task(tick())
        await clock.run(7 * SECOND)
        ticking.cancel()

        assert ticks == [NOON + seconds * SECOND for seconds in (2, 4, 6)]
        assert clock.now() == NOON + 7 * SECOND

    _run(scenario())


def test_sleepers_that_gave_up_do_not_hold_a_running_clock() -> None:
    async def scenario() -> None:
        clock = FakeClock(NOON)
        sleeper = asyncio.create_task(clock.sleep(SECOND))
        await asyncio.sleep(0)
        sleeper.cancel()
        await asyncio.gather(sleeper, return_exceptions=True)

        assert clock.next_deadline is None
        await clock.run(2 * SECOND)

        assert clock.elapsed() == 2 * SECOND

    _run(scenario())


def test_setting_the_time_of_day_lets_nothing_elapse() -> None:
    clock = FakeClock(NOON)

    clock.set(NOON - timedelta(hours=1))
    clock.advance(SECOND)

    assert clock.now() == NOON - timedelta(hours=1) + SECOND
    assert clock.elapsed() == SECOND


def test_a_fake_clock_returns_utc_from_any_time_zone() -> None:
    clock = FakeClock(NOON.astimezone(timezone(timedelta(hours=5))))

    assert clock.now() == NOON
    assert clock.now().utcoffset() == timedelta(0)


def test_a_fake_clock_refuses_a_naive_start_and_going_back() -> None:
    with pytest.raises(ValueError, match="aware"):
        FakeClock(NOON.replace(tzinfo=None))
    with pytest.raises(ValueError, match="does not go back"):
        FakeClock(NOON).advance(-SECOND)


def test_a_watcher_of_a_fake_clock_is_called_at_each_move_until_it_is_removed() -> None:
    clock = FakeClock(NOON)
    seen: list[datetime] = []

    with clock.watched_by(lambda: seen.append(clock.now())):
        clock.advance(SECOND)
        clock.set(NOON)
    clock.advance(SECOND)

    assert seen == [NOON + SECOND, NOON]
