"""Alerts report dead letters: the first ones, new ones, and when none is left."""

from pathlib import Path
from typing import Any

import pytest

from longshore.core.alerts import BacklogGroup
from longshore.core.queues import message_body
from longshore.core.tasks.failures import ErrorCategory
from longshore.services import health, reads
from tests.unit.services.alert_recording import (
    MINUTE,
    RecordingAlerts,
    claim_with_long_lease,
    health_check_events,
    health_in,
)
from tests.unit.services.dead_letter_alerts import (
    dead_letter_backlog,
    dead_letter_change,
    fail_task,
    make_tenant_health_check,
    replay,
)
from tests.unit.services.dead_messages import exhaust_receives, send
from tests.unit.services.harness import (
    BACKENDS,
    REQUEST,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)

OTHER = "other"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_dead_letters_are_reported_once_and_so_is_their_end(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await check.check_all()
        dead = await fail_task(harness)

        for _ in range(3):
            await check.check_all()
            harness.clock.advance(5 * MINUTE)
        await replay(harness, dead)
        for _ in range(2):
            await check.check_all()

        assert [dead_letter_change(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("none_left", 0),
        ]
        assert await backend.blobs.list_keys("health/") == []


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_dead_letters_are_reported_by_queue_and_category_with_the_newest(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await send(harness, "poison", queue="mail")
        await exhaust_receives(harness, "mail")
        ids = [
            await fail_task(harness, "a", ErrorCategory.AUTH, queue="mail"),
            *[await fail_task(harness, key) for key in "bcdefg"],
        ]

        await make_tenant_health_check(harness, alerts).check_all()

        result = dead_letter_backlog(alerts.notices[0])
        assert (result.total, result.truncated) == (8, False)
        assert result.groups == (
            BacklogGroup(queue="default", reason="validation", count=6),
            BacklogGroup(queue="mail", reason="auth", count=1),
            BacklogGroup(queue="mail", reason="message", count=1),
        )
        # As those see it who are asked to look.
        counts = await harness.dead_letters.count(TENANT)
        assert {(item.queue, item.reason, item.count) for item in result.groups} == {
            (kind.queue, kind.category, kind.count) for kind in counts.kinds
        }
        page = await harness.dead_letters.list_page(TENANT, limit=5)
        assert [item.id for item in result.newest] == [item.id for item in page.items]
        assert [item.id for item in result.newest] == ids[:-6:-1]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_new_dead_letters_are_reported_by_the_next_check_in_one_message(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        first = await fail_task(harness, "a")
        await check.check_all()
        for key in "bcd":
            await fail_task(harness, key)
        await check.check_all()
        # One came and one went: as many as before, and not the same.
        await replay(harness, first)
        last = await fail_task(harness, "e")
        await check.check_all()
        await check.check_all()

        assert [dead_letter_change(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("more", 4),
            ("more", 4),
        ]
        assert dead_letter_backlog(alerts.notices[-1]).newest[0].id == last


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_dead_letters_are_reported_again_after_the_cool_down(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts, cool_down=20 * MINUTE)
        await fail_task(harness)

        for _ in range(9):
            await check.check_all()
            harness.clock.advance(5 * MINUTE)

        assert [dead_letter_change(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("still", 1),
            ("still", 1),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_stuck_tasks_and_dead_letters_are_one_message(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await harness.submit(make_task("stuck"))
        await claim_with_long_lease(harness, "stuck")
        harness.clock.advance(11 * MINUTE)
        await fail_task(harness)

        await make_tenant_health_check(harness, alerts).check_all()

        (notice,) = alerts.notices
        assert health_in(notice) == {"stuck": "critical"}
        assert dead_letter_change(notice) == ("first", 1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_tenant_with_nothing_but_dead_letters_gets_no_history_of_checks(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await fail_task(harness)

        reports = [await check.check_all() for _ in range(3)]

        assert reports == [[], [], []]
        assert await health_check_events(harness) == []
        (notice,) = alerts.notices
        assert notice.summary is not None
        assert notice.summary.total_processing == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_tenants_are_reported_separately(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await fail_task(harness, "a")
        theirs = [await fail_task(harness, key, tenant=OTHER) for key in "bc"]
        await harness.producer.submit("idle", REQUEST, {"tasks": [make_task("d")]})

        await check.check_all()
        first = [(notice.tenant, dead_letter_change(notice)) for notice in alerts.notices]
        alerts.notices.clear()
        await harness.dead_letters.replay(OTHER, theirs, by="ann")
        await check.check_all()

        assert first == [(TENANT, ("first", 1)), (OTHER, ("first", 2))]
        assert [(notice.tenant, dead_letter_change(notice)) for notice in alerts.notices] == [
            (OTHER, ("none_left", 0))
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_of_very_many_tenants_none_is_left_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "AT_ONCE", 2)
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        tenants = [f"tenant-{number}" for number in range(5)]
        for tenant in tenants:
            await fail_task(harness, tenant=tenant)

        await make_tenant_health_check(harness, alerts).check_all()

        assert [notice.tenant for notice in alerts.notices] == tenants


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_check_of_one_tenant_reports_no_other(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await fail_task(harness, "a")
        await fail_task(harness, "b", tenant=OTHER)

        report = await make_tenant_health_check(harness, alerts).check_tenant(TENANT)

        assert report.tasks == ()
        assert [(notice.tenant, dead_letter_change(notice)) for notice in alerts.notices] == [
            (TENANT, ("first", 1))
        ]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_without_a_task_is_reported_to_the_operator_tenant_only(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await fail_task(harness, tenant=OTHER)
        await send(harness, "poison", message_body("job-none_such"))
        await exhaust_receives(harness)

        await check.check_all()
        first = {notice.tenant: dead_letter_change(notice) for notice in alerts.notices}
        kinds = [
            dead_letter_backlog(notice).groups
            for notice in alerts.notices
            if notice.tenant == TENANT
        ]
        alerts.notices.clear()
        for letter in (await harness.dead_letters.list_page(TENANT)).items:
            await harness.dead_letters.discard(TENANT, letter, by="ann")
        await check.check_all()

        assert first == {TENANT: ("first", 2), OTHER: ("first", 1)}
        assert kinds == [(BacklogGroup(queue="default", reason="message", count=2),)]
        assert [(notice.tenant, dead_letter_change(notice)) for notice in alerts.notices] == [
            (TENANT, ("none_left", 0))
        ]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_whose_task_the_next_sweep_fails_is_reported_once_as_that_task(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await harness.submit(make_task())
        await exhaust_receives(harness)

        await check.check_all()
        before = list(alerts.notices)
        await harness.dead_letters.settle_messages()
        await check.check_all()
        await check.check_all()

        assert before == []
        (notice,) = alerts.notices
        assert [item.id for item in dead_letter_backlog(notice).newest] == [task_id("a")]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_no_more_are_counted_than_the_limit_however_many_there_are(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "COUNT_LIMIT", 3)
    async with open_backend(kind, tmp_path) as backend:
        request: list[int] = []

        class Noting:
            """A port that notes how many are asked for."""

            def __init__(self, port: Any) -> None:
                self._port = port

            def __getattr__(self, name: str) -> Any:
                return getattr(self._port, name)

            async def failed_tasks(self, tenant: str, *, limit: int) -> Any:
                request.append(limit)
                return await self._port.failed_tasks(tenant, limit=limit)

            async def dead_letters(self, queue: str | None, *, limit: int) -> Any:
                request.append(limit)
                return await self._port.dead_letters(queue, limit=limit)

        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        ports = {"ledger": Noting(backend.ledger), "queue": Noting(backend.queue)}
        check = make_tenant_health_check(harness.with_ports(**ports), alerts)
        for key in "abc":
            await fail_task(harness, key)
        await check.check_all()
        for key in "def":
            await fail_task(harness, key)
        await check.check_all()
        await check.check_all()
        last = await fail_task(harness, "g")
        await check.check_all()

        assert set(request) == {4}
        assert [dead_letter_change(notice) for notice in alerts.notices] == [
            ("first", 3),
            ("more", 4),
            ("more", 4),
        ]
        result = dead_letter_backlog(alerts.notices[-1])
        assert (result.total, result.truncated) == (3, True)
        assert sum(kind.count for kind in result.groups) == 3
        assert result.newest[0].id == last


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_without_a_channel_one_line_is_logged_about_dead_letters(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        check = make_tenant_health_check(harness)
        await fail_task(harness)

        for _ in range(3):
            await check.check_all()

        assert [record.msg for record in caplog.records] == ["alert.skipped"]
        assert await backend.blobs.list_keys("health/") == []
