"""People hear that tasks are parked: once, again when more are, and when none is any more."""

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
async def test_that_something_is_parked_is_told_once_and_so_is_that_nothing_is_any_more(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts)
        await check.check_all()
        parked = await park_task(stage)

        for _ in range(3):
            await check.check_all()
            stage.clock.advance(5 * MINUTE)
        await unpark(stage, parked)
        for _ in range(2):
            await check.check_all()

        assert [parked_change(one) for one in alerts.notices] == [("first", 1), ("none_left", 0)]
        assert await backend.blobs.list_keys("health/") == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_it_is_told_how_many_there_are_for_want_of_which_budget_and_which_came_last(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        ids = [
            await park_task(stage, "a", BudgetScope.DAY, queue="mail"),
            await park_task(stage, "b", BudgetScope.TASK),
            await park_task(stage, "c", BudgetScope.STEP),
            await park_task(stage, "d", BudgetScope.DAY),
            *[await park_task(stage, key, BudgetScope.JOB) for key in "efg"],
        ]

        await make_tenant_health_check(stage, alerts).check_all()

        found = parked_backlog(alerts.notices[0])
        assert (found.total, found.truncated) == (7, False)
        assert found.groups == (
            BacklogGroup(queue="default", reason="job", count=3),
            BacklogGroup(queue="default", reason="own", count=2),
            BacklogGroup(queue="default", reason="day", count=1),
            BacklogGroup(queue="mail", reason="day", count=1),
        )
        assert [one.id for one in found.newest] == ids[:-6:-1]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_new_ones_are_told_by_the_next_check_and_old_ones_after_the_cool_down(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts, cool_down=20 * MINUTE)
        first = await park_task(stage, "a")
        await check.check_all()
        # One came and one went: as many as before, and not the same.
        await unpark(stage, first)
        await park_task(stage, "b")
        for _ in range(6):
            await check.check_all()
            stage.clock.advance(5 * MINUTE)

        assert [parked_change(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("more", 1),
            ("still", 1),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_is_stuck_dead_and_parked_is_one_message(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        await stage.submit(make_task("stuck"))
        await claim_with_long_lease(stage, "stuck")
        stage.clock.advance(11 * MINUTE)
        await fail_task(stage, "dead")
        await park_task(stage, "parked")

        await make_tenant_health_check(stage, alerts).check_all()

        (notice,) = alerts.notices
        assert health_in(notice) == {"stuck": "critical"}
        assert (dead_letter_change(notice), parked_change(notice)) == (("first", 1), ("first", 1))


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_tenant_with_nothing_but_parked_tasks_gets_no_history_of_checks(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts)
        await park_task(stage)

        reports = [await check.check_all() for _ in range(3)]

        assert reports == [[], [], []]
        assert await health_check_events(stage) == []
        assert len(alerts.notices) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_tenants_are_told_of_apart(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts)
        await park_task(stage, "a")
        theirs = [await park_task(stage, key, tenant=OTHER) for key in "bc"]

        await check.check_all()
        first = [(notice.tenant, parked_change(notice)) for notice in alerts.notices]
        alerts.notices.clear()
        await unpark(stage, *theirs)
        await check.check_all()

        assert first == [(TENANT, ("first", 1)), (OTHER, ("first", 2))]
        assert [(notice.tenant, parked_change(notice)) for notice in alerts.notices] == [
            (OTHER, ("none_left", 0))
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_one_tenant_is_checked_and_nobody_hears_of_another(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(stage, alerts)
        parked = await park_task(stage, "a")
        await park_task(stage, "b", tenant=OTHER)

        await check.check_tenant(TENANT)
        await unpark(stage, parked)
        await check.check_tenant(TENANT)

        assert [(notice.tenant, parked_change(notice)) for notice in alerts.notices] == [
            (TENANT, ("first", 1)),
            (TENANT, ("none_left", 0)),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_many_that_go_on_by_themselves_do_not_hide_those_that_never_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "AT_ONCE", 2)
    monkeypatch.setattr(health, "COUNT_LIMIT", 3)
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        for key in "abcde":
            await park_task(stage, key, BudgetScope.DAY)
        theirs = await park_task(stage, "f", tenant=OTHER)

        await make_tenant_health_check(stage, alerts).check_all()

        told = {notice.tenant: parked_backlog(notice) for notice in alerts.notices}
        assert (told[TENANT].total, told[TENANT].truncated) == (3, True)
        assert [one.id for one in told[OTHER].newest] == [theirs]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_listing_that_lags_makes_nobody_hear_of_a_task_that_goes_on(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, alerts = ServiceHarness(backend), RecordingAlerts()
        parked = await park_task(stage)
        lagging = await backend.ledger.parked_tasks(limit=10)
        await unpark(stage, parked)

        class Lagging:
            """A ledger whose listing is from before."""

            def __getattr__(self, name: str) -> object:
                return getattr(backend.ledger, name)

            async def parked_tasks(self, **_: object) -> object:
                return lagging

        await make_tenant_health_check(stage.with_ports(ledger=Lagging()), alerts).check_all()

        assert [one.task_id for one in lagging] == [parked]
        assert alerts.notices == []
