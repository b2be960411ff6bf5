"""Each problem is reported once, on every channel, despite failing calls."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.alerts import (
    BacklogKind,
    ChannelState,
    HealthNotice,
    ReportedBacklog,
    ReportedProblem,
    channel_state_key,
)
from longshore.core.health import Health
from longshore.errors import AlertFailed, BackendUnavailable, UsageError
from longshore.services.health import channel_states_from_json, channel_states_to_json
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.alert_recording import (
    MINUTE,
    RecordingAlerts,
    claim_with_long_lease,
    health_by_key,
    make_health_check,
    renew_lease,
)
from tests.unit.services.harness import (
    BACKENDS,
    REQUEST,
    SECOND,
    TENANT,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import record_calls

SECRET = "xoxb-very-secret-indeed"


async def stuck(harness: ServiceHarness, *keys: str) -> None:
    """Tasks without an event for eleven minutes."""
    await harness.submit(*(make_task(key) for key in keys))
    for key in keys:
        await claim_with_long_lease(harness, key)
    harness.clock.advance(11 * MINUTE)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_problem_is_reported_once_and_so_is_its_end(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_health_check(harness, alerts)
        await stuck(harness, "a", "b")

        for _ in range(3):
            await check.check_tenant(TENANT)
            harness.clock.advance(5 * MINUTE)
        await renew_lease(harness, "a")
        await harness.end_lease("b")
        for _ in range(2):
            await check.check_tenant(TENANT)

        assert alerts.health_notices == [
            {"a": "critical", "b": "critical"},
            {"a": "recovered", "b": "recovered"},
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_problem_is_reported_again_after_the_cool_down(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_health_check(harness, alerts, cool_down=20 * MINUTE)
        await stuck(harness, "a")

        for _ in range(9):
            await check.check_tenant(TENANT)
            harness.clock.advance(5 * MINUTE)

        assert alerts.health_notices == [{"a": "critical"}] * 3


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_next_process_does_not_repeat_alerts(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await stuck(harness, "a")
        await make_health_check(harness, alerts).check_all()

        await make_health_check(ServiceHarness(backend), alerts).check_all()
        notices = channel_states_from_json(await backend.blobs.get(channel_state_key(TENANT)))
        await harness.end_lease("a")
        # Nothing of the tenant runs any more, and it is looked at all the same.
        await make_health_check(ServiceHarness(backend), alerts).check_all()

        assert set(notices["slack"].problems) == {task_id("a")}
        assert alerts.health_notices == [{"a": "critical"}, {"a": "recovered"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_nothing_is_kept_of_problems_that_are_long_over(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_health_check(harness, alerts)
        await stuck(harness, "a")
        await check.check_all()
        await harness.end_lease("a")
        await check.check_all()
        harness.clock.advance(timedelta(hours=2))

        await check.check_all()

        assert await backend.blobs.list_keys("health/") == []
        assert await check.check_all() == []


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", [AlertFailed("slack", "it answered 500"), OSError(SECRET)])
@scenario
async def test_a_failing_alert_fails_no_check_and_is_made_up_for_by_the_next(
    kind: str, error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts(error=error)
        check = make_health_check(harness, alerts)
        await stuck(harness, "a")

        report = await check.check_tenant(TENANT)
        alerts.error = None
        await check.check_tenant(TENANT)
        await check.check_tenant(TENANT)

        assert health_by_key(report) == {"a": "critical"}
        assert alerts.health_notices == [{"a": "critical"}]
        assert alerts.sends == 2
        assert [item.msg for item in caplog.records if item.levelno == logging.WARNING] == [
            "alert.failed" if isinstance(error, AlertFailed) else "alert.channel_failed"
        ]
        assert SECRET not in caplog.text
        assert SECRET not in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_channel_that_is_down_makes_no_other_repeat_itself(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        down = RecordingAlerts("webhook", AlertFailed("webhook", "it answered 500"))
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_health_check(harness, down, alerts)
        await stuck(harness, "a")

        for _ in range(3):
            await check.check_tenant(TENANT)
        down.error = None
        await check.check_tenant(TENANT)

        assert alerts.health_notices == [{"a": "critical"}]
        assert down.health_notices == [{"a": "critical"}]
        assert down.sends == 4


class HangingAlerts(RecordingAlerts):
    """Takes a notice and does not come back."""

    async def send(self, notice: HealthNotice) -> None:
        self.sends += 1
        await asyncio.Event().wait()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_channel_that_hangs_delays_the_check_by_a_limited_time_only(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, hanging, alerts = (
            ServiceHarness(backend),
            HangingAlerts("webhook"),
            RecordingAlerts(),
        )
        check = make_health_check(harness, hanging, alerts)
        await stuck(harness, "a")
        before = harness.clock.elapsed()

        checking = asyncio.ensure_future(check.check_tenant(TENANT))
        await harness.advance(20 * SECOND - timedelta(milliseconds=1))
        early = checking.done()
        await harness.advance(timedelta(milliseconds=1))

        assert not early
        assert checking.done()
        assert harness.clock.elapsed() - before == 20 * SECOND
        assert alerts.health_notices == [{"a": "critical"}]
        notices = channel_states_from_json(await backend.blobs.get(channel_state_key(TENANT)))
        assert set(notices) == {"slack"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_check_that_is_stopped_has_kept_what_was_delivered(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_health_check(harness, HangingAlerts("webhook"), alerts)
        await stuck(harness, "a")

        checking = asyncio.ensure_future(check.check_tenant(TENANT))
        await harness.advance(SECOND)
        checking.cancel()
        await harness.advance(SECOND)
        await make_health_check(ServiceHarness(backend), alerts).check_tenant(TENANT)

        assert checking.cancelled()
        assert alerts.health_notices == [{"a": "critical"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_channel_that_asks_to_be_left_alone_is(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        busy = AlertFailed("slack", "it answered ratelimited (429)", 7 * MINUTE)
        harness, alerts = ServiceHarness(backend), RecordingAlerts(error=busy)
        check = make_health_check(harness, alerts)
        await stuck(harness, "a")
        await check.check_tenant(TENANT)
        alerts.error = None

        harness.clock.advance(7 * MINUTE - SECOND)
        await check.check_tenant(TENANT)
        early = list(alerts.notices)
        harness.clock.advance(SECOND)
        await check.check_tenant(TENANT)

        assert early == []
        assert alerts.health_notices == [{"a": "critical"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_without_a_channel_one_line_is_logged_and_nothing_is_stored(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        watched, calls = record_calls(backend)
        harness = ServiceHarness(watched)
        check = make_health_check(harness)
        await check.check_all()
        silent = [record.msg for record in caplog.records]
        await stuck(harness, "a")
        del calls[:]

        for _ in range(3):
            await check.check_all()

        assert silent == []
        assert [record.msg for record in caplog.records] == ["alert.skipped"]
        assert not [call for call in calls if call.startswith("blobs.")]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["get", "put"])
@scenario
async def test_an_unavailable_store_causes_no_duplicate_alert(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        blobs = FlakyPort(backend.blobs, method, times=0)
        harness, alerts = ServiceHarness(backend).with_ports(blobs=blobs), RecordingAlerts()
        check = make_health_check(harness, alerts)
        await stuck(harness, "a")
        if method == "put":
            blobs.fail_always()
        await check.check_tenant(TENANT)
        blobs.fail_always()

        for _ in range(3):
            harness.clock.advance(5 * MINUTE)
            await check.check_tenant(TENANT)
        blobs.recover()
        await check.check_tenant(TENANT)

        assert blobs.failures > 0
        assert alerts.health_notices == [{"a": "critical"}]
        assert set(
            channel_states_from_json(await backend.blobs.get(channel_state_key(TENANT)))
        ) == {"slack"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_tenant_whose_name_is_no_place_for_a_blob_is_remembered_all_the_same(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await harness.producer.submit("..", REQUEST, {"tasks": [make_task()]})
        await claim_with_long_lease(harness, "a", "..")
        harness.clock.advance(11 * MINUTE)
        check = make_health_check(harness, alerts)

        for _ in range(3):
            await check.check_all()

        assert alerts.health_notices == [{"a": "critical"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_damaged_alert_state_is_replaced_and_problems_are_reported_again(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await stuck(harness, "a")
        await backend.blobs.put(channel_state_key(TENANT), b"{damaged")
        check = make_health_check(harness, alerts)

        await check.check_all()
        await check.check_all()

        assert alerts.health_notices == [{"a": "critical"}]
        assert set(
            channel_states_from_json(await backend.blobs.get(channel_state_key(TENANT)))
        ) == {"slack"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_a_lagging_list_leaves_out_has_not_recovered(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await stuck(harness, "a")
        await make_health_check(harness, alerts).check_all()

        class Lagging:
            def __getattr__(self, name: str) -> Any:
                return getattr(backend.ledger, name)

            async def leased_tasks(self, **_: Any) -> list[Any]:
                return []

        lagging = make_health_check(harness.with_ports(ledger=Lagging()), alerts)
        (report,) = await lagging.check_all()

        assert health_by_key(report) == {"a": "critical"}
        assert alerts.health_notices == [{"a": "critical"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_if_alerted_tenants_cannot_be_read_the_others_are_checked(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        blobs = FlakyPort(backend.blobs, "list_keys", ValueError("a fault"), times=None)
        harness, alerts = ServiceHarness(backend).with_ports(blobs=blobs), RecordingAlerts()
        await stuck(harness, "a")

        await make_health_check(harness, alerts).check_all()

        assert alerts.health_notices == [{"a": "critical"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_store_without_an_answer_at_all_fails_the_check_and_not_the_next(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await stuck(harness, "a")
        ledger = FlakyPort(backend.ledger, "leased_tasks", times=1)
        check = make_health_check(harness.with_ports(ledger=ledger), alerts)

        with pytest.raises(BackendUnavailable):
            await check.check_all()
        await check.check_all()

        assert alerts.health_notices == [{"a": "critical"}]


moments = st.datetimes(
    min_value=datetime(2000, 1, 1),  # noqa: DTZ001 - hypothesis adds the time zone
    max_value=datetime(2100, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)
numbers = st.integers(0, 2**53)
problems = st.builds(
    ReportedProblem,
    attempt=numbers,
    health=st.sampled_from(Health),
    at=moments,
    resolved=st.booleans(),
)
backlogs = st.builds(
    ReportedBacklog,
    minimum_count=numbers,
    newest_key=st.tuples(numbers, st.text()),
    at=moments,
)
channel_states = st.builds(
    ChannelState,
    st.dictionaries(st.text(), problems),
    st.dictionaries(st.sampled_from(BacklogKind), backlogs),
)


@given(st.dictionaries(st.text(), channel_states))
def test_stored_channel_states_are_read_back_unchanged(channels: dict[str, ChannelState]) -> None:
    assert channel_states_from_json(channel_states_to_json(channels)) == channels


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe\xff",
        b"[" * 100_000,
        b"[]",
        b'{"channels":{}}',
        b'{"format":2,"channels":{}}',
        b'{"format":1}',
        b'{"format":1,"channels":{"slack":[]}}',
        b'{"format":1,"channels":{"slack":{"problems":{"a":1}}}}',
        b'{"format":1,"channels":{"slack":{"problems":{"a":{"attempt":1,"health":"fine"}}}}}',
        b'{"format":1,"channels":{"slack":{"backlogs":{"dead_letters":{}}}}}',
        b'{"format":1,"channels":{"slack":{"backlogs":{"parked_tasks":{"minimum_count":"3"}}}}}',
    ],
)
def test_a_damaged_channel_state_is_refused_as_a_whole(data: bytes) -> None:
    with pytest.raises(UsageError, match="alert state"):
        channel_states_from_json(data)
