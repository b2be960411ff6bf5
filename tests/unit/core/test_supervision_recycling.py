"""Supervision: workers that are replaced by draining, for their size, the hour, or a wish."""

from datetime import time, timedelta

from longshore.core.supervision import (
    DrainWorker,
    StartWorker,
    SupervisionFailure,
    WorkerStopReason,
)
from tests.unit.core.supervision_harness import DELAY, LIMIT, SHORT, TICK, started_harness

CEILING = 2**30


def test_more_memory_than_the_ceiling_recycles_by_draining() -> None:
    play = started_harness(processes=2, memory_ceiling_bytes=CEILING)
    play.advance(SHORT)

    assert play.measure(2, CEILING) == []
    assert play.measure(2, CEILING + 1) == [DrainWorker(serial=2, reason=WorkerStopReason.MEMORY)]
    assert play.measure(2, CEILING + 2) == []
    assert play.drain(2) == [StartWorker(slot=2, serial=3)]
    assert play.end(2, 0) == []


def test_without_a_ceiling_no_memory_is_too_much() -> None:
    play = started_harness(memory_ceiling_bytes=0)

    assert play.measure(1, 2**50) == []


def test_a_worker_that_is_too_large_soon_after_each_start_counts_as_a_bad_start() -> None:
    play, serial = started_harness(memory_ceiling_bytes=CEILING), 1
    for _ in range(LIMIT):
        assert play.measure(serial, CEILING + 1) == [
            DrainWorker(serial=serial, reason=WorkerStopReason.MEMORY)
        ]
        assert play.drain(serial) == []
        (again,) = play.advance(DELAY)
        play.end(serial, 0)
        serial = again.serial
        play.serve(serial)

    play.measure(serial, CEILING + 1)
    play.drain(serial)

    assert play.supervision.failure == SupervisionFailure(
        slot=1, restarts=LIMIT, serial=serial, code=None, out_of_memory=True
    )
    assert play.decide() == []
    assert play.end(serial, 0) == []
    assert play.supervision.finished


def test_what_counts_is_how_soon_it_was_too_large_and_not_how_long_it_drained() -> None:
    play = started_harness(memory_ceiling_bytes=CEILING)
    play.advance(SHORT - TICK)
    play.measure(1, CEILING + 1)
    play.advance(SHORT)

    assert play.drain(1) == []
    assert play.due_in == DELAY


def test_a_recycled_worker_is_followed_in_a_burst_too() -> None:
    play = started_harness(until_done=True)
    play.recycle()

    assert play.end(1, 0) == [StartWorker(slot=1, serial=2)]


def test_all_are_recycled_one_after_the_other_each_when_the_one_before_is_through() -> None:
    play = started_harness(processes=2)

    assert play.recycle() == [DrainWorker(serial=1, reason=WorkerStopReason.REQUESTED)]
    assert play.drain(1) == [StartWorker(slot=1, serial=3)]
    assert play.drain(1) == []
    assert play.serve(3) == []
    assert play.end(1, 0) == [DrainWorker(serial=2, reason=WorkerStopReason.REQUESTED)]
    assert play.end(2, 0) == [StartWorker(slot=2, serial=4)]
    assert play.serve(4) == []


def test_the_next_is_not_recycled_before_the_new_one_takes_work() -> None:
    play = started_harness(processes=2)
    play.recycle()
    play.drain(1)

    assert play.end(1, 0) == []
    assert play.serve(3) == [DrainWorker(serial=2, reason=WorkerStopReason.REQUESTED)]


def test_a_new_worker_that_says_nothing_is_believed_when_it_has_lived_for_long() -> None:
    play = started_harness(processes=2)
    play.recycle()
    play.drain(1)
    play.end(1, 0)

    assert play.due_in == SHORT
    assert play.advance(SHORT - TICK) == []
    assert play.advance(TICK) == [DrainWorker(serial=2, reason=WorkerStopReason.REQUESTED)]


def test_nobody_is_recycled_while_a_place_waits_for_its_worker() -> None:
    play = started_harness(processes=2)
    play.end(1)

    assert play.recycle() == []
    assert play.advance(DELAY) == [StartWorker(slot=1, serial=3)]
    assert play.serve(3) == [DrainWorker(serial=2, reason=WorkerStopReason.REQUESTED)]


def test_a_recycled_worker_is_followed_at_once_however_short_it_lived() -> None:
    play, serial = started_harness(restart_limit=1), 1
    for _ in range(3):
        assert play.recycle() == [DrainWorker(serial=serial, reason=WorkerStopReason.REQUESTED)]
        (again,) = play.end(serial, -9)
        serial = again.serial
        play.serve(serial)

    assert play.supervision.failure is None


def test_one_that_dies_before_its_turn_is_not_recycled_any_more() -> None:
    play = started_harness(processes=2)
    play.recycle()
    play.end(2)
    play.drain(1)
    play.end(1, 0)
    play.serve(3)

    (again,) = play.advance(DELAY)

    assert again == StartWorker(slot=2, serial=4)
    assert play.serve(4) == []


def test_a_worker_that_drains_at_another_wish_is_followed_when_it_has_ended() -> None:
    play = started_harness()

    assert play.drain(1) == []
    assert play.end(1, 0) == []
    assert play.advance(DELAY) == [StartWorker(slot=1, serial=2)]


def test_a_worker_that_is_recycled_already_is_not_asked_again() -> None:
    play = started_harness()
    play.recycle()

    assert play.recycle() == []
    play.drain(1)
    play.serve(2)
    assert play.end(1, 0) == []


def test_at_its_time_of_day_every_worker_is_recycled() -> None:
    play = started_harness(processes=2, recycle_at=time(3, 30))

    assert play.advance(timedelta(hours=5, minutes=30) - TICK) == []
    assert play.advance(TICK) == [DrainWorker(serial=1, reason=WorkerStopReason.DAILY)]
    play.drain(1)
    play.serve(3)
    assert play.end(1, 0) == [DrainWorker(serial=2, reason=WorkerStopReason.DAILY)]
    play.drain(2)
    play.serve(4)
    assert play.end(2, 0) == []
    assert play.advance(timedelta(hours=23)) == []
    assert play.advance(timedelta(hours=1)) == [
        DrainWorker(serial=3, reason=WorkerStopReason.DAILY)
    ]


def test_a_time_of_day_that_is_past_when_all_begins_waits_for_tomorrow() -> None:
    play = started_harness(recycle_at=time(21, 59))

    assert play.decide() == []
    assert play.advance(timedelta(hours=23, minutes=58)) == []
    assert play.advance(timedelta(minutes=1)) == [
        DrainWorker(serial=1, reason=WorkerStopReason.DAILY)
    ]


def test_a_time_of_day_that_nobody_saw_come_is_made_up_for_once() -> None:
    play = started_harness(recycle_at=time(3, 30))

    assert play.advance(timedelta(days=3)) == [DrainWorker(serial=1, reason=WorkerStopReason.DAILY)]
    play.drain(1)
    play.serve(2)
    assert play.end(1, 0) == []


def test_an_hour_that_the_clock_on_the_wall_shows_twice_recycles_once() -> None:
    play = started_harness(recycle_at=time(3, 30))
    play.advance(timedelta(hours=5, minutes=31))
    play.drain(1)
    play.serve(2)
    play.end(1, 0)

    play.local -= timedelta(hours=1)

    assert play.decide() == []
    assert play.advance(timedelta(hours=1)) == []
