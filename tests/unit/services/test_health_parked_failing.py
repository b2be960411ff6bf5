"""Alerts report parked tasks despite failing calls, and never report what is not known."""

import logging
from pathlib import Path
from typing import Any

import pytest

from longshore.core.alerts import BacklogKind, channel_state_key
from longshore.errors import BackendUnavailable
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
)
from tests.unit.services.harness import (
    BACKENDS,
    TENANT,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.parked_alerts import park_task, parked_change, unpark

ERRORS = [BackendUnavailable("out of reach"), RuntimeError("a fault")]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", ERRORS)
@scenario
async def test_unreadable_parked_tasks_do_not_prevent_other_alerts(
    kind: str, error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await park_task(harness, "parked")
        await make_tenant_health_check(harness, alerts).check_all()
        alerts.notices.clear()
        await harness.submit(make_task("stuck"))
        await claim_with_long_lease(harness, "stuck")
        harness.clock.advance(11 * MINUTE)
        await fail_task(harness, "dead")
        broken = FlakyPort(backend.ledger, "parked_tasks", error, times=None)
        check = make_tenant_health_check(harness.with_ports(ledger=broken), alerts)

        (report,) = await check.check_all()

        assert broken.failures == 1
        assert len(report.tasks) == 1
        (notice,) = alerts.notices
        assert health_in(notice) == {"stuck": "critical"}
        # The number is not known, so no alert reports that none is left.
        assert (dead_letter_change(notice), parked_change(notice)) == (("first", 1), None)
        unavailable = isinstance(error, BackendUnavailable)
        (record,) = [
            record
            for record in caplog.records
            if getattr(record, "backlog", None) == "parked_tasks"
        ]
        assert record.msg == f"backlog.{'unavailable' if unavailable else 'read_failed'}"
        assert (record.exc_info is None) is unavailable
        alerts.notices.clear()
        broken.recover()
        await check.check_all()
        assert alerts.notices == []


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    "read",
    ["ledger.failed_tasks", "ledger.failed_tenants", "queue.dead_letters", "ledger.leased_tasks"],
)
@scenario
async def test_parked_tasks_and_their_end_are_reported_although_other_reads_fail(
    kind: str, read: str, error: Exception, tmp_path: Path
) -> None:
    port, method = read.split(".")
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await fail_task(harness, "dead")
        broken = FlakyPort(getattr(backend, port), method, error, times=None)
        check = make_tenant_health_check(harness.with_ports(**{port: broken}), alerts)

        async def looks() -> None:
            if method == "leased_tasks":
                with pytest.raises(type(error)):
                    await check.check_all()
            else:
                await check.check_all()

        parked = await park_task(harness, "parked")
        await looks()
        await unpark(harness, parked)
        await looks()

        assert [parked_change(item) for item in alerts.notices] == [("first", 1), ("none_left", 0)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_parked_tasks_are_reported_although_alerted_tenants_cannot_be_read(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await park_task(harness)
        blobs = FlakyPort(
            backend.blobs, "list_keys", BackendUnavailable("out of reach"), times=None
        )

        with pytest.raises(BackendUnavailable):
            await make_tenant_health_check(harness.with_ports(blobs=blobs), alerts).check_all()

        assert [parked_change(notice) for notice in alerts.notices] == [("first", 1)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_parked_task_that_cannot_be_read_is_not_reported_as_resumed(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        parked = await park_task(harness)
        await make_tenant_health_check(harness, alerts).check_all()
        alerts.notices.clear()
        await park_task(harness, "b", tenant="other")
        fault = ValueError("not a row")
        damaged: Any = FlakyPort(
            FlakyPort(backend.ledger, "get_tasks", fault, None), "get_task", fault, times=1
        )

        await make_tenant_health_check(harness.with_ports(ledger=damaged), alerts).check_all()

        # The other tenant's tasks are reported all the same.
        assert [(notice.tenant, parked_change(notice)) for notice in alerts.notices] == [
            ("other", ("first", 1))
        ]
        *_, record = [item for item in caplog.records if item.levelno == logging.ERROR]
        assert (record.msg, record.task_id) == ("row.read_failed", parked)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_next_process_does_not_repeat_a_notice_of_the_previous_one(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await fail_task(harness, "dead")
        await make_tenant_health_check(harness, alerts).check_all()
        await park_task(harness, "parked")

        for _ in range(2):
            await make_tenant_health_check(ServiceHarness(backend), alerts).check_all()

        assert [(dead_letter_change(item), parked_change(item)) for item in alerts.notices] == [
            (("first", 1), None),
            (None, ("first", 1)),
        ]
        notices = channel_states_from_json(await backend.blobs.get(channel_state_key(TENANT)))[
            "slack"
        ]
        assert set(notices.backlogs) == {BacklogKind.DEAD_LETTERS, BacklogKind.PARKED_TASKS}
