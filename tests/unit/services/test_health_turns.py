"""One process of a machine checks, at a steady pace, and continues after every error."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.errors import AlertFailed
from longshore.execution.host.registry import FileWorkerRegistry
from longshore.services.health import HealthCheck
from longshore.testing.flaky_port import FlakyPort
from longshore.testing.worker_registry import FakeWorkerRegistry
from tests.unit.services.alert_recording import (
    MINUTE,
    RecordingAlerts,
    claim_with_long_lease,
    health_check_events,
    make_health_check,
)
from tests.unit.services.harness import (
    BACKENDS,
    SECOND,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.port_wrappers import record_calls

CHECK = "ledger.leased_tasks"


@contextmanager
def checking(*checks: HealthCheck) -> Iterator[list["asyncio.Task[None]"]]:
    running = [asyncio.ensure_future(check.run()) for check in checks]
    try:
        yield running
    finally:
        for item in running:
            item.cancel()


async def a_running_task(harness: ServiceHarness) -> None:
    await harness.submit(make_task())
    await claim_with_long_lease(harness, "a")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_health_check_runs_soon_after_the_start_and_then_every_five_minutes(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await a_running_task(harness)
        begun = harness.clock.now()
        with checking(make_health_check(harness)):
            await harness.advance(16 * MINUTE)

        after = [event.at - begun for event in await health_check_events(harness)]
        assert after == [30 * SECOND + n * 5 * MINUTE for n in range(4)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_pace_can_be_set(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await a_running_task(harness)
        with checking(make_health_check(harness, every=2 * SECOND)):
            await harness.advance(11 * SECOND)

        assert len(await health_check_events(harness)) == 5


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_one_process_of_a_machine_checks_and_the_next_takes_over_when_it_ends(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        (first, of_first), (second, of_second) = record_calls(backend), record_calls(backend)
        with (
            closing(FileWorkerRegistry(tmp_path)) as of_one_process,
            closing(FileWorkerRegistry(tmp_path)) as of_another,
        ):
            item = make_health_check(ServiceHarness(first), worker_registry=of_one_process)
            other = make_health_check(ServiceHarness(second), worker_registry=of_another)
            harness = ServiceHarness(backend)
            with checking(item, other) as (running, _):
                await harness.advance(11 * MINUTE)
                checked = (of_first.count(CHECK), of_second.count(CHECK))
                running.cancel()
                of_one_process.close()
                await harness.advance(MINUTE)

        assert checked == (3, 0)
        assert (of_first.count(CHECK), of_second.count(CHECK)) == (3, 1)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_process_without_the_role_checks_nothing(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        watched, calls = record_calls(backend)
        harness = ServiceHarness(watched)
        with checking(
            make_health_check(harness, worker_registry=FakeWorkerRegistry(leading=False))
        ):
            await harness.advance(timedelta(hours=2))

        assert calls == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_health_check_continues_soon_after_the_store_was_out_of_reach(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await a_running_task(harness)
        ledger = FlakyPort(backend.ledger, "leased_tasks", times=3)
        with checking(make_health_check(harness.with_ports(ledger=ledger))):
            await harness.advance(MINUTE)
            soon = len(await health_check_events(harness))

        assert ledger.failures == 3
        assert soon == 1
        assert [record.msg for record in caplog.records] == ["health.unavailable"] * 3


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_health_check_continues_after_an_unexpected_error(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await a_running_task(harness)
        ledger = FlakyPort(backend.ledger, "leased_tasks", RuntimeError("a fault"), times=2)
        with checking(make_health_check(harness.with_ports(ledger=ledger))) as (running,):
            await harness.advance(11 * MINUTE)
            alive = not running.done()

        assert alive
        assert len(await health_check_events(harness)) == 1
        broken = [record for record in caplog.records if record.msg == "health.check_failed"]
        assert [record.levelno for record in broken] == [logging.ERROR] * 2
        assert broken[0].exc_info is not None


class UnreachableRegistry(FakeWorkerRegistry):
    """A machine on which the holder of a role cannot be determined."""

    def acquire_role(self, role: str) -> bool:
        raise OSError("disk full")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_it_tries_again_if_the_role_could_not_be_acquired(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        with checking(make_health_check(harness, worker_registry=UnreachableRegistry())) as (
            running,
        ):
            await harness.advance(MINUTE)

            assert not running.done()
        assert [record.msg for record in caplog.records] == ["health.check_failed"] * 7


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_channel_that_was_down_all_night_receives_everything_once_in_the_morning(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        alerts = RecordingAlerts(error=AlertFailed("slack", "it is out of reach"))
        harness = ServiceHarness(backend)
        await a_running_task(harness)
        with checking(make_health_check(harness, alerts)):
            await harness.advance(timedelta(hours=8))
            tried = alerts.sends
            alerts.error = None
            await harness.advance(30 * MINUTE)

        assert tried > 90
        assert alerts.health_notices == [{"a": "overtime"}]
        assert len(await health_check_events(harness)) == 102
