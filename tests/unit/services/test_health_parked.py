"""People hear that tasks are parked: once, again when more are, and when none is any more."""

from pathlib import Path

import pytest

from longshore.core.budgets import Scope
from longshore.core.piles import PileKind
from longshore.services import piles, reading
from tests.unit.services.dead_heard import a_check, dies, said
from tests.unit.services.hearing import (
    MINUTE,
    RecordingAlerts,
    checks_told,
    claim_for_long,
    heard_in,
)
from tests.unit.services.parked_heard import goes_on, parked_in, parks, said_of_parked
from tests.unit.services.stage import BACKENDS, TENANT, Stage, a_task, opened, scenario

OTHER = "other"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_that_something_is_parked_is_told_once_and_so_is_that_nothing_is_any_more(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts)
        await check.check_all()
        parked = await parks(stage)

        for _ in range(3):
            await check.check_all()
            stage.clock.advance(5 * MINUTE)
        await goes_on(stage, parked)
        for _ in range(2):
            await check.check_all()

        assert [said_of_parked(one) for one in alerts.notices] == [("first", 1), ("none_left", 0)]
        assert await backend.blobs.keys("health/") == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_it_is_told_how_many_there_are_for_want_of_which_budget_and_which_came_last(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        ids = [
            await parks(stage, "a", Scope.DAY, queue="mail"),
            await parks(stage, "b", Scope.TASK),
            await parks(stage, "c", Scope.STEP),
            await parks(stage, "d", Scope.DAY),
            *[await parks(stage, key, Scope.JOB) for key in "efg"],
        ]

        await a_check(stage, alerts).check_all()

        found = parked_in(alerts.notices[0])
        assert (found.total, found.more) == (7, False)
        assert found.kinds == (
            PileKind(queue="default", why="job", count=3),
            PileKind(queue="default", why="own", count=2),
            PileKind(queue="default", why="day", count=1),
            PileKind(queue="mail", why="day", count=1),
        )
        assert [one.id for one in found.newest] == ids[:-6:-1]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_new_ones_are_told_by_the_next_check_and_old_ones_after_the_cool_down(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts, cool_down=20 * MINUTE)
        first = await parks(stage, "a")
        await check.check_all()
        # One came and one went: as many as before, and not the same.
        await goes_on(stage, first)
        await parks(stage, "b")
        for _ in range(6):
            await check.check_all()
            stage.clock.advance(5 * MINUTE)

        assert [said_of_parked(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("more", 1),
            ("still", 1),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_is_stuck_dead_and_parked_is_one_message(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await stage.submit(a_task("stuck"))
        await claim_for_long(stage, "stuck")
        stage.clock.advance(11 * MINUTE)
        await dies(stage, "dead")
        await parks(stage, "parked")

        await a_check(stage, alerts).check_all()

        (notice,) = alerts.notices
        assert heard_in(notice) == {"stuck": "critical"}
        assert (said(notice), said_of_parked(notice)) == (("first", 1), ("first", 1))


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_tenant_with_nothing_but_parked_tasks_gets_no_history_of_checks(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts)
        await parks(stage)

        reports = [await check.check_all() for _ in range(3)]

        assert reports == [[], [], []]
        assert await checks_told(stage) == []
        assert len(alerts.notices) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_tenants_are_told_of_apart(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts)
        await parks(stage, "a")
        theirs = [await parks(stage, key, tenant=OTHER) for key in "bc"]

        await check.check_all()
        first = [(notice.tenant, said_of_parked(notice)) for notice in alerts.notices]
        alerts.notices.clear()
        await goes_on(stage, *theirs)
        await check.check_all()

        assert first == [(TENANT, ("first", 1)), (OTHER, ("first", 2))]
        assert [(notice.tenant, said_of_parked(notice)) for notice in alerts.notices] == [
            (OTHER, ("none_left", 0))
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_one_tenant_is_checked_and_nobody_hears_of_another(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts)
        parked = await parks(stage, "a")
        await parks(stage, "b", tenant=OTHER)

        await check.check(TENANT)
        await goes_on(stage, parked)
        await check.check(TENANT)

        assert [(notice.tenant, said_of_parked(notice)) for notice in alerts.notices] == [
            (TENANT, ("first", 1)),
            (TENANT, ("none_left", 0)),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_many_that_go_on_by_themselves_do_not_hide_those_that_never_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (piles, reading):
        monkeypatch.setattr(module, "_AT_ONCE", 2)
    monkeypatch.setattr(piles, "COUNTED_LIMIT", 3)
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        for key in "abcde":
            await parks(stage, key, Scope.DAY)
        theirs = await parks(stage, "f", tenant=OTHER)

        await a_check(stage, alerts).check_all()

        told = {notice.tenant: parked_in(notice) for notice in alerts.notices}
        assert (told[TENANT].total, told[TENANT].more) == (3, True)
        assert [one.id for one in told[OTHER].newest] == [theirs]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_listing_that_lags_makes_nobody_hear_of_a_task_that_goes_on(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        parked = await parks(stage)
        lagging = await backend.ledger.parked(limit=10)
        await goes_on(stage, parked)

        class Lagging:
            """A ledger whose listing is from before."""

            def __getattr__(self, name: str) -> object:
                return getattr(backend.ledger, name)

            async def parked(self, **_: object) -> object:
                return lagging

        await a_check(stage.with_ports(ledger=Lagging()), alerts).check_all()

        assert [one.task_id for one in lagging] == [parked]
        assert alerts.notices == []
