"""Health: the two clocks of a running task, on both sides of each boundary."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.health import Health, HealthPolicy, health_of

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)
POLICY = HealthPolicy()


def health_after(*, running: timedelta, silent: timedelta) -> Health:
    return health_of(NOON - running, NOON - silent, now=NOON, policy=POLICY)


@pytest.mark.parametrize(
    ("silent", "expected"),
    [
        pytest.param(timedelta(0), Health.HEALTHY, id="just seen"),
        pytest.param(timedelta(minutes=5), Health.HEALTHY, id="at the end of healthy"),
        pytest.param(timedelta(minutes=5) + TICK, Health.WARNING, id="just past healthy"),
        pytest.param(timedelta(minutes=10), Health.WARNING, id="at the end of warning"),
        pytest.param(timedelta(minutes=10) + TICK, Health.CRITICAL, id="just past warning"),
    ],
)
def test_silence_decides_within_the_longest_run(silent: timedelta, expected: Health) -> None:
    assert health_after(running=timedelta(minutes=30), silent=silent) is expected


def test_a_run_of_exactly_the_longest_is_not_overtime() -> None:
    assert health_after(running=timedelta(hours=1), silent=timedelta(0)) is Health.HEALTHY


def test_a_run_past_the_longest_is_overtime_however_lively() -> None:
    assert health_after(running=timedelta(hours=1) + TICK, silent=timedelta(0)) is Health.OVERTIME


def test_overtime_outranks_silence() -> None:
    assert health_after(running=timedelta(hours=2), silent=timedelta(hours=2)) is Health.OVERTIME


def test_an_event_from_a_clock_ahead_of_ours_is_healthy() -> None:
    assert health_after(running=timedelta(0), silent=-timedelta(hours=3)) is Health.HEALTHY


def test_a_definition_may_have_its_own_thresholds() -> None:
    patient = HealthPolicy(longest_run=timedelta(days=1), healthy_within=timedelta(minutes=10))
    started, seen = NOON - timedelta(hours=23), NOON - timedelta(minutes=10)

    assert health_of(started, seen, now=NOON, policy=patient) is Health.HEALTHY


@given(
    st.timedeltas(min_value=timedelta(0), max_value=timedelta(hours=1)),
    st.timedeltas(max_value=timedelta(days=9), min_value=timedelta(0)),
)
def test_longer_silence_never_looks_healthier(silent: timedelta, more: timedelta) -> None:
    worst_last = [Health.HEALTHY, Health.WARNING, Health.CRITICAL]

    before = health_after(running=timedelta(0), silent=silent)
    after = health_after(running=timedelta(0), silent=silent + more)

    assert worst_last.index(before) <= worst_last.index(after)


@pytest.mark.parametrize("name", ["longest_run", "healthy_within"])
@pytest.mark.parametrize("value", [timedelta(0), -TICK])
def test_a_policy_refuses_a_duration_that_is_none(name: str, value: timedelta) -> None:
    with pytest.raises(ValueError, match=f"{name} must be longer than zero"):
        HealthPolicy(**{name: value})


def test_a_policy_refuses_a_warning_that_ends_before_it_begins() -> None:
    with pytest.raises(ValueError, match="warning_within must be no shorter than healthy_within"):
        HealthPolicy(healthy_within=timedelta(minutes=5), warning_within=timedelta(minutes=4))


def test_a_policy_may_leave_out_the_warning() -> None:
    abrupt = HealthPolicy(warning_within=HealthPolicy().healthy_within)
    seen = NOON - abrupt.healthy_within - TICK

    assert health_of(seen, seen, now=NOON, policy=abrupt) is Health.CRITICAL
