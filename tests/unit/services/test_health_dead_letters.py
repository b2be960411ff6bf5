"""People hear that something is dead: once, again when more is, and when nothing is any more."""

from pathlib import Path
from typing import Any

import pytest

from longshore.core.failures import ErrorCategory
from longshore.core.messages import body_for
from longshore.core.piles import PileKind
from longshore.services import piles
from tests.unit.services.dead import send, wear_out
from tests.unit.services.dead_heard import a_check, counted, dies, replayed, said
from tests.unit.services.hearing import (
    MINUTE,
    RecordingAlerts,
    checks_told,
    claim_for_long,
    heard_in,
)
from tests.unit.services.stage import (
    BACKENDS,
    REQUEST,
    TENANT,
    Stage,
    a_task,
    opened,
    scenario,
    task_id,
)

OTHER = "other"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_that_something_is_dead_is_told_once_and_so_is_that_nothing_is_any_more(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts)
        await check.check_all()
        dead = await dies(stage)

        for _ in range(3):
            await check.check_all()
            stage.clock.advance(5 * MINUTE)
        await replayed(stage, dead)
        for _ in range(2):
            await check.check_all()

        assert [said(notice) for notice in alerts.notices] == [("first", 1), ("none_left", 0)]
        assert await backend.blobs.keys("health/") == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_it_is_told_how_many_there_are_by_queue_and_category_and_which_came_last(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await send(stage, "poison", queue="mail")
        await wear_out(stage, "mail")
        ids = [
            await dies(stage, "a", ErrorCategory.AUTH, queue="mail"),
            *[await dies(stage, key) for key in "bcdefg"],
        ]

        await a_check(stage, alerts).check_all()

        found = counted(alerts.notices[0])
        assert (found.total, found.more) == (8, False)
        assert found.kinds == (
            PileKind(queue="default", why="validation", count=6),
            PileKind(queue="mail", why="auth", count=1),
            PileKind(queue="mail", why="message", count=1),
        )
        # As those see it who are asked to look.
        counts = await stage.dead_letters.count(TENANT)
        assert {(one.queue, one.why): one.count for one in found.kinds} == counts.by_kind
        page = await stage.dead_letters.page(TENANT, limit=5)
        assert [one.id for one in found.newest] == [one.id for one in page.items]
        assert [one.id for one in found.newest] == ids[:-6:-1]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_new_ones_are_told_by_the_next_check_in_one_message(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts)
        first = await dies(stage, "a")
        await check.check_all()
        for key in "bcd":
            await dies(stage, key)
        await check.check_all()
        # One came and one went: as many as before, and not the same.
        await replayed(stage, first)
        last = await dies(stage, "e")
        await check.check_all()
        await check.check_all()

        assert [said(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("more", 4),
            ("more", 4),
        ]
        assert counted(alerts.notices[-1]).newest[0].id == last


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_is_still_dead_is_told_again_after_the_cool_down(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts, cool_down=20 * MINUTE)
        await dies(stage)

        for _ in range(9):
            await check.check_all()
            stage.clock.advance(5 * MINUTE)

        assert [said(notice) for notice in alerts.notices] == [
            ("first", 1),
            ("still", 1),
            ("still", 1),
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_stuck_tasks_and_dead_letters_are_one_message(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await stage.submit(a_task("stuck"))
        await claim_for_long(stage, "stuck")
        stage.clock.advance(11 * MINUTE)
        await dies(stage)

        await a_check(stage, alerts).check_all()

        (notice,) = alerts.notices
        assert heard_in(notice) == {"stuck": "critical"}
        assert said(notice) == ("first", 1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_tenant_with_nothing_but_dead_letters_gets_no_history_of_checks(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts)
        await dies(stage)

        reports = [await check.check_all() for _ in range(3)]

        assert reports == [[], [], []]
        assert await checks_told(stage) == []
        (notice,) = alerts.notices
        assert notice.summary is not None
        assert notice.summary.total_processing == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_tenants_are_told_of_apart(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts)
        await dies(stage, "a")
        theirs = [await dies(stage, key, tenant=OTHER) for key in "bc"]
        await stage.producer.submit("idle", REQUEST, {"tasks": [a_task("d")]})

        await check.check_all()
        first = [(notice.tenant, said(notice)) for notice in alerts.notices]
        alerts.notices.clear()
        await stage.dead_letters.replay(OTHER, theirs, by="ann")
        await check.check_all()

        assert first == [(TENANT, ("first", 1)), (OTHER, ("first", 2))]
        assert [(notice.tenant, said(notice)) for notice in alerts.notices] == [
            (OTHER, ("none_left", 0))
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_of_very_many_tenants_none_is_left_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piles, "_AT_ONCE", 2)
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        tenants = [f"tenant-{number}" for number in range(5)]
        for tenant in tenants:
            await dies(stage, tenant=tenant)

        await a_check(stage, alerts).check_all()

        assert [notice.tenant for notice in alerts.notices] == tenants


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_one_tenant_is_checked_and_nobody_hears_of_another(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await dies(stage, "a")
        await dies(stage, "b", tenant=OTHER)

        report = await a_check(stage, alerts).check(TENANT)

        assert report.tasks == ()
        assert [(notice.tenant, said(notice)) for notice in alerts.notices] == [
            (TENANT, ("first", 1))
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_that_leads_to_no_task_is_told_to_who_looks_after_the_queues(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts)
        await dies(stage, tenant=OTHER)
        await send(stage, "poison", body_for("job-none_such"))
        await wear_out(stage)

        await check.check_all()
        first = {notice.tenant: said(notice) for notice in alerts.notices}
        kinds = [counted(notice).kinds for notice in alerts.notices if notice.tenant == TENANT]
        alerts.notices.clear()
        for letter in (await stage.dead_letters.page(TENANT)).items:
            await stage.dead_letters.discard(TENANT, letter.id, by="ann")
        await check.check_all()

        assert first == {TENANT: ("first", 2), OTHER: ("first", 1)}
        assert kinds == [(PileKind(queue="default", why="message", count=2),)]
        assert [(notice.tenant, said(notice)) for notice in alerts.notices] == [
            (TENANT, ("none_left", 0))
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_whose_task_the_next_sweep_ends_is_told_as_that_task_and_only_once(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, alerts)
        await stage.submit(a_task())
        await wear_out(stage)

        await check.check_all()
        before = list(alerts.notices)
        await stage.dead_letters.settle()
        await check.check_all()
        await check.check_all()

        assert before == []
        (notice,) = alerts.notices
        assert [one.id for one in counted(notice).newest] == [task_id("a")]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_no_more_are_counted_than_the_limit_however_many_there_are(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piles, "COUNTED_LIMIT", 3)
    async with opened(kind, tmp_path) as backend:
        asked: list[int] = []

        class Noting:
            """A port that notes how many are asked for."""

            def __init__(self, port: Any) -> None:
                self._port = port

            def __getattr__(self, name: str) -> Any:
                return getattr(self._port, name)

            async def failed(self, tenant: str, *, limit: int) -> Any:
                asked.append(limit)
                return await self._port.failed(tenant, limit=limit)

            async def dead_letters(self, queue: str | None, *, limit: int) -> Any:
                asked.append(limit)
                return await self._port.dead_letters(queue, limit=limit)

        stage, alerts = Stage(backend), RecordingAlerts()
        ports = {"ledger": Noting(backend.ledger), "queue": Noting(backend.queue)}
        check = a_check(stage.with_ports(**ports), alerts)
        for key in "abc":
            await dies(stage, key)
        await check.check_all()
        for key in "def":
            await dies(stage, key)
        await check.check_all()
        await check.check_all()
        last = await dies(stage, "g")
        await check.check_all()

        assert set(asked) == {4}
        assert [said(notice) for notice in alerts.notices] == [
            ("first", 3),
            ("more", 4),
            ("more", 4),
        ]
        found = counted(alerts.notices[-1])
        assert (found.total, found.more) == (3, True)
        assert sum(kind.count for kind in found.kinds) == 3
        assert found.newest[0].id == last


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_without_a_channel_one_line_says_that_nobody_hears_of_them(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        check = a_check(stage)
        await dies(stage)

        for _ in range(3):
            await check.check_all()

        assert [record.msg for record in caplog.records] == ["alert.skipped"]
        assert await backend.blobs.keys("health/") == []
