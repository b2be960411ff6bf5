"""Faults that the clock's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_SYSTEM = "contract/test_clock.py::TestSystemClock"
_FAKE = "contract/test_clock.py::TestFakeClockThatLeaps"

_in_system = partial(Fault, part=Part.CLOCK, file="adapters/system/clock.py")
_in_fake = partial(Fault, part=Part.CLOCK, file="testing/clock.py")

CLOCK_FAULTS = (
    _in_system(
        name="the moment has no time zone",
        old="return datetime.now(UTC)",
        new="return datetime.now()",
        caught_by=f"{_SYSTEM}::test_the_moment_is_aware_and_in_utc",
    ),
    _in_system(
        name="time passes a thousand times too slowly",
        old="time.clock_gettime_ns(_ELAPSED_CLOCK) // 1000)",
        new="time.clock_gettime_ns(_ELAPSED_CLOCK) // 1000_000)",
        caught_by=f"{_SYSTEM}::test_both_clocks_run_at_one_pace",
    ),
    _in_system(
        name="elapsed time goes back",
        old="timedelta(microseconds=time.clock_gettime_ns",
        new="timedelta(microseconds=-time.clock_gettime_ns",
        caught_by=f"{_SYSTEM}::test_elapsed_time_never_goes_back",
    ),
    _in_system(
        name="a sleep ends too early",
        old="end = self.elapsed() + duration\n",
        new="end = self.elapsed()\n",
        caught_by=f"{_SYSTEM}::test_a_sleep_ends_when_its_duration_has_passed_and_not_before",
    ),
    _in_system(
        name="a sleep for nothing lets nobody else go on",
        old="        await asyncio.sleep(0)\n",
        new="",
        caught_by=f"{_SYSTEM}::test_others_go_on_while_somebody_sleeps_for_nothing",
    ),
    _in_system(
        name="a sleep holds up everybody",
        old="await asyncio.sleep(min(left, _LONGEST_NAP).total_seconds())",
        new="time.sleep(min(left, _LONGEST_NAP).total_seconds())",
        caught_by=f"{_SYSTEM}::test_the_shorter_sleep_ends_first",
    ),
    _in_fake(
        name="a fake sleep ends one tick too late",
        old="and deadline <= elapsed:",
        new="and deadline < elapsed:",
        caught_by="contract/test_clock.py::test_a_sleeper_of_a_fake_clock_sleeps_until_its_deadline_exactly",
    ),
    _in_fake(
        name="who slept first is woken last",
        old="next(self._order), woken)",
        new="-next(self._order), woken)",
        caught_by="contract/test_clock.py::"
        "test_a_leap_wakes_sleepers_in_order_of_deadline_and_then_of_going_to_sleep",
    ),
    _in_fake(
        name="a fake sleep for nothing lets nobody else go on",
        old="            await asyncio.sleep(0)\n            return\n",
        new="            return\n",
        caught_by=f"{_FAKE}::test_others_go_on_while_somebody_sleeps_for_nothing",
    ),
    _in_fake(
        name="a fake sleeper that gave up is woken",
        old="while self._sleepers and self._sleepers[0][2].done():",
        new="while False:",
        caught_by="contract/test_clock.py::test_sleepers_that_gave_up_do_not_hold_a_running_clock",
    ),
    _in_fake(
        name="time elapses although the moment stands still",
        old="        self._now += elapsed - self._elapsed\n",
        new="",
        caught_by=f"{_FAKE}::test_both_clocks_go_on_as_time_passes",
    ),
    _in_fake(
        name="a running clock leaps over a deadline",
        old="            self._move_to(deadline)\n",
        new="            self._move_to(end)\n",
        caught_by="contract/test_clock.py::test_a_running_clock_stops_at_each_deadline_on_its_way",
    ),
)
