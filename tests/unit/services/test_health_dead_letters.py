"""People hear that something is dead: once, again when more is, and when nothing is any more."""

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
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)

OTHER = "other"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_that_something_is_dead_is_told_once_and_so_is_that_nothing_is_any_more(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts)
        await check.check_all()
        dead = await fail_task(stage)

        for _ in range(3):
            await check.check_all()
            stage.clock.advance(5 * MINUTE)
        await replay(stage, dead)
        for _ in range(2):
            await check.check_all()

        assert [dead_letter_change(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("none_left", 0),
        ]
        assert await backend.blobs.list_keys("health/") == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_it_is_told_how_many_there_are_by_queue_and_category_and_which_came_last(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        await send(stage, "poison", queue="mail")
        await exhaust_receives(stage, "mail")
        ids = [
            await fail_task(stage, "a", ErrorCategory.AUTH, queue="mail"),
            *[await fail_task(stage, key) for key in "bcdefg"],
        ]

        await make_tenant_health_check(stage, alerts).check_all()

        found = dead_letter_backlog(alerts.notices[0])
        assert (found.total, found.truncated) == (8, False)
        assert found.groups == (
            BacklogGroup(queue="default", reason="validation", count=6),
            BacklogGroup(queue="mail", reason="auth", count=1),
            BacklogGroup(queue="mail", reason="message", count=1),
        )
        # As those see it who are asked to look.
        counts = await stage.dead_letters.count(TENANT)
        assert {(one.queue, one.reason): one.count for one in found.groups} == counts.by_kind
        page = await stage.dead_letters.list_page(TENANT, limit=5)
        assert [one.id for one in found.newest] == [one.id for one in page.items]
        assert [one.id for one in found.newest] == ids[:-6:-1]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_new_ones_are_told_by_the_next_check_in_one_message(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts)
        first = await fail_task(stage, "a")
        await check.check_all()
        for key in "bcd":
            await fail_task(stage, key)
        await check.check_all()
        # One came and one went: as many as before, and not the same.
        await replay(stage, first)
        last = await fail_task(stage, "e")
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
async def test_what_is_still_dead_is_told_again_after_the_cool_down(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts, cool_down=20 * MINUTE)
        await fail_task(stage)

        for _ in range(9):
            await check.check_all()
            stage.clock.advance(5 * MINUTE)

        assert [dead_letter_change(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("still", 1),
            ("still", 1),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_stuck_tasks_and_dead_letters_are_one_message(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        await stage.submit(make_task("stuck"))
        await claim_with_long_lease(stage, "stuck")
        stage.clock.advance(11 * MINUTE)
        await fail_task(stage)

        await make_tenant_health_check(stage, alerts).check_all()

        (notice,) = alerts.notices
        assert health_in(notice) == {"stuck": "critical"}
        assert dead_letter_change(notice) == ("first", 1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_tenant_with_nothing_but_dead_letters_gets_no_history_of_checks(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts)
        await fail_task(stage)

        reports = [await check.check_all() for _ in range(3)]

        assert reports == [[], [], []]
        assert await health_check_events(stage) == []
        (notice,) = alerts.notices
        assert notice.summary is not None
        assert notice.summary.total_processing == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_tenants_are_told_of_apart(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts)
        await fail_task(stage, "a")
        theirs = [await fail_task(stage, key, tenant=OTHER) for key in "bc"]
        await stage.producer.submit("idle", REQUEST, {"tasks": [make_task("d")]})

        await check.check_all()
        first = [(notice.tenant, dead_letter_change(notice)) for notice in alerts.notices]
        alerts.notices.clear()
        await stage.dead_letters.replay(OTHER, theirs, by="ann")
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
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        tenants = [f"tenant-{number}" for number in range(5)]
        for tenant in tenants:
            await fail_task(stage, tenant=tenant)

        await make_tenant_health_check(stage, alerts).check_all()

        assert [notice.tenant for notice in alerts.notices] == tenants


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_one_tenant_is_checked_and_nobody_hears_of_another(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        await fail_task(stage, "a")
        await fail_task(stage, "b", tenant=OTHER)

        report = await make_tenant_health_check(stage, alerts).check_tenant(TENANT)

        assert report.tasks == ()
        assert [(notice.tenant, dead_letter_change(notice)) for notice in alerts.notices] == [
            (TENANT, ("first", 1))
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_that_leads_to_no_task_is_told_to_who_looks_after_the_queues(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts)
        await fail_task(stage, tenant=OTHER)
        await send(stage, "poison", message_body("job-none_such"))
        await exhaust_receives(stage)

        await check.check_all()
        first = {notice.tenant: dead_letter_change(notice) for notice in alerts.notices}
        kinds = [
            dead_letter_backlog(notice).groups
            for notice in alerts.notices
            if notice.tenant == TENANT
        ]
        alerts.notices.clear()
        for letter in (await stage.dead_letters.list_page(TENANT)).items:
            await stage.dead_letters.discard(TENANT, letter.id, by="ann")
        await check.check_all()

        assert first == {TENANT: ("first", 2), OTHER: ("first", 1)}
        assert kinds == [(BacklogGroup(queue="default", reason="message", count=2),)]
        assert [(notice.tenant, dead_letter_change(notice)) for notice in alerts.notices] == [
            (TENANT, ("none_left", 0))
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_whose_task_the_next_sweep_ends_is_told_as_that_task_and_only_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts)
        await stage.submit(make_task())
        await exhaust_receives(stage)

        await check.check_all()
        before = list(alerts.notices)
        await stage.dead_letters.settle_messages()
        await check.check_all()
        await check.check_all()

        assert before == []
        (notice,) = alerts.notices
        assert [one.id for one in dead_letter_backlog(notice).newest] == [task_id("a")]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_no_more_are_counted_than_the_limit_however_many_there_are(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "COUNT_LIMIT", 3)
    async with open_backend(kind, tmp_path) as backend:
        asked: list[int] = []

        class Noting:
            """A port that notes how many are asked for."""

            def __init__(self, port: Any) -> None:
                self._port = port

            def __getattr__(self, name: str) -> Any:
                return getattr(self._port, name)

            async def failed_tasks(self, tenant: str, *, limit: int) -> Any:
                asked.append(limit)
                return await self._port.failed_tasks(tenant, limit=limit)

            async def dead_letters(self, queue: str | None, *, limit: int) -> Any:
                asked.append(limit)
                return await self._port.dead_letters(queue, limit=limit)

        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        ports = {"ledger": Noting(backend.ledger), "queue": Noting(backend.queue)}
        check = make_tenant_health_check(stage.with_ports(**ports), alerts)
        for key in "abc":
            await fail_task(stage, key)
        await check.check_all()
        for key in "def":
            await fail_task(stage, key)
        await check.check_all()
        await check.check_all()
        last = await fail_task(stage, "g")
        await check.check_all()

        assert set(asked) == {4}
        assert [dead_letter_change(notice) for notice in alerts.notices] == [
            ("first", 3),
            ("more", 4),
            ("more", 4),
        ]
        found = dead_letter_backlog(alerts.notices[-1])
        assert (found.total, found.truncated) == (3, True)
        assert sum(kind.count for kind in found.groups) == 3
        assert found.newest[0].id == last


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_without_a_channel_one_line_says_that_nobody_hears_of_them(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        check = make_tenant_health_check(stage)
        await fail_task(stage)

        for _ in range(3):
            await check.check_all()

        assert [record.msg for record in caplog.records] == ["alert.skipped"]
        assert await backend.blobs.list_keys("health/") == []
