"""Faults that the clock's contract must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part
from tests.planting import After, Argument, Condition, Drop, Operator, Replace, Value

_SYSTEM = "contract/test_clock.py::TestSystemClock"
_FAKE = "contract/test_clock.py::TestFakeClockThatLeaps"

_fault = partial(Fault, part=Part.CLOCK)

CLOCK_FAULTS = (
    _fault(
        name="the moment has no time zone",
        at="adapters.system:SystemClock.now",
        do=Argument("now()", 0, None),
        caught_by=f"{_SYSTEM}::test_the_moment_is_aware_and_in_utc",
    ),
    _fault(
        name="time passes a thousand times too slowly",
        at="adapters.system:SystemClock.elapsed",
        do=Argument("timedelta()", "microseconds", "$1 // 1000000"),
        caught_by=f"{_SYSTEM}::test_both_clocks_run_at_one_pace",
    ),
    _fault(
        name="elapsed time goes back",
        at="adapters.system:SystemClock.elapsed",
        do=Replace("clock_gettime_ns()", "-$0"),
        caught_by=f"{_SYSTEM}::test_elapsed_time_never_goes_back",
    ),
    _fault(
        name="a sleep ends too early",
        at="adapters.system:SystemClock.sleep",
        do=Value("= end", "self.elapsed(), duration / 2"),
        caught_by="contract/test_clock.py::"
        "test_a_sleep_lasts_until_its_duration_has_passed_however_late_the_loop_is",
    ),
    _fault(
        name="a sleep of zero does not yield to other tasks",
        at="adapters.system:SystemClock.sleep",
        do=After("= end", "if left <= timedelta(0): return"),
        caught_by=f"{_SYSTEM}::test_other_tasks_run_during_a_sleep_of_zero",
    ),
    _fault(
        name="a sleep holds up everybody",
        at="adapters.system:SystemClock.sleep",
        do=(Replace("await _MAX_SLEEP", "$1"), Replace("asyncio", "time", nth=2)),
        caught_by=f"{_SYSTEM}::test_the_shorter_sleep_ends_first",
    ),
    _fault(
        name="a fake sleep ends one tick too late",
        at="testing.clock:FakeClock._move_to",
        do=Operator("<=", "<"),
        caught_by="contract/test_clock.py::test_a_sleeper_of_a_fake_clock_sleeps_until_its_deadline_exactly",
    ),
    _fault(
        name="who slept first is woken last",
        at="testing.clock:FakeClock.sleep",
        do=Replace("next()", "-$0"),
        caught_by="contract/test_clock.py::"
        "test_a_leap_wakes_sleepers_in_order_of_deadline_and_then_of_going_to_sleep",
    ),
    _fault(
        name="a fake sleep of zero does not yield to other tasks",
        at="testing.clock:FakeClock.sleep",
        do=Drop("sleep()"),
        caught_by=f"{_FAKE}::test_other_tasks_run_during_a_sleep_of_zero",
    ),
    _fault(
        name="a fake sleeper that gave up is woken",
        at="testing.clock:FakeClock.next_deadline",
        do=Condition("done()", False),
        caught_by="contract/test_clock.py::test_sleepers_that_gave_up_do_not_hold_a_running_clock",
    ),
    _fault(
        name="elapsed time moves while the clock does not",
        at="testing.clock:FakeClock._move_to",
        do=Drop("+= _now"),
        caught_by=f"{_FAKE}::test_both_clocks_go_on_as_time_passes",
    ),
    _fault(
        name="a running clock leaps over a deadline",
        at="testing.clock:FakeClock.run",
        do=Argument("_move_to() deadline", 0, "end"),
        caught_by="contract/test_clock.py::test_a_running_clock_stops_at_each_deadline_on_its_way",
    ),
)
