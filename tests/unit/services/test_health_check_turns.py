"""One process of a machine checks, at a steady pace, and goes on whatever breaks."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.adapters.process.presence import FilePresence
from longshore.errors import AlertFailed
from longshore.services.health_check import HealthCheck, HealthCheckPolicy
from longshore.testing.flaky import Flaky
from longshore.testing.presence import FakePresence
from tests.unit.services.hearing import (
    MINUTE,
    RecordingAlerts,
    a_health_check,
    checks_told,
    claim_for_long,
)
from tests.unit.services.ports import recorded
from tests.unit.services.stage import BACKENDS, SECOND, Stage, a_task, opened, scenario

CHECK = "ledger.held"


@contextmanager
def checking(*checks: HealthCheck) -> Iterator[list["asyncio.Task[None]"]]:
    running = [asyncio.ensure_future(check.run()) for check in checks]
    try:
        yield running
    finally:
        for one in running:
            one.cancel()


async def a_running_task(stage: Stage) -> None:
    await stage.submit(a_task())
    await claim_for_long(stage, "a")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_it_checks_soon_after_it_began_and_then_every_five_minutes(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await a_running_task(stage)
        begun = stage.clock.now()
        with checking(a_health_check(stage)):
            await stage.passes(16 * MINUTE)

        after = [event.at - begun for event in await checks_told(stage)]
        assert after == [30 * SECOND + n * 5 * MINUTE for n in range(4)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_pace_can_be_set(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await a_running_task(stage)
        with checking(a_health_check(stage, policy=HealthCheckPolicy(every=2 * SECOND))):
            await stage.passes(11 * SECOND)

        assert len(await checks_told(stage)) == 5


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_one_of_a_machine_checks_and_the_next_takes_over_when_it_ends(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        (first, of_first), (second, of_second) = recorded(backend), recorded(backend)
        with (
            closing(FilePresence(tmp_path)) as of_one_process,
            closing(FilePresence(tmp_path)) as of_another,
        ):
            one = a_health_check(Stage(first), presence=of_one_process)
            other = a_health_check(Stage(second), presence=of_another)
            stage = Stage(backend)
            with checking(one, other) as (running, _):
                await stage.passes(11 * MINUTE)
                checked = (of_first.count(CHECK), of_second.count(CHECK))
                running.cancel()
                of_one_process.close()
                await stage.passes(MINUTE)

        assert checked == (3, 0)
        assert (of_first.count(CHECK), of_second.count(CHECK)) == (3, 1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_whoever_does_not_fill_the_role_checks_nothing(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        watched, calls = recorded(backend)
        stage = Stage(watched)
        with checking(a_health_check(stage, presence=FakePresence(leading=False))):
            await stage.passes(timedelta(hours=2))

        assert calls == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_it_goes_on_after_the_store_was_out_of_reach_and_does_not_wait_long(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await a_running_task(stage)
        ledger = Flaky(backend.ledger, "held", times=3)
        with checking(a_health_check(stage.with_ports(ledger=ledger))):
            await stage.passes(MINUTE)
            soon = len(await checks_told(stage))

        assert ledger.failures == 3
        assert soon == 1
        assert [record.msg for record in caplog.records] == ["health.unavailable"] * 3


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_it_goes_on_after_something_that_nobody_foresaw(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await a_running_task(stage)
        ledger = Flaky(backend.ledger, "held", RuntimeError("a fault"), times=2)
        with checking(a_health_check(stage.with_ports(ledger=ledger))) as (running,):
            await stage.passes(11 * MINUTE)
            alive = not running.done()

        assert alive
        assert len(await checks_told(stage)) == 1
        broken = [record for record in caplog.records if record.msg == "health.broken"]
        assert [record.levelno for record in broken] == [logging.ERROR] * 2
        assert broken[0].exc_info is not None


class UnreachablePresence(FakePresence):
    """A machine on which nobody can find out who fills a role."""

    def leads(self, role: str) -> bool:
        raise OSError("disk full")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_it_asks_again_for_the_role_if_that_could_not_be_found_out(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        with checking(a_health_check(stage, presence=UnreachablePresence())) as (running,):
            await stage.passes(MINUTE)

            assert not running.done()
        assert [record.msg for record in caplog.records] == ["health.broken"] * 7


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_channel_that_is_down_all_night_is_told_everything_in_the_morning_once(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        alerts = RecordingAlerts(error=AlertFailed("slack", "it is out of reach"))
        stage = Stage(backend)
        await a_running_task(stage)
        with checking(a_health_check(stage, alerts)):
            await stage.passes(timedelta(hours=8))
            tried = alerts.tried
            alerts.error = None
            await stage.passes(30 * MINUTE)

        assert tried > 90
        assert alerts.heard == [{"a": "overtime"}]
        assert len(await checks_told(stage)) == 102
