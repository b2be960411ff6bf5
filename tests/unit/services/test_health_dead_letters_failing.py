"""Of what is dead people hear whatever fails on the way, and nobody hears what is not so."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.alerts import channel_state_key
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
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort

READS = ["ledger.failed_tasks", "ledger.failed_tenants", "queue.dead_letters"]


@pytest.mark.parametrize("kind", BACKENDS)
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
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        await fail_task(stage, "dead")
        await make_tenant_health_check(stage, alerts).check_all()
        alerts.notices.clear()
        await stage.submit(make_task("stuck"))
        await claim_with_long_lease(stage, "stuck")
        stage.clock.advance(11 * MINUTE)
        broken = FlakyPort(getattr(backend, port), method, error, times=None)
        check = make_tenant_health_check(stage.with_ports(**{port: broken}), alerts)

        (report,) = await check.check_all()

        assert broken.failures > 0
        assert len(report.tasks) == 1
        (notice,) = alerts.notices
        assert health_in(notice) == {"stuck": "critical"}
        # Nobody knows, so nobody is told that none is left.
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
async def test_what_cannot_be_read_of_one_tenant_is_told_of_the_others(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        for tenant in ("a", "b", "c"):
            await fail_task(stage, tenant=tenant)
        ledger = FlakyPort(backend.ledger, "failed_tasks", RuntimeError("a fault"), times=1, skip=1)

        await make_tenant_health_check(stage.with_ports(ledger=ledger), alerts).check_all()

        assert [notice.tenant for notice in alerts.notices] == ["a", "c"]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", [BackendUnavailable("out of reach"), RuntimeError("a fault")])
@pytest.mark.parametrize("method", ["leased_tasks", "get_tasks"])
@scenario
async def test_tasks_that_cannot_be_read_keep_nobody_from_hearing_of_dead_letters(
    kind: str, method: str, error: Exception, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        await stage.submit(make_task("stuck"))
        await claim_with_long_lease(stage, "stuck")
        stage.clock.advance(11 * MINUTE)
        await make_tenant_health_check(stage, alerts).check_all()
        alerts.notices.clear()
        await fail_task(stage)
        ledger = FlakyPort(backend.ledger, method, error, times=None)
        check = make_tenant_health_check(stage.with_ports(ledger=ledger), alerts)

        for looking in (check.check_all, lambda: check.check_tenant(TENANT)):
            if method == "leased_tasks" or isinstance(error, BackendUnavailable):
                with pytest.raises(type(error)):
                    await looking()
            else:  # rows that cannot be read together are read one by one
                await looking()

        (notice,) = alerts.notices
        assert dead_letter_change(notice) == ("first", 1)
        # Nobody knows how they are, so nobody is told that they are well.
        assert health_in(notice) == {}
        ledger.recover()
        await check.check_all()
        assert len(alerts.notices) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_process_that_dies_before_it_has_kept_what_it_told_makes_one_message_come_twice(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        await fail_task(stage)
        blobs = InterposedPort(backend.blobs, "put", before=asyncio.Event().wait)
        dying = asyncio.ensure_future(
            make_tenant_health_check(stage.with_ports(blobs=blobs), alerts).check_all()
        )
        await stage.advance(timedelta(0))
        dying.cancel()
        await stage.advance(timedelta(0))
        told = [dead_letter_change(notice) for notice in alerts.notices]

        for _ in range(3):
            await make_tenant_health_check(ServiceHarness(backend), alerts).check_all()

        assert dying.cancelled()
        assert told == [("first", 1)]
        assert [dead_letter_change(notice) for notice in alerts.notices] == [("first", 1)] * 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_next_process_knows_what_was_told(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        dead = await fail_task(stage)
        await make_tenant_health_check(stage, alerts).check_all()
        told = channel_states_from_json(await backend.blobs.get(channel_state_key(TENANT)))

        await make_tenant_health_check(ServiceHarness(backend), alerts).check_all()
        await replay(stage, dead)
        await make_tenant_health_check(ServiceHarness(backend), alerts).check_all()

        assert told["slack"].dead_letters is not None
        assert [dead_letter_change(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("none_left", 0),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_channel_that_is_down_hears_it_later_and_makes_no_other_repeat_itself(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        down = RecordingAlerts("webhook", AlertFailed("webhook", "it answered 500"))
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, down, alerts)
        await fail_task(stage, "a")
        for _ in range(3):
            await check.check_all()
        await fail_task(stage, "b")
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


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_whose_task_cannot_be_read_is_told(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        await stage.submit(make_task())
        await exhaust_receives(stage)
        fault = ValueError("not a row")
        damaged: Any = FlakyPort(
            FlakyPort(backend.ledger, "get_tasks", fault, None), "get_task", fault, None
        )

        await make_tenant_health_check(stage.with_ports(ledger=damaged), alerts).check_all()

        (notice,) = alerts.notices
        assert dead_letter_change(notice) == ("first", 1)
        *_, record = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert (record.msg, record.task_id) == ("row.read_failed", task_id("a"))
