"""When a lease is live, when others may end it, and that no fence is handed out twice."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.tasks.lease import EPOCH_BITS, LeasePolicy, is_over, next_fence
from tests.factories import LASTS, MARGIN, NOON, SECOND, a_lease

MICROSECOND = timedelta(microseconds=1)


def test_a_lease_is_live_before_its_end_and_not_at_it() -> None:
    lease = a_lease()

    assert lease.is_live(NOON + LASTS - MICROSECOND)
    assert not lease.is_live(NOON + LASTS)


def test_others_may_end_a_lease_when_its_end_and_the_margin_have_passed() -> None:
    lease = a_lease()

    assert not is_over(lease, now=NOON + LASTS + MARGIN - MICROSECOND, margin=MARGIN)
    assert is_over(lease, now=NOON + LASTS + MARGIN, margin=MARGIN)


def test_a_lease_outlasts_the_visibility_of_its_message() -> None:
    assert LeasePolicy(extend_by=30 * SECOND).duration == 45 * SECOND


def test_a_worker_stops_trusting_its_lease_in_time_to_kill_what_runs() -> None:
    policy = LeasePolicy(extend_by=30 * SECOND, kill_grace=5 * SECOND, skew_margin=2 * SECOND)

    assert policy.trusted_for == 38 * SECOND


@pytest.mark.parametrize("renew_every", [30, 31])
def test_a_renewal_must_come_before_the_message_is_seen_again(renew_every: int) -> None:
    with pytest.raises(ValueError, match="renew_every must be shorter than extend_by"):
        LeasePolicy(renew_every=renew_every * SECOND, extend_by=30 * SECOND)


def test_a_renewal_must_come_before_the_worker_has_to_kill() -> None:
    def policy(kill_grace: timedelta) -> LeasePolicy:
        return LeasePolicy(
            renew_every=20 * SECOND,
            extend_by=30 * SECOND,
            kill_grace=kill_grace,
            skew_margin=2 * SECOND,
        )

    assert policy(23 * SECOND - MICROSECOND).trusted_for > 20 * SECOND
    with pytest.raises(ValueError, match="kill every attempt"):
        policy(23 * SECOND)


@pytest.mark.parametrize("name", ["kill_grace", "skew_margin"])
def test_a_grace_or_margin_may_be_zero_and_not_less(name: str) -> None:
    assert LeasePolicy(**{name: timedelta(0)}).trusted_for > timedelta(0)
    with pytest.raises(ValueError, match=f"{name} must not be negative"):
        LeasePolicy(**{name: -MICROSECOND})


@pytest.mark.parametrize("pause", [timedelta(0), -SECOND])
def test_a_pause_between_renewals_must_be_one(pause: timedelta) -> None:
    with pytest.raises(ValueError, match="renew_every must be longer than zero"):
        LeasePolicy(renew_every=pause)


def test_a_fence_grows_by_one_within_an_epoch() -> None:
    assert [next_fence(0, 0), next_fence(1, 0), next_fence(41, 0)] == [1, 2, 42]


def test_a_new_epoch_lifts_the_fence_above_all_that_may_have_been_forgotten() -> None:
    assert next_fence(41, 2) == (2 << EPOCH_BITS) + 1


def test_an_old_epoch_does_not_lower_the_fence() -> None:
    assert next_fence((5 << EPOCH_BITS) + 7, 2) == (5 << EPOCH_BITS) + 8


@given(st.lists(st.sampled_from(["claim", "sync", "power loss"]), max_size=60))
def test_no_fence_is_issued_twice_after_power_losses(moves: list[str]) -> None:
    epoch, stored, on_disk = 1, 0, 0
    issued: list[int] = []
    for move in moves:
        if move == "claim":
            stored = next_fence(stored, epoch)
            issued.append(stored)
        elif move == "sync":
            on_disk = stored
        else:
            stored, epoch = on_disk, epoch + 1

    assert issued == sorted(set(issued))
