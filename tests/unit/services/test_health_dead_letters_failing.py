"""Alerts report dead letters despite failing calls, and never report what is not known."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.alerts import BacklogKind, channel_state_key
from longshore.errors import AlertFailed, BackendUnavailable
from longshore.services.health import channel_states_from_json
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.alert_recording import (
    MINUTE,
    RecordingAlerts,
    claim_with_long_lease,
    health_in,
)
from tests.unit.services.dead_letter_alerts import (
    dead_letter_change,
    fail_task,
    make_tenant_health_check,
    replay,
)
from tests.unit.services.dead_messages import exhaust_receives
from tests.unit.services.harness import (
    BACKENDS,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort

READS = ["ledger.failed_tasks", "ledger.failed_tenants", "queue.dead_letters"]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@pytest.mark.parametrize("error", [BackendUnavailable("out of reach"), RuntimeError("a fault")])
@pytest.mark.parametrize("read", READS)
@scenario
async def test_dead_letters_that_cannot_be_read_fail_no_check_of_tasks(
    kind: str,
    read: str,
    error: Exception,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    port, method = read.split(".")
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await fail_task(harness, "dead")
        await make_tenant_health_check(harness, alerts).check_all()
        alerts.notices.clear()
        await harness.submit(make_task("stuck"))
        await claim_with_long_lease(harness, "stuck")
        harness.clock.advance(11 * MINUTE)
        broken = FlakyPort(getattr(backend, port), method, error, times=None)
        check = make_tenant_health_check(harness.with_ports(**{port: broken}), alerts)

        (report,) = await check.check_all()

        assert broken.failures > 0
        assert len(report.tasks) == 1
        (notice,) = alerts.notices
        assert health_in(notice) == {"stuck": "critical"}
        # The number is not known, so no alert reports that none is left.
        assert dead_letter_change(notice) is None
        unavailable = isinstance(error, BackendUnavailable)
        (record,) = [
            record
            for record in caplog.records
            if getattr(record, "backlog", None) == "dead_letters"
        ]
        assert record.msg == f"backlog.{'unavailable' if unavailable else 'read_failed'}"
        assert (record.exc_info is None) is unavailable
        alerts.notices.clear()
        broken.recover()
        await check.check_all()
        assert alerts.notices == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_unreadable_tenant_does_not_prevent_alerts_about_others(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        for tenant in ("a", "b", "c"):
            await fail_task(harness, tenant=tenant)
        ledger = FlakyPort(backend.ledger, "failed_tasks", RuntimeError("a fault"), times=1, skip=1)

        await make_tenant_health_check(harness.with_ports(ledger=ledger), alerts).check_all()

        assert [notice.tenant for notice in alerts.notices] == ["a", "c"]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", [BackendUnavailable("out of reach"), RuntimeError("a fault")])
@pytest.mark.parametrize("method", ["leased_tasks", "get_tasks"])
@scenario
async def test_unreadable_tasks_do_not_prevent_alerts_about_dead_letters(
    kind: str, method: str, error: Exception, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await harness.submit(make_task("stuck"))
        await claim_with_long_lease(harness, "stuck")
        harness.clock.advance(11 * MINUTE)
        await make_tenant_health_check(harness, alerts).check_all()
        alerts.notices.clear()
        await fail_task(harness)
        ledger = FlakyPort(backend.ledger, method, error, times=None)
        check = make_tenant_health_check(harness.with_ports(ledger=ledger), alerts)

        for looking in (check.check_all, lambda: check.check_tenant(TENANT)):
            if method == "leased_tasks" or isinstance(error, BackendUnavailable):
                with pytest.raises(type(error)):
                    await looking()
            else:  # rows that cannot be read together are read one by one
                await looking()

        (notice,) = alerts.notices
        assert dead_letter_change(notice) == ("first", 1)
        # The tasks' health is not known, so no alert reports that they recovered.
        assert health_in(notice) == {}
        ledger.recover()
        await check.check_all()
        assert len(alerts.notices) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_crash_before_the_alert_state_is_stored_repeats_one_notice(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await fail_task(harness)
        blobs = InterposedPort(backend.blobs, "put", before=asyncio.Event().wait)
        dying = asyncio.ensure_future(
            make_tenant_health_check(harness.with_ports(blobs=blobs), alerts).check_all()
        )
        await harness.advance(timedelta(0))
        dying.cancel()
        await harness.advance(timedelta(0))
        notices = [dead_letter_change(notice) for notice in alerts.notices]

        for _ in range(3):
            await make_tenant_health_check(ServiceHarness(backend), alerts).check_all()

        assert dying.cancelled()
        assert notices == [("first", 1)]
        assert [dead_letter_change(notice) for notice in alerts.notices] == [("first", 1)] * 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_next_process_does_not_repeat_alerts(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        dead = await fail_task(harness)
        await make_tenant_health_check(harness, alerts).check_all()
        notices = channel_states_from_json(await backend.blobs.get(channel_state_key(TENANT)))

        await make_tenant_health_check(ServiceHarness(backend), alerts).check_all()
        await replay(harness, dead)
        await make_tenant_health_check(ServiceHarness(backend), alerts).check_all()

        assert BacklogKind.DEAD_LETTERS in notices["slack"].backlogs
        assert [dead_letter_change(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("none_left", 0),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_channel_that_is_down_is_notified_later_and_others_get_no_duplicate(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        down = RecordingAlerts("webhook", AlertFailed("webhook", "it answered 500"))
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, down, alerts)
        await fail_task(harness, "a")
        for _ in range(3):
            await check.check_all()
        await fail_task(harness, "b")
        await check.check_all()
        down.error = None
        await check.check_all()
        await check.check_all()

        assert [dead_letter_change(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("more", 2),
        ]
        assert [dead_letter_change(notice) for notice in down.notices] == [("first", 2)]
        assert down.sends == 5


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_whose_task_cannot_be_read_is_reported(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await harness.submit(make_task())
        await exhaust_receives(harness)
        fault = ValueError("not a row")
        damaged: Any = FlakyPort(
            FlakyPort(backend.ledger, "get_tasks", fault, None), "get_task", fault, None
        )

        await make_tenant_health_check(harness.with_ports(ledger=damaged), alerts).check_all()

        (notice,) = alerts.notices
        assert dead_letter_change(notice) == ("first", 1)
        *_, record = [item for item in caplog.records if item.levelno == logging.ERROR]
        assert (record.msg, record.task_id) == ("row.read_failed", task_id("a"))
