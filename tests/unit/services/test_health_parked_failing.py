"""Of what is parked people hear whatever fails on the way, and nobody hears what is not so."""

import logging
from pathlib import Path
from typing import Any

import pytest

from longshore.core.alerting import told_from_json, told_key
from longshore.errors import BackendUnavailable
from longshore.testing.flaky import Flaky
from tests.unit.services.dead_heard import a_check, dies, said
from tests.unit.services.hearing import MINUTE, RecordingAlerts, claim_for_long, heard_in
from tests.unit.services.parked_heard import goes_on, parks, said_of_parked
from tests.unit.services.stage import BACKENDS, TENANT, Stage, a_task, opened, scenario

ERRORS = [BackendUnavailable("out of reach"), RuntimeError("a fault")]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", ERRORS)
@scenario
async def test_parked_tasks_that_cannot_be_read_keep_nobody_from_hearing_of_the_rest(
    kind: str, error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await parks(stage, "parked")
        await a_check(stage, alerts).check_all()
        alerts.notices.clear()
        await stage.submit(a_task("stuck"))
        await claim_for_long(stage, "stuck")
        stage.clock.advance(11 * MINUTE)
        await dies(stage, "dead")
        broken = Flaky(backend.ledger, "parked", error, times=None)
        check = a_check(stage.with_ports(ledger=broken), alerts)

        (report,) = await check.check_all()

        assert broken.failures == 1
        assert len(report.tasks) == 1
        (notice,) = alerts.notices
        assert heard_in(notice) == {"stuck": "critical"}
        # Nobody knows, so nobody is told that none is left.
        assert (said(notice), said_of_parked(notice)) == (("first", 1), None)
        unavailable = isinstance(error, BackendUnavailable)
        (record,) = [one for one in caplog.records if "parked" in one.msg]
        assert record.msg == f"health.parked_{'unavailable' if unavailable else 'unreadable'}"
        assert (record.exc_info is None) is unavailable
        alerts.notices.clear()
        broken.mend()
        await check.check_all()
        assert alerts.notices == []


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    "read", ["ledger.failed", "ledger.failed_tenants", "queue.dead_letters", "ledger.held"]
)
@scenario
async def test_whatever_else_cannot_be_read_parked_tasks_are_told_and_that_none_is_left(
    kind: str, read: str, error: Exception, tmp_path: Path
) -> None:
    port, method = read.split(".")
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await dies(stage, "dead")
        broken = Flaky(getattr(backend, port), method, error, times=None)
        check = a_check(stage.with_ports(**{port: broken}), alerts)

        async def looks() -> None:
            if method == "held":
                with pytest.raises(type(error)):
                    await check.check_all()
            else:
                await check.check_all()

        parked = await parks(stage, "parked")
        await looks()
        await goes_on(stage, parked)
        await looks()

        assert [said_of_parked(one) for one in alerts.notices] == [("first", 1), ("none_left", 0)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_while_it_is_not_known_of_whom_people_were_told_what_is_parked_is_told(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await parks(stage)
        blobs = Flaky(backend.blobs, "keys", BackendUnavailable("out of reach"), times=None)

        with pytest.raises(BackendUnavailable):
            await a_check(stage.with_ports(blobs=blobs), alerts).check_all()

        assert [said_of_parked(notice) for notice in alerts.notices] == [("first", 1)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_parked_task_that_cannot_be_read_is_not_said_to_go_on(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        parked = await parks(stage)
        await a_check(stage, alerts).check_all()
        alerts.notices.clear()
        await parks(stage, "b", tenant="other")
        fault = ValueError("not a row")
        damaged: Any = Flaky(Flaky(backend.ledger, "tasks", fault, None), "task", fault, times=1)

        await a_check(stage.with_ports(ledger=damaged), alerts).check_all()

        # Of the others people hear all the same.
        assert [(notice.tenant, said_of_parked(notice)) for notice in alerts.notices] == [
            ("other", ("first", 1))
        ]
        *_, record = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert (record.msg, record.task_id) == ("health.task_unreadable", parked)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_next_process_knows_what_was_told_and_one_from_before_has_told_nothing_of_it(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await dies(stage, "dead")
        await a_check(stage, alerts).check_all()
        kept = (await backend.blobs.get(told_key(TENANT))).replace(b',"parkedTasks":{}', b"")
        await backend.blobs.put(told_key(TENANT), kept)
        await parks(stage, "parked")

        for _ in range(2):
            await a_check(Stage(backend), alerts).check_all()

        assert [(said(one), said_of_parked(one)) for one in alerts.notices] == [
            (("first", 1), None),
            (None, ("first", 1)),
        ]
        told = told_from_json(await backend.blobs.get(told_key(TENANT)))["slack"]
        assert b"parked" not in kept
        assert told.dead is not None
        assert told.parked is not None
