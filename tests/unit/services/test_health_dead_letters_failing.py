"""Of what is dead people hear whatever fails on the way, and nobody hears what is not so."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.alerting import told_from_json, told_key
from longshore.errors import AlertFailed, BackendUnavailable
from longshore.testing.flaky import Flaky
from tests.unit.services.dead import wear_out
from tests.unit.services.dead_heard import a_check, dies, replayed, said
from tests.unit.services.hearing import MINUTE, RecordingAlerts, claim_for_long, heard_in
from tests.unit.services.ports import Interposed
from tests.unit.services.stage import (
    BACKENDS,
    TENANT,
    Stage,
    a_task,
    opened,
    scenario,
    task_id,
)

READS = ["ledger.failed", "ledger.failed_tenants", "queue.dead_letters"]


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
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await dies(stage, "dead")
        await a_check(stage, alerts).check_all()
        alerts.notices.clear()
        await stage.submit(a_task("stuck"))
        await claim_for_long(stage, "stuck")
        stage.clock.advance(11 * MINUTE)
        broken = Flaky(getattr(backend, port), method, error, times=None)
        check = a_check(stage.with_ports(**{port: broken}), alerts)

        (report,) = await check.check_all()

        assert broken.failures > 0
        assert len(report.tasks) == 1
        (notice,) = alerts.notices
        assert heard_in(notice) == {"stuck": "critical"}
        # Nobody knows, so nobody is told that none is left.
        assert said(notice) is None
        unavailable = isinstance(error, BackendUnavailable)
        wanted = "unavailable" if unavailable else "unreadable"
        (record,) = [one for one in caplog.records if "dead_letters" in one.msg]
        assert record.msg == f"health.dead_letters_{wanted}"
        assert (record.exc_info is None) is unavailable
        alerts.notices.clear()
        broken.mend()
        await check.check_all()
        assert alerts.notices == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_cannot_be_read_of_one_tenant_is_told_of_the_others(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        for tenant in ("a", "b", "c"):
            await dies(stage, tenant=tenant)
        ledger = Flaky(backend.ledger, "failed", RuntimeError("a fault"), times=1, skip=1)

        await a_check(stage.with_ports(ledger=ledger), alerts).check_all()

        assert [notice.tenant for notice in alerts.notices] == ["a", "c"]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", [BackendUnavailable("out of reach"), RuntimeError("a fault")])
@pytest.mark.parametrize("method", ["held", "tasks"])
@scenario
async def test_tasks_that_cannot_be_read_keep_nobody_from_hearing_of_dead_letters(
    kind: str, method: str, error: Exception, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await stage.submit(a_task("stuck"))
        await claim_for_long(stage, "stuck")
        stage.clock.advance(11 * MINUTE)
        await a_check(stage, alerts).check_all()
        alerts.notices.clear()
        await dies(stage)
        ledger = Flaky(backend.ledger, method, error, times=None)
        check = a_check(stage.with_ports(ledger=ledger), alerts)

        for looking in (check.check_all, lambda: check.check(TENANT)):
            if method == "held" or isinstance(error, BackendUnavailable):
                with pytest.raises(type(error)):
                    await looking()
            else:  # rows that cannot be read together are read one by one
                await looking()

        (notice,) = alerts.notices
        assert said(notice) == ("first", 1)
        # Nobody knows how they are, so nobody is told that they are well.
        assert heard_in(notice) == {}
        ledger.mend()
        await check.check_all()
        assert len(alerts.notices) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_process_that_dies_before_it_has_kept_what_it_told_makes_one_message_come_twice(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await dies(stage)
        blobs = Interposed(backend.blobs, "put", before=asyncio.Event().wait)
        dying = asyncio.ensure_future(a_check(stage.with_ports(blobs=blobs), alerts).check_all())
        await stage.passes(timedelta(0))
        dying.cancel()
        await stage.passes(timedelta(0))
        told = [said(notice) for notice in alerts.notices]

        for _ in range(3):
            await a_check(Stage(backend), alerts).check_all()

        assert dying.cancelled()
        assert told == [("first", 1)]
        assert [said(notice) for notice in alerts.notices] == [("first", 1)] * 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_next_process_knows_what_was_told(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        dead = await dies(stage)
        await a_check(stage, alerts).check_all()
        told = told_from_json(await backend.blobs.get(told_key(TENANT)))

        await a_check(Stage(backend), alerts).check_all()
        await replayed(stage, dead)
        await a_check(Stage(backend), alerts).check_all()

        assert told["slack"].dead is not None
        assert [said(notice) for notice in alerts.notices] == [("first", 1), ("none_left", 0)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_channel_that_is_down_hears_it_later_and_makes_no_other_repeat_itself(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        down = RecordingAlerts("webhook", AlertFailed("webhook", "it answered 500"))
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_check(stage, down, alerts)
        await dies(stage, "a")
        for _ in range(3):
            await check.check_all()
        await dies(stage, "b")
        await check.check_all()
        down.error = None
        await check.check_all()
        await check.check_all()

        assert [said(notice) for notice in alerts.notices] == [("first", 1), ("more", 2)]
        assert [said(notice) for notice in down.notices] == [("first", 2)]
        assert down.tried == 5


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_in_a_file_from_before_nothing_was_told_of_them_and_tasks_are_not_told_again(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await stage.submit(a_task("stuck"))
        stuck = await claim_for_long(stage, "stuck")
        stage.clock.advance(11 * MINUTE)
        await dies(stage)
        at = int(stage.clock.now().timestamp() * 1000)
        old = '{"format":1,"channels":{"slack":{"%s":{"attempt":1,"health":"critical","at":%d}}}}'
        await backend.blobs.put(told_key(TENANT), (old % (stuck, at)).encode())

        await a_check(stage, alerts).check_all()

        (notice,) = alerts.notices
        assert heard_in(notice) == {}
        assert said(notice) == ("first", 1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_message_whose_task_cannot_be_read_is_told(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await stage.submit(a_task())
        await wear_out(stage)
        fault = ValueError("not a row")
        damaged: Any = Flaky(Flaky(backend.ledger, "tasks", fault, None), "task", fault, None)

        await a_check(stage.with_ports(ledger=damaged), alerts).check_all()

        (notice,) = alerts.notices
        assert said(notice) == ("first", 1)
        *_, record = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert (record.msg, record.task_id) == ("health.task_unreadable", task_id("a"))
