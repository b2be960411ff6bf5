"""Pauses and holds of queues: when they are active, and how long a hold lasts at most."""

from datetime import UTC, datetime, timedelta

from longshore.core.queues import MAX_HOLD, QueuePause, capped_hold_end

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)


def a_hold(until: datetime | None) -> QueuePause:
    return QueuePause(name="mail", by="olga", reason=None, at=NOON, until=until)


def test_a_pause_is_active_until_it_is_resumed() -> None:
    assert a_hold(None).is_active(NOON + timedelta(days=999))


def test_a_hold_is_active_before_its_end_and_not_at_its_end() -> None:
    hold = a_hold(NOON + timedelta(minutes=1))

    assert hold.is_active(NOON + timedelta(minutes=1) - TICK)
    assert not hold.is_active(NOON + timedelta(minutes=1))


def test_a_hold_that_would_last_longer_than_the_maximum_is_not_active() -> None:
    assert a_hold(NOON + MAX_HOLD).is_active(NOON)
    assert not a_hold(NOON + MAX_HOLD + TICK).is_active(NOON)


def test_a_requested_hold_ends_at_the_maximum() -> None:
    assert capped_hold_end(NOON + timedelta(days=1), NOON) == NOON + MAX_HOLD
    assert capped_hold_end(NOON + TICK, NOON) == NOON + TICK
