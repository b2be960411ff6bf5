"""Supervision: restarts, giving up and ending, on both sides of each boundary."""

from datetime import time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.supervision import (
    Decision,
    Drain,
    GivenUp,
    Hurry,
    Kill,
    Reason,
    Start,
    SupervisionPolicy,
)
from tests.unit.core.supervision_play import (
    DELAY,
    LIMIT,
    SECOND,
    SHORT,
    TICK,
    Play,
    begun,
    die_shortly,
)


def test_each_place_gets_a_worker_at_once_and_only_one() -> None:
    play = Play(processes=3)

    assert play.decide() == [Start(place=n, serial=n) for n in (1, 2, 3)]
    assert play.pass_time(timedelta(hours=1)) == []
    assert not play.supervision.finished


@pytest.mark.parametrize("code", [0, 1, -9])
def test_a_worker_that_ended_by_itself_is_followed_after_the_delay(code: int) -> None:
    play = begun(processes=2)
    play.pass_time(timedelta(hours=1))

    assert play.end(2, code) == []
    assert play.due_in == DELAY
    assert play.pass_time(DELAY - TICK) == []
    assert play.pass_time(TICK) == [Start(place=2, serial=3)]


def test_restarts_that_live_shortly_are_given_up_at_the_limit() -> None:
    play = begun(processes=2)
    last = die_shortly(play, 1, LIMIT)

    decisions = play.end(last, 5)

    assert play.supervision.given_up == GivenUp(
        place=1, restarts=LIMIT, serial=last, code=5, memory=False
    )
    assert decisions == [Drain(serial=2, reason=Reason.STOP)]
    assert not play.supervision.finished
    assert play.end(2, 0) == []
    assert play.supervision.finished


def test_two_that_are_given_up_at_once_do_not_hurry_the_others() -> None:
    play = begun(processes=3, restart_limit=1)
    play.end(1)
    play.end(2)
    first, second = play.pass_time(DELAY)

    play.supervision.ended(first.serial, 5, now=play.now)
    play.supervision.ended(second.serial, 6, now=play.now)

    assert play.decide() == [Drain(serial=3, reason=Reason.STOP)]
    assert play.supervision.given_up is not None
    assert play.supervision.given_up.code == 5


def test_one_less_than_the_limit_is_not_given_up() -> None:
    play = begun()

    die_shortly(play, 1, LIMIT)

    assert play.supervision.given_up is None


def test_a_life_just_long_enough_is_no_short_one() -> None:
    play = begun()
    serial = die_shortly(play, 1, LIMIT)

    play.pass_time(SHORT)
    play.end(serial)

    assert play.supervision.given_up is None
    (again,) = play.pass_time(DELAY)
    die_shortly(play, again.serial, LIMIT - 1)
    assert play.supervision.given_up is None


def test_a_life_just_too_short_is_a_short_one() -> None:
    play = begun()
    serial = die_shortly(play, 1, LIMIT)

    play.pass_time(SHORT - TICK)
    play.end(serial)

    assert play.supervision.given_up is not None


def test_short_lives_are_counted_for_each_place() -> None:
    play = begun(processes=2)

    die_shortly(play, 1, LIMIT)
    second = die_shortly(play, 2, LIMIT)

    assert play.supervision.given_up is None
    play.end(second)
    assert play.supervision.given_up is not None
    assert play.supervision.given_up.place == 2


def test_a_worker_that_ends_well_in_a_burst_is_not_followed() -> None:
    play = begun(processes=2, until_done=True)

    play.end(1, 0)
    play.end(2, 1)
    (again,) = play.pass_time(DELAY)
    assert again == Start(place=2, serial=3)
    assert not play.supervision.finished
    play.end(3, 0)

    assert play.supervision.finished
    assert play.due_in is None


def test_a_worker_that_does_not_drain_in_time_is_killed_once() -> None:
    play = begun(kill_after=45 * SECOND)
    play.recycle()

    assert play.due_in == 45 * SECOND
    assert play.pass_time(45 * SECOND - TICK) == []
    assert play.pass_time(TICK) == [Kill(serial=1)]
    assert play.pass_time(SECOND) == []
    assert play.due_in is None
    assert play.end(1, -9) == [Start(place=1, serial=2)]


def test_to_stop_is_to_drain_all_and_to_start_none() -> None:
    play = begun(processes=3)
    play.end(3)

    assert play.stop() == [Drain(serial=n, reason=Reason.STOP) for n in (1, 2)]
    assert play.pass_time(DELAY) == []
    assert play.end(1, 0) == []
    assert not play.supervision.finished
    assert play.end(2, 0) == []
    assert play.supervision.finished
    assert play.due_in is None


def test_one_that_drains_already_is_not_asked_a_second_time_by_a_stop() -> None:
    play = begun(processes=2)
    play.recycle()
    play.drain(1)

    assert play.stop() == [Drain(serial=n, reason=Reason.STOP) for n in (2, 3)]


def test_a_worker_that_stops_is_followed_by_none_also_when_it_says_so() -> None:
    play = begun()
    play.stop()

    assert play.drain(1) == []
    assert play.recycle() == []


def test_to_stop_twice_ends_all_at_once_and_kills_what_is_left_soon_after() -> None:
    play = begun(processes=2, hurry=5 * SECOND)
    play.stop()

    assert play.stop() == [Hurry(serial=1), Hurry(serial=2)]
    play.end(1, 143)
    assert play.due_in == 5 * SECOND
    assert play.pass_time(5 * SECOND - TICK) == []
    assert play.pass_time(TICK) == [Kill(serial=2)]


def test_a_second_stop_gives_nobody_more_time_than_the_first_did() -> None:
    play = begun(kill_after=45 * SECOND, hurry=5 * SECOND)
    play.stop()
    play.pass_time(44 * SECOND)

    play.stop()

    assert play.due_in == SECOND


def test_to_stop_three_times_kills() -> None:
    play = begun()
    play.stop()
    play.stop()

    assert play.stop() == [Kill(serial=1)]
    assert play.stop() == []


def test_nothing_is_left_when_it_is_stopped_before_it_began() -> None:
    play = Play(processes=3)

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
    play = Play(processes=processes, restart_limit=3, recycle_at=time(3, 30))
    alive: dict[int, int] = {}  # serial -> place
    asked: set[int] = set()

    def see(decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Start(place=place, serial=serial):
                    alive[serial] = place
                case Drain(serial=serial):
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
                see(play.pass_time(which * 3 * SECOND))
