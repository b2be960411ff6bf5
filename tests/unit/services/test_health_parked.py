"""Alerts report parked tasks: the first ones, new ones, and when none is left."""

from pathlib import Path

import pytest

from longshore.core.alerts import BacklogGroup
from longshore.core.budgets import BudgetScope
from longshore.services import health, reads
from tests.unit.services.alert_recording import (
    MINUTE,
    RecordingAlerts,
    claim_with_long_lease,
    health_check_events,
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
from tests.unit.services.parked_alerts import park_task, parked_backlog, parked_change, unpark

OTHER = "other"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_parked_tasks_are_reported_once_and_so_is_their_end(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await check.check_all()
        parked = await park_task(harness)

        for _ in range(3):
            await check.check_all()
            harness.clock.advance(5 * MINUTE)
        await unpark(harness, parked)
        for _ in range(2):
            await check.check_all()

        assert [parked_change(item) for item in alerts.notices] == [("first", 1), ("none_left", 0)]
        assert await backend.blobs.list_keys("health/") == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_parked_tasks_are_reported_by_queue_and_budget_with_the_newest(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        ids = [
            await park_task(harness, "a", BudgetScope.DAY, queue="mail"),
            await park_task(harness, "b", BudgetScope.TASK),
            await park_task(harness, "c", BudgetScope.STEP),
            await park_task(harness, "d", BudgetScope.DAY),
            *[await park_task(harness, key, BudgetScope.JOB) for key in "efg"],
        ]

        await make_tenant_health_check(harness, alerts).check_all()

        result = parked_backlog(alerts.notices[0])
        assert (result.total, result.truncated) == (7, False)
        assert result.groups == (
            BacklogGroup(queue="default", reason="job", count=3),
            BacklogGroup(queue="default", reason="own", count=2),
            BacklogGroup(queue="default", reason="day", count=1),
            BacklogGroup(queue="mail", reason="day", count=1),
        )
        assert [item.id for item in result.newest] == ids[:-6:-1]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_new_parked_tasks_are_reported_by_the_next_check_and_old_ones_after_the_cool_down(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts, cool_down=20 * MINUTE)
        first = await park_task(harness, "a")
        await check.check_all()
        # One came and one went: as many as before, and not the same.
        await unpark(harness, first)
        await park_task(harness, "b")
        for _ in range(6):
            await check.check_all()
            harness.clock.advance(5 * MINUTE)

        assert [parked_change(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("more", 1),
            ("still", 1),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_stuck_dead_and_parked_tasks_are_one_message(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await harness.submit(make_task("stuck"))
        await claim_with_long_lease(harness, "stuck")
        harness.clock.advance(11 * MINUTE)
        await fail_task(harness, "dead")
        await park_task(harness, "parked")

        await make_tenant_health_check(harness, alerts).check_all()

        (notice,) = alerts.notices
        assert health_in(notice) == {"stuck": "critical"}
        assert (dead_letter_change(notice), parked_change(notice)) == (("first", 1), ("first", 1))


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_tenant_with_nothing_but_parked_tasks_gets_no_history_of_checks(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await park_task(harness)

        reports = [await check.check_all() for _ in range(3)]

        assert reports == [[], [], []]
        assert await health_check_events(harness) == []
        assert len(alerts.notices) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_tenants_are_reported_separately(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await park_task(harness, "a")
        theirs = [await park_task(harness, key, tenant=OTHER) for key in "bc"]

        await check.check_all()
        first = [(notice.tenant, parked_change(notice)) for notice in alerts.notices]
        alerts.notices.clear()
        await unpark(harness, *theirs)
        await check.check_all()

        assert first == [(TENANT, ("first", 1)), (OTHER, ("first", 2))]
        assert [(notice.tenant, parked_change(notice)) for notice in alerts.notices] == [
            (OTHER, ("none_left", 0))
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_check_of_one_tenant_reports_no_other(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        parked = await park_task(harness, "a")
        await park_task(harness, "b", tenant=OTHER)

        await check.check_tenant(TENANT)
        await unpark(harness, parked)
        await check.check_tenant(TENANT)

        assert [(notice.tenant, parked_change(notice)) for notice in alerts.notices] == [
            (TENANT, ("first", 1)),
            (TENANT, ("none_left", 0)),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_many_tasks_that_resume_by_themselves_do_not_hide_those_that_never_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "AT_ONCE", 2)
    monkeypatch.setattr(health, "COUNT_LIMIT", 3)
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        for key in "abcde":
            await park_task(harness, key, BudgetScope.DAY)
        theirs = await park_task(harness, "f", tenant=OTHER)

        await make_tenant_health_check(harness, alerts).check_all()

        notices = {notice.tenant: parked_backlog(notice) for notice in alerts.notices}
        assert (notices[TENANT].total, notices[TENANT].truncated) == (3, True)
        assert [item.id for item in notices[OTHER].newest] == [theirs]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_stale_listing_causes_no_alert_about_a_running_task(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        parked = await park_task(harness)
        lagging = await backend.ledger.parked_tasks(limit=10)
        await unpark(harness, parked)

        class Lagging:
            """A ledger whose listing is from before."""

            def __getattr__(self, name: str) -> object:
                return getattr(backend.ledger, name)

            async def parked_tasks(self, **_: object) -> object:
                return lagging

        await make_tenant_health_check(harness.with_ports(ledger=Lagging()), alerts).check_all()

        assert lagging == [parked]
        assert alerts.notices == []
