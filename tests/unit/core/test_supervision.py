"""Supervision: restarts, giving up and ending, on both sides of each boundary."""

from datetime import time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.supervision import (
    DrainWorker,
    KillWorker,
    StartWorker,
    StopWorkerNow,
    SupervisionAction,
    SupervisionFailure,
    SupervisionPolicy,
    WorkerStopReason,
)
from tests.unit.core.supervision_harness import (
    DELAY,
    LIMIT,
    SECOND,
    SHORT,
    TICK,
    SupervisionHarness,
    die_shortly,
    started_harness,
)


def test_each_place_gets_a_worker_at_once_and_only_one() -> None:
    play = SupervisionHarness(processes=3)

    assert play.decide() == [StartWorker(slot=n, serial=n) for n in (1, 2, 3)]
    assert play.advance(timedelta(hours=1)) == []
    assert not play.supervision.finished


@pytest.mark.parametrize("code", [0, 1, -9])
def test_a_worker_that_ended_by_itself_is_followed_after_the_delay(code: int) -> None:
    play = started_harness(processes=2)
    play.advance(timedelta(hours=1))

    assert play.end(2, code) == []
    assert play.due_in == DELAY
    assert play.advance(DELAY - TICK) == []
    assert play.advance(TICK) == [StartWorker(slot=2, serial=3)]


def test_restarts_that_live_shortly_are_given_up_at_the_limit() -> None:
    play = started_harness(processes=2)
    last = die_shortly(play, 1, LIMIT)

    decisions = play.end(last, 5)

    assert play.supervision.failure == SupervisionFailure(
        slot=1, restarts=LIMIT, serial=last, code=5, out_of_memory=False
    )
    assert decisions == [DrainWorker(serial=2, reason=WorkerStopReason.STOP)]
    assert not play.supervision.finished
    assert play.end(2, 0) == []
    assert play.supervision.finished


def test_two_that_are_given_up_at_once_do_not_hurry_the_others() -> None:
    play = started_harness(processes=3, restart_limit=1)
    play.end(1)
    play.end(2)
    first, second = play.advance(DELAY)

    play.supervision.worker_ended(first.serial, 5, now=play.now)
    play.supervision.worker_ended(second.serial, 6, now=play.now)

    assert play.decide() == [DrainWorker(serial=3, reason=WorkerStopReason.STOP)]
    assert play.supervision.failure is not None
    assert play.supervision.failure.code == 5


def test_one_less_than_the_limit_is_not_given_up() -> None:
    play = started_harness()

    die_shortly(play, 1, LIMIT)

    assert play.supervision.failure is None


def test_a_life_just_long_enough_is_no_short_one() -> None:
    play = started_harness()
    serial = die_shortly(play, 1, LIMIT)

    play.advance(SHORT)
    play.end(serial)

    assert play.supervision.failure is None
    (again,) = play.advance(DELAY)
    die_shortly(play, again.serial, LIMIT - 1)
    assert play.supervision.failure is None


def test_a_life_just_too_short_is_a_short_one() -> None:
    play = started_harness()
    serial = die_shortly(play, 1, LIMIT)

    play.advance(SHORT - TICK)
    play.end(serial)

    assert play.supervision.failure is not None


def test_short_runs_are_counted_for_each_place() -> None:
    play = started_harness(processes=2)

    die_shortly(play, 1, LIMIT)
    second = die_shortly(play, 2, LIMIT)

    assert play.supervision.failure is None
    play.end(second)
    assert play.supervision.failure is not None
    assert play.supervision.failure.slot == 2


def test_a_worker_that_ends_well_in_a_burst_is_not_followed() -> None:
    play = started_harness(processes=2, until_done=True)

    play.end(1, 0)
    play.end(2, 1)
    (again,) = play.advance(DELAY)
    assert again == StartWorker(slot=2, serial=3)
    assert not play.supervision.finished
    play.end(3, 0)

    assert play.supervision.finished
    assert play.due_in is None


def test_a_worker_that_does_not_drain_in_time_is_killed_once() -> None:
    play = started_harness(kill_after=45 * SECOND)
    play.recycle()

    assert play.due_in == 45 * SECOND
    assert play.advance(45 * SECOND - TICK) == []
    assert play.advance(TICK) == [KillWorker(serial=1)]
    assert play.advance(SECOND) == []
    assert play.due_in is None
    assert play.end(1, -9) == [StartWorker(slot=1, serial=2)]


def test_to_stop_is_to_drain_all_and_to_start_none() -> None:
    play = started_harness(processes=3)
    play.end(3)

    assert play.stop() == [DrainWorker(serial=n, reason=WorkerStopReason.STOP) for n in (1, 2)]
    assert play.advance(DELAY) == []
    assert play.end(1, 0) == []
    assert not play.supervision.finished
    assert play.end(2, 0) == []
    assert play.supervision.finished
    assert play.due_in is None


def test_one_that_drains_already_is_not_asked_a_second_time_by_a_stop() -> None:
    play = started_harness(processes=2)
    play.recycle()
    play.drain(1)

    assert play.stop() == [DrainWorker(serial=n, reason=WorkerStopReason.STOP) for n in (2, 3)]


def test_a_worker_that_stops_is_followed_by_none_also_when_it_says_so() -> None:
    play = started_harness()
    play.stop()

    assert play.drain(1) == []
    assert play.recycle() == []


def test_to_stop_twice_ends_all_at_once_and_kills_what_is_left_soon_after() -> None:
    play = started_harness(processes=2, urgent_kill_after=5 * SECOND)
    play.stop()

    assert play.stop() == [StopWorkerNow(serial=1), StopWorkerNow(serial=2)]
    play.end(1, 143)
    assert play.due_in == 5 * SECOND
    assert play.advance(5 * SECOND - TICK) == []
    assert play.advance(TICK) == [KillWorker(serial=2)]


def test_a_second_stop_gives_nobody_more_time_than_the_first_did() -> None:
    play = started_harness(kill_after=45 * SECOND, urgent_kill_after=5 * SECOND)
    play.stop()
    play.advance(44 * SECOND)

    play.stop()

    assert play.due_in == SECOND


def test_to_stop_three_times_kills() -> None:
    play = started_harness()
    play.stop()
    play.stop()

    assert play.stop() == [KillWorker(serial=1)]
    assert play.stop() == []


def test_nothing_is_left_when_it_is_stopped_before_it_began() -> None:
    play = SupervisionHarness(processes=3)

    assert play.stop() == []
    assert play.supervision.finished


@pytest.mark.parametrize("name", ["processes", "restart_limit"])
def test_a_policy_refuses_none(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        SupervisionPolicy(**{name: 0})


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=60))
def test_whatever_happens_each_place_has_one_worker_that_is_to_take_work_at_most(
    processes: int, steps: list[tuple[int, int]]
) -> None:
    play = SupervisionHarness(processes=processes, restart_limit=3, recycle_at=time(3, 30))
    alive: dict[int, int] = {}  # serial -> place
    asked: set[int] = set()

    def see(decisions: list[SupervisionAction]) -> None:
        for decision in decisions:
            match decision:
                case StartWorker(slot=place, serial=serial):
                    alive[serial] = place
                case DrainWorker(serial=serial):
                    assert serial not in asked
                    asked.add(serial)
        at_work = [place for serial, place in alive.items() if serial not in asked]
        assert len(at_work) == len(set(at_work))
        assert len(alive) <= processes + 1

    see(play.decide())
    for kind, which in steps:
        serial = sorted(alive)[which % len(alive)] if alive else 0
        match kind:
            case 0 if alive:
                del alive[serial]
                see(play.end(serial))
            case 1 if alive:
                see(play.serve(serial))
            case 2 if alive:
                see(play.drain(serial))
            case 3:
                see(play.recycle())
            case 4 if which == 0:
                see(play.stop())
            case _:
                see(play.advance(which * 3 * SECOND))
