"""The contract of the ``Clock``.

It runs over real clocks and fake ones, so its durations are tiny, and a suite says how time passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from longshore.ports.clock import Clock

DURATION = timedelta(milliseconds=5)
LIMIT_S = 10
PAUSE = timedelta(seconds=1)
"""More than passes between two readings, also on a busy machine."""


class ClockContract:
    """What holds for every clock."""

    def make_clock(self) -> Clock:
        """The clock that is held to the contract."""
        raise NotImplementedError

    async def let_pass(self, clock: Clock, duration: timedelta) -> None:
        """Let time pass; for a real clock it does so by itself."""

    def test_the_moment_is_aware_and_in_utc(self) -> None:
        assert self.make_clock().now().utcoffset() == timedelta(0)

    def test_both_clocks_go_on_as_time_passes(self) -> None:
        async def scenario() -> None:
            clock = self.make_clock()
            moment, elapsed = clock.now(), clock.elapsed()

            await self._slept(clock, DURATION)

            assert clock.elapsed() - elapsed >= DURATION
            assert clock.now() > moment

        self._run(scenario())

    def test_both_clocks_run_at_one_pace(self) -> None:
        async def scenario() -> None:
            clock = self.make_clock()
            moment, elapsed = clock.now(), clock.elapsed()

            await self._slept(clock, DURATION)

            apart = (clock.now() - moment) - (clock.elapsed() - elapsed)
            assert abs(apart) < PAUSE

        self._run(scenario())

    def test_elapsed_time_never_goes_back(self) -> None:
        clock = self.make_clock()

        readings = [clock.elapsed() for _ in range(1000)]

        assert readings == sorted(readings)

    def test_a_sleep_ends_when_its_duration_has_passed_and_not_before(self) -> None:
        async def scenario() -> None:
            clock = self.make_clock()
            for microseconds in (1, 999, 1000, 2500):
                duration = timedelta(microseconds=microseconds)
                start = clock.elapsed()

                await self._slept(clock, duration)

                assert clock.elapsed() - start >= duration

        self._run(scenario())

    def test_sleeping_for_nothing_and_less_returns_at_once(self) -> None:
        async def scenario() -> None:
            clock = self.make_clock()

            await clock.sleep(timedelta(0))
            await clock.sleep(timedelta(days=-1))

        self._run(scenario())

    def test_other_tasks_run_during_a_sleep_of_zero(self) -> None:
        async def scenario() -> None:
            clock = self.make_clock()
            other = asyncio.create_task(asyncio.sleep(0))

            for _ in range(3):
                await clock.sleep(timedelta(0))

            assert other.done()

        self._run(scenario())

    def test_the_shorter_sleep_ends_first(self) -> None:
        async def scenario() -> None:
            clock = self.make_clock()
            ended: list[int] = []

            async def sleep(times: int) -> None:
                await clock.sleep(times * DURATION)
                ended.append(times)

            sleepers = [asyncio.create_task(sleep(times)) for times in (9, 1, 5)]
            await asyncio.sleep(0)
            await self.let_pass(clock, 9 * DURATION)
            await asyncio.gather(*sleepers)

            assert ended == [1, 5, 9]

        self._run(scenario())

    def test_a_sleep_can_be_given_up(self) -> None:
        async def scenario() -> None:
            clock = self.make_clock()
            sleeper = asyncio.create_task(clock.sleep(timedelta(days=1)))
            await asyncio.sleep(0)

            sleeper.cancel()
            await asyncio.gather(sleeper, return_exceptions=True)

            assert sleeper.cancelled()
            await self._slept(clock, DURATION)

        self._run(scenario())

    async def _slept(self, clock: Clock, duration: timedelta) -> None:
        sleeper = asyncio.create_task(clock.sleep(duration))
        await asyncio.sleep(0)
        await self.let_pass(clock, duration)
        await sleeper

    def _run(self, scenario: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(scenario, LIMIT_S))
