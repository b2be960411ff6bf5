"""Supervision: workers that are recycled for their memory, daily, or on request."""

from datetime import time, timedelta

from longshore.core.supervision import (
    WorkerStopReason,
)
from tests.unit.core.supervision_harness import (
    DELAY,
    LIMIT,
    SHORT,
    TICK,
    drain,
    start,
    started_harness,
)

CEILING = 2**30


def test_more_memory_than_the_ceiling_recycles_by_draining() -> None:
    harness = started_harness(processes=2, memory_ceiling_bytes=CEILING)
    harness.advance(SHORT)

    assert harness.measure(2, CEILING) == []
    assert harness.measure(2, CEILING + 1) == [drain(serial=2, reason=WorkerStopReason.MEMORY)]
    assert harness.measure(2, CEILING + 2) == []
    assert harness.drain(2) == [start(slot=2, serial=3)]
    assert harness.end(2, 0) == []


def test_without_a_ceiling_no_memory_is_too_much() -> None:
    harness = started_harness(memory_ceiling_bytes=0)

    assert harness.measure(1, 2**50) == []


def test_a_worker_that_is_too_large_soon_after_each_start_counts_as_a_bad_start() -> None:
    harness, serial = started_harness(memory_ceiling_bytes=CEILING), 1
    for _ in range(LIMIT):
        assert harness.measure(serial, CEILING + 1) == [
            drain(serial=serial, reason=WorkerStopReason.MEMORY)
        ]
        assert harness.drain(serial) == []
        (again,) = harness.advance(DELAY)
        harness.end(serial, 0)
        serial = again.serial
        harness.serve(serial)

    harness.measure(serial, CEILING + 1)
    harness.drain(serial)

    failure = harness.supervision.failure
    assert failure is harness.worker(serial)
    assert (failure.slot, failure.short_runs) == (1, LIMIT)
    assert (failure.exit_code, failure.stop_reason) == (None, WorkerStopReason.MEMORY)
    assert harness.decide() == []
    assert harness.end(serial, 0) == []
    assert harness.supervision.finished


def test_what_counts_is_how_soon_it_was_too_large_and_not_how_long_it_drained() -> None:
    harness = started_harness(memory_ceiling_bytes=CEILING)
    harness.advance(SHORT - TICK)
    harness.measure(1, CEILING + 1)
    harness.advance(SHORT)

    assert harness.drain(1) == []
    assert harness.advance(DELAY - TICK) == []
    assert harness.advance(TICK) == [start(slot=1, serial=2)]


def test_a_recycled_worker_is_followed_in_a_burst_too() -> None:
    harness = started_harness(until_done=True)
    harness.recycle()

    assert harness.end(1, 0) == [start(slot=1, serial=2)]


def test_all_are_recycled_one_after_the_other_each_when_the_one_before_is_through() -> None:
    harness = started_harness(processes=2)

    assert harness.recycle() == [drain(serial=1, reason=WorkerStopReason.REQUESTED)]
    assert harness.drain(1) == [start(slot=1, serial=3)]
    assert harness.drain(1) == []
    assert harness.serve(3) == []
    assert harness.end(1, 0) == [drain(serial=2, reason=WorkerStopReason.REQUESTED)]
    assert harness.end(2, 0) == [start(slot=2, serial=4)]
    assert harness.serve(4) == []


def test_the_next_is_not_recycled_before_the_new_one_takes_work() -> None:
    harness = started_harness(processes=2)
    harness.recycle()
    harness.drain(1)

    assert harness.end(1, 0) == []
    assert harness.serve(3) == [drain(serial=2, reason=WorkerStopReason.REQUESTED)]


def test_a_new_worker_that_says_nothing_is_believed_when_it_has_lived_for_long() -> None:
    harness = started_harness(processes=2)
    harness.recycle()
    harness.drain(1)
    harness.end(1, 0)

    assert harness.advance(SHORT - TICK) == []
    assert harness.advance(TICK) == [drain(serial=2, reason=WorkerStopReason.REQUESTED)]


def test_no_worker_is_recycled_while_a_slot_waits_for_its_worker() -> None:
    harness = started_harness(processes=2)
    harness.end(1)

    assert harness.recycle() == []
    assert harness.advance(DELAY) == [start(slot=1, serial=3)]
    assert harness.serve(3) == [drain(serial=2, reason=WorkerStopReason.REQUESTED)]


def test_a_recycled_worker_is_followed_at_once_however_short_it_lived() -> None:
    harness, serial = started_harness(restart_limit=1), 1
    for _ in range(3):
        assert harness.recycle() == [drain(serial=serial, reason=WorkerStopReason.REQUESTED)]
        (again,) = harness.end(serial, -9)
        serial = again.serial
        harness.serve(serial)

    assert harness.supervision.failure is None


def test_one_that_dies_before_its_turn_is_not_recycled_any_more() -> None:
    harness = started_harness(processes=2)
    harness.recycle()
    harness.end(2)
    harness.drain(1)
    harness.end(1, 0)
    harness.serve(3)

    (again,) = harness.advance(DELAY)

    assert again == start(slot=2, serial=4)
    assert harness.serve(4) == []


def test_a_worker_that_drains_for_another_reason_is_replaced_when_it_has_ended() -> None:
    harness = started_harness()

    assert harness.drain(1) == []
    assert harness.end(1, 0) == []
    assert harness.advance(DELAY) == [start(slot=1, serial=2)]


def test_a_worker_that_is_recycled_already_is_not_asked_again() -> None:
    harness = started_harness()
    harness.recycle()

    assert harness.recycle() == []
    harness.drain(1)
    harness.serve(2)
    assert harness.end(1, 0) == []


def test_at_its_time_of_day_every_worker_is_recycled() -> None:
    harness = started_harness(processes=2, recycle_at=time(3, 30))

    assert harness.advance(timedelta(hours=5, minutes=30) - TICK) == []
    assert harness.advance(TICK) == [drain(serial=1, reason=WorkerStopReason.DAILY)]
    harness.drain(1)
    harness.serve(3)
    assert harness.end(1, 0) == [drain(serial=2, reason=WorkerStopReason.DAILY)]
    harness.drain(2)
    harness.serve(4)
    assert harness.end(2, 0) == []
    assert harness.advance(timedelta(hours=23)) == []
    assert harness.advance(timedelta(hours=1)) == [drain(serial=3, reason=WorkerStopReason.DAILY)]


def test_a_time_of_day_that_is_past_when_all_begins_waits_for_tomorrow() -> None:
    harness = started_harness(recycle_at=time(21, 59))

    assert harness.decide() == []
    assert harness.advance(timedelta(hours=23, minutes=58)) == []
    assert harness.advance(timedelta(minutes=1)) == [drain(serial=1, reason=WorkerStopReason.DAILY)]


def test_a_missed_time_of_day_is_made_up_for_once() -> None:
    harness = started_harness(recycle_at=time(3, 30))

    assert harness.advance(timedelta(days=3)) == [drain(serial=1, reason=WorkerStopReason.DAILY)]
    harness.drain(1)
    harness.serve(2)
    assert harness.end(1, 0) == []


def test_an_hour_that_the_clock_on_the_wall_shows_twice_recycles_once() -> None:
    harness = started_harness(recycle_at=time(3, 30))
    harness.advance(timedelta(hours=5, minutes=31))
    harness.drain(1)
    harness.serve(2)
    harness.end(1, 0)

    harness.local -= timedelta(hours=1)

    assert harness.decide() == []
    assert harness.advance(timedelta(hours=1)) == []
