"""People hear of each problem once, on every channel, whatever fails on the way."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.alerting import Notice, told_from_json, told_key
from longshore.errors import AlertFailed, BackendUnavailable
from longshore.testing.flaky import Flaky
from tests.unit.services.hearing import (
    MINUTE,
    RecordingAlerts,
    a_health_check,
    beat,
    claim_for_long,
    healths,
)
from tests.unit.services.ports import recorded
from tests.unit.services.stage import (
    BACKENDS,
    REQUEST,
    SECOND,
    TENANT,
    Stage,
    a_task,
    opened,
    scenario,
    task_id,
)

SECRET = "xoxb-very-secret-indeed"


async def stuck(stage: Stage, *keys: str) -> None:
    """Tasks of which nothing has been heard for eleven minutes."""
    await stage.submit(*(a_task(key) for key in keys))
    for key in keys:
        await claim_for_long(stage, key)
    stage.clock.advance(11 * MINUTE)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_problem_is_told_once_and_so_is_its_end(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_health_check(stage, alerts)
        await stuck(stage, "a", "b")

        for _ in range(3):
            await check.check(TENANT)
            stage.clock.advance(5 * MINUTE)
        await beat(stage, "a")
        await stage.lost("b")
        for _ in range(2):
            await check.check(TENANT)

        assert alerts.heard == [
            {"a": "critical", "b": "critical"},
            {"a": "recovered", "b": "recovered"},
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_it_is_told_again_after_the_cool_down(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_health_check(stage, alerts, cool_down=20 * MINUTE)
        await stuck(stage, "a")

        for _ in range(9):
            await check.check(TENANT)
            stage.clock.advance(5 * MINUTE)

        assert alerts.heard == [{"a": "critical"}] * 3


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_next_process_knows_what_was_told(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await stuck(stage, "a")
        await a_health_check(stage, alerts).check_all()

        await a_health_check(Stage(backend), alerts).check_all()
        told = told_from_json(await backend.blobs.get(told_key(TENANT)))
        await stage.lost("a")
        # Nothing of the tenant runs any more, and it is looked at all the same.
        await a_health_check(Stage(backend), alerts).check_all()

        assert set(told["slack"].problems) == {task_id("a")}
        assert alerts.heard == [{"a": "critical"}, {"a": "recovered"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_nothing_is_kept_of_problems_that_are_long_over(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_health_check(stage, alerts)
        await stuck(stage, "a")
        await check.check_all()
        await stage.lost("a")
        await check.check_all()
        stage.clock.advance(timedelta(hours=2))

        await check.check_all()

        assert await backend.blobs.keys("health/") == []
        assert await check.check_all() == []


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", [AlertFailed("slack", "it answered 500"), OSError(SECRET)])
@scenario
async def test_a_failing_alert_fails_no_check_and_is_made_up_for_by_the_next(
    kind: str, error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts(error=error)
        check = a_health_check(stage, alerts)
        await stuck(stage, "a")

        report = await check.check(TENANT)
        alerts.error = None
        await check.check(TENANT)
        await check.check(TENANT)

        assert healths(report) == {"a": "critical"}
        assert alerts.heard == [{"a": "critical"}]
        assert alerts.tried == 2
        assert [one.msg for one in caplog.records if one.levelno == logging.WARNING] == [
            "alert.failed" if isinstance(error, AlertFailed) else "alert.broken"
        ]
        assert SECRET not in caplog.text
        assert SECRET not in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_channel_that_is_down_makes_no_other_repeat_itself(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        down = RecordingAlerts("webhook", AlertFailed("webhook", "it answered 500"))
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_health_check(stage, down, alerts)
        await stuck(stage, "a")

        for _ in range(3):
            await check.check(TENANT)
        down.error = None
        await check.check(TENANT)

        assert alerts.heard == [{"a": "critical"}]
        assert down.heard == [{"a": "critical"}]
        assert down.tried == 4


class HangingAlerts(RecordingAlerts):
    """Takes a notice and does not come back."""

    async def send(self, notice: Notice) -> None:
        self.tried += 1
        await asyncio.Event().wait()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_channel_that_hangs_costs_a_bounded_time_and_nobody_else(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, hanging, alerts = Stage(backend), HangingAlerts("webhook"), RecordingAlerts()
        check = a_health_check(stage, hanging, alerts)
        await stuck(stage, "a")
        before = stage.clock.elapsed()

        checking = asyncio.ensure_future(check.check(TENANT))
        await stage.passes(20 * SECOND - timedelta(milliseconds=1))
        early = checking.done()
        await stage.passes(timedelta(milliseconds=1))

        assert not early
        assert checking.done()
        assert stage.clock.elapsed() - before == 20 * SECOND
        assert alerts.heard == [{"a": "critical"}]
        told = told_from_json(await backend.blobs.get(told_key(TENANT)))
        assert set(told) == {"slack"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_check_that_is_stopped_has_kept_what_was_delivered(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        check = a_health_check(stage, HangingAlerts("webhook"), alerts)
        await stuck(stage, "a")

        checking = asyncio.ensure_future(check.check(TENANT))
        await stage.passes(SECOND)
        checking.cancel()
        await stage.passes(SECOND)
        await a_health_check(Stage(backend), alerts).check(TENANT)

        assert checking.cancelled()
        assert alerts.heard == [{"a": "critical"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_channel_that_asks_to_be_left_alone_is(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        busy = AlertFailed("slack", "it answered ratelimited (429)", 7 * MINUTE)
        stage, alerts = Stage(backend), RecordingAlerts(error=busy)
        check = a_health_check(stage, alerts)
        await stuck(stage, "a")
        await check.check(TENANT)
        alerts.error = None

        stage.clock.advance(7 * MINUTE - SECOND)
        await check.check(TENANT)
        early = list(alerts.notices)
        stage.clock.advance(SECOND)
        await check.check(TENANT)

        assert early == []
        assert alerts.heard == [{"a": "critical"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_without_a_channel_one_line_says_so_and_nothing_is_kept(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, tmp_path) as backend:
        watched, calls = recorded(backend)
        stage = Stage(watched)
        check = a_health_check(stage)
        await check.check_all()
        silent = [record.msg for record in caplog.records]
        await stuck(stage, "a")
        del calls[:]

        for _ in range(3):
            await check.check_all()

        assert silent == []
        assert [record.msg for record in caplog.records] == ["alert.skipped"]
        assert not [call for call in calls if call.startswith("blobs.")]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["get", "put"])
@scenario
async def test_a_store_that_is_out_of_reach_makes_nobody_hear_it_twice(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        blobs = Flaky(backend.blobs, method, times=0)
        stage, alerts = Stage(backend).with_ports(blobs=blobs), RecordingAlerts()
        check = a_health_check(stage, alerts)
        await stuck(stage, "a")
        if method == "put":
            blobs.breaks()
        await check.check(TENANT)
        blobs.breaks()

        for _ in range(3):
            stage.clock.advance(5 * MINUTE)
            await check.check(TENANT)
        blobs.mend()
        await check.check(TENANT)

        assert blobs.failures > 0
        assert alerts.heard == [{"a": "critical"}]
        assert set(told_from_json(await backend.blobs.get(told_key(TENANT)))) == {"slack"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_tenant_whose_name_is_no_place_for_a_blob_is_remembered_all_the_same(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await stage.producer.submit("..", REQUEST, {"tasks": [a_task()]})
        await claim_for_long(stage, "a", "..")
        stage.clock.advance(11 * MINUTE)
        check = a_health_check(stage, alerts)

        for _ in range(3):
            await check.check_all()

        assert alerts.heard == [{"a": "critical"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_is_kept_and_damaged_is_replaced_and_people_hear_it_again(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await stuck(stage, "a")
        await backend.blobs.put(told_key(TENANT), b"{damaged")
        check = a_health_check(stage, alerts)

        await check.check_all()
        await check.check_all()

        assert alerts.heard == [{"a": "critical"}]
        assert set(told_from_json(await backend.blobs.get(told_key(TENANT)))) == {"slack"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_a_lagging_list_leaves_out_has_not_recovered(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await stuck(stage, "a")
        await a_health_check(stage, alerts).check_all()

        class Lagging:
            def __getattr__(self, name: str) -> Any:
                return getattr(backend.ledger, name)

            async def held(self, **_: Any) -> list[Any]:
                return []

        lagging = a_health_check(stage.with_ports(ledger=Lagging()), alerts)
        (report,) = await lagging.check_all()

        assert healths(report) == {"a": "critical"}
        assert alerts.heard == [{"a": "critical"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_if_nobody_knows_who_was_told_the_others_are_checked(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        blobs = Flaky(backend.blobs, "keys", ValueError("a fault"), times=None)
        stage, alerts = Stage(backend).with_ports(blobs=blobs), RecordingAlerts()
        await stuck(stage, "a")

        await a_health_check(stage, alerts).check_all()

        assert alerts.heard == [{"a": "critical"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_store_without_an_answer_at_all_fails_the_check_and_not_the_next(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, alerts = Stage(backend), RecordingAlerts()
        await stuck(stage, "a")
        ledger = Flaky(backend.ledger, "held", times=1)
        check = a_health_check(stage.with_ports(ledger=ledger), alerts)

        with pytest.raises(BackendUnavailable):
            await check.check_all()
        await check.check_all()

        assert alerts.heard == [{"a": "critical"}]
