"""Supervision: restarts, giving up and ending, on both sides of each boundary."""

from datetime import time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.supervision import (
    SupervisionPolicy,
    WorkerStep,
    WorkerStopReason,
)
from tests.unit.core.supervision_harness import (
    DELAY,
    LIMIT,
    SECOND,
    SHORT,
    TICK,
    Decided,
    SupervisionHarness,
    die_shortly,
    drain,
    kill,
    start,
    started_harness,
    stop_now,
)


def test_each_place_gets_a_worker_at_once_and_only_one() -> None:
    harness = SupervisionHarness(processes=3)

    assert harness.decide() == [start(slot=n, serial=n) for n in (1, 2, 3)]
    assert harness.advance(timedelta(hours=1)) == []
    assert not harness.supervision.finished


@pytest.mark.parametrize("code", [0, 1, -9])
def test_a_worker_that_ended_by_itself_is_followed_after_the_delay(code: int) -> None:
    harness = started_harness(processes=2)
    harness.advance(timedelta(hours=1))

    assert harness.end(2, code) == []
    assert harness.advance(DELAY - TICK) == []
    assert harness.advance(TICK) == [start(slot=2, serial=3)]


def test_restarts_that_live_shortly_are_given_up_at_the_limit() -> None:
    harness = started_harness(processes=2)
    last = die_shortly(harness, 1, LIMIT)

    decisions = harness.end(last, 5)

    failure = harness.supervision.failure
    assert failure is harness.worker(last)
    assert (failure.slot, failure.short_runs) == (1, LIMIT)
    assert (failure.exit_code, failure.stop_reason) == (5, None)
    assert decisions == [drain(serial=2, reason=WorkerStopReason.STOP)]
    assert not harness.supervision.finished
    assert harness.end(2, 0) == []
    assert harness.supervision.finished


def test_two_that_are_given_up_at_once_do_not_hurry_the_others() -> None:
    harness = started_harness(processes=3, restart_limit=1)
    harness.end(1)
    harness.end(2)
    first, second = harness.advance(DELAY)

    harness.worker(first.serial).exit_code = 5
    harness.worker(second.serial).exit_code = 6

    assert harness.decide() == [drain(serial=3, reason=WorkerStopReason.STOP)]
    assert harness.supervision.failure is not None
    assert harness.supervision.failure.exit_code == 5


def test_one_less_than_the_limit_is_not_given_up() -> None:
    harness = started_harness()

    die_shortly(harness, 1, LIMIT)

    assert harness.supervision.failure is None


def test_a_life_just_long_enough_is_no_short_one() -> None:
    harness = started_harness()
    serial = die_shortly(harness, 1, LIMIT)

    harness.advance(SHORT)
    harness.end(serial)

    assert harness.supervision.failure is None
    (again,) = harness.advance(DELAY)
    die_shortly(harness, again.serial, LIMIT - 1)
    assert harness.supervision.failure is None


def test_a_life_just_too_short_is_a_short_one() -> None:
    harness = started_harness()
    serial = die_shortly(harness, 1, LIMIT)

    harness.advance(SHORT - TICK)
    harness.end(serial)

    assert harness.supervision.failure is not None


def test_short_runs_are_counted_for_each_slot() -> None:
    harness = started_harness(processes=2)

    die_shortly(harness, 1, LIMIT)
    second = die_shortly(harness, 2, LIMIT)

    assert harness.supervision.failure is None
    harness.end(second)
    assert harness.supervision.failure is not None
    assert harness.supervision.failure.slot == 2


def test_a_worker_that_ends_well_in_a_burst_is_not_followed() -> None:
    harness = started_harness(processes=2, until_done=True)

    harness.end(1, 0)
    harness.end(2, 1)
    (again,) = harness.advance(DELAY)
    assert again == start(slot=2, serial=3)
    assert not harness.supervision.finished
    harness.end(3, 0)

    assert harness.supervision.finished


def test_a_worker_that_does_not_drain_in_time_is_killed_once() -> None:
    harness = started_harness(kill_after=45 * SECOND)
    harness.recycle()

    assert harness.advance(45 * SECOND - TICK) == []
    assert harness.advance(TICK) == [kill(serial=1)]
    assert harness.advance(SECOND) == []
    assert harness.end(1, -9) == [start(slot=1, serial=2)]


def test_to_stop_is_to_drain_all_and_to_start_none() -> None:
    harness = started_harness(processes=3)
    harness.end(3)

    assert harness.stop() == [drain(serial=n, reason=WorkerStopReason.STOP) for n in (1, 2)]
    assert harness.advance(DELAY) == []
    assert harness.end(1, 0) == []
    assert not harness.supervision.finished
    assert harness.end(2, 0) == []
    assert harness.supervision.finished


def test_one_that_drains_already_is_not_asked_a_second_time_by_a_stop() -> None:
    harness = started_harness(processes=2)
    harness.recycle()
    harness.drain(1)

    assert harness.stop() == [drain(serial=n, reason=WorkerStopReason.STOP) for n in (2, 3)]


def test_a_worker_that_stops_is_followed_by_none_also_when_it_says_so() -> None:
    harness = started_harness()
    harness.stop()

    assert harness.drain(1) == []
    assert harness.recycle() == []


def test_to_stop_twice_ends_all_at_once_and_kills_what_is_left_soon_after() -> None:
    harness = started_harness(processes=2, urgent_kill_after=5 * SECOND)
    harness.stop()

    assert harness.stop() == [stop_now(serial=1), stop_now(serial=2)]
    harness.end(1, 143)
    assert harness.advance(5 * SECOND - TICK) == []
    assert harness.advance(TICK) == [kill(serial=2)]


def test_two_stops_in_one_moment_ask_a_worker_twice_one_after_the_other() -> None:
    harness = started_harness()
    harness.supervision.stop()

    assert harness.stop() == [drain(serial=1, reason=WorkerStopReason.STOP)]
    assert harness.decide() == [stop_now(serial=1)]
    assert harness.decide() == []


def test_a_second_stop_gives_no_worker_more_time() -> None:
    harness = started_harness(kill_after=45 * SECOND, urgent_kill_after=5 * SECOND)
    harness.stop()
    harness.advance(44 * SECOND)

    harness.stop()

    assert harness.advance(SECOND - TICK) == []
    assert harness.advance(TICK) == [kill(serial=1)]


def test_to_stop_three_times_kills() -> None:
    harness = started_harness()
    harness.stop()
    harness.stop()

    assert harness.stop() == [kill(serial=1)]
    assert harness.stop() == []


def test_nothing_is_left_when_it_is_stopped_before_it_began() -> None:
    harness = SupervisionHarness(processes=3)

    assert harness.stop() == []
    assert harness.supervision.finished


@pytest.mark.parametrize("name", ["processes", "restart_limit"])
def test_a_policy_refuses_none(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        SupervisionPolicy(**{name: 0})


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=60))
def test_each_slot_has_at_most_one_worker_that_accepts_work(
    processes: int, steps: list[tuple[int, int]]
) -> None:
    harness = SupervisionHarness(processes=processes, restart_limit=3, recycle_at=time(3, 30))
    alive: dict[int, int] = {}  # serial -> place
    requested: set[int] = set()

    def see(decisions: list[Decided]) -> None:
        for decided in decisions:
            match decided:
                case Decided(step=WorkerStep.START, serial=serial, slot=slot):
                    alive[serial] = slot
                case Decided(step=WorkerStep.DRAIN, serial=serial):
                    assert serial not in requested
                    requested.add(serial)
        at_work = [slot for serial, slot in alive.items() if serial not in requested]
        assert len(at_work) == len(set(at_work))
        assert len(alive) <= processes + 1

    see(harness.decide())
    for kind, which in steps:
        serial = sorted(alive)[which % len(alive)] if alive else 0
        match kind:
            case 0 if alive:
                del alive[serial]
                see(harness.end(serial))
            case 1 if alive:
                see(harness.serve(serial))
            case 2 if alive:
                see(harness.drain(serial))
            case 3:
                see(harness.recycle())
            case 4 if which == 0:
                see(harness.stop())
            case _:
                see(harness.advance(which * 3 * SECOND))
