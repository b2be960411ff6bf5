"""A health check reads every running task once, and records an event."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longshore.core import health
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.events.codec import properties_of, properties_of_body
from longshore.core.health import Health, HealthPolicy, HealthThresholds
from longshore.core.tasks import commands as c
from longshore.errors import BackendUnavailable
from longshore.services import reads
from longshore.services.app import Application, Caller
from longshore.services.spill import DocumentStore
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.alert_recording import (
    MINUTE,
    RecordingAlerts,
    claim_with_long_lease,
    health_by_key,
    health_check_events,
    make_health_check,
    renew_lease,
)
from tests.unit.services.harness import (
    BACKENDS,
    IN_MEMORY,
    REQUEST,
    TENANT,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort, record_calls


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_check_of_many_tasks_is_several_events_that_are_read_as_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_EVENT_TASKS", 2)
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*(make_task(key) for key in "abcde"))
        for key in "abcde":
            await claim_with_long_lease(harness, key)
        services: Any = SimpleNamespace(backend=backend, documents=DocumentStore(backend.blobs))
        application = Application(services, Caller(tenant=TENANT, name="ann"))
        check = make_health_check(harness)
        await check.check_tenant(TENANT)

        report = await check.check_tenant(TENANT)

        events = (await health_check_events(harness))[3:]
        parts = [(p["part"], p["parts"], len(p["tasks"])) for p in map(properties_of, events)]
        assert parts == [(1, 3, 2), (2, 3, 2), (3, 3, 1)]
        assert {p["summary"]["totalProcessing"] for p in map(properties_of, events)} == {5}
        last = await application.last_health_check()
        assert [task.request_id for task in last.tasks] == [task.task_id for task in report.tasks]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_check_finds_what_is_healthy_silent_stuck_and_too_long(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*(make_task(key) for key in "abcd"))
        await claim_with_long_lease(harness, "a")
        harness.clock.advance(50 * MINUTE)
        await claim_with_long_lease(harness, "b")
        harness.clock.advance(5 * MINUTE)
        await claim_with_long_lease(harness, "c")
        harness.clock.advance(6 * MINUTE)
        await claim_with_long_lease(harness, "d")
        await renew_lease(harness, "a")

        report = await make_health_check(harness).check_tenant(TENANT)

        assert health_by_key(report) == {
            "a": "overtime",
            "b": "critical",
            "c": "warning",
            "d": "healthy",
        }
        assert {task.task_id: task.last_event_type for task in report.tasks} == {
            task_id(key): (await harness.history(key))[-1].type for key in "abcd"
        }


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_check_is_an_event_of_its_tenant_with_all_findings(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await claim_with_long_lease(harness, "a")
        check = make_health_check(harness)

        first = await check.check_tenant(TENANT)
        harness.clock.advance(6 * MINUTE)
        second = await check.check_tenant(TENANT)

        events = await health_check_events(harness)
        reports = [properties_of_body(report.event()) for report in (first, second)]
        assert [properties_of(event) for event in events] == reports
        assert [event.type for event in events] == ["Task Health Check"] * 2
        assert events[1].body.summary.warning == 1
        assert events[1].context.origin == "health-check"
        page = await backend.events.query(TENANT, event_type="Task Health Check")
        assert len(page.items) == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_waits_is_due_is_reviewed_or_is_over_is_not_stuck(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        own = Definition(
            name="own", runner=RunnerKind.COMMAND, overridable=("argv",), requires_review=True
        )
        await backend.definitions.put(TENANT, own)
        tasks = [make_task("pending"), make_task("waiting", "pending"), make_task("done")]
        await harness.submit(*tasks, make_task("reviewed", name="own"), make_task("failed"))
        await harness.complete(task_id("done"))
        await harness.complete(task_id("reviewed"))
        await harness.fail(task_id("failed"))
        harness.clock.advance(timedelta(days=3))

        report = await make_health_check(harness).check_tenant(TENANT)

        assert (await harness.states())["reviewed"] == "in_review"
        assert report.tasks == ()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_with_several_attempts_is_one_task_and_counts_from_its_latest(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        for _ in range(2):
            await claim_with_long_lease(harness, "a")
            harness.clock.advance(40 * MINUTE)
            await harness.end_lease("a")
        await claim_with_long_lease(harness, "a")
        harness.clock.advance(MINUTE)

        (task,) = (await make_health_check(harness).check_tenant(TENANT)).tasks

        assert (task.attempt, task.health, task.elapsed) == (3, Health.HEALTHY, MINUTE)


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_none_is_missed_and_none_counted_twice_however_many_there_are(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "AT_ONCE", 4)
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        keys = [f"t{number}" for number in range(35)]
        await harness.submit(*(make_task(key) for key in keys))
        for key in keys[:33]:
            await claim_with_long_lease(harness, key)

        report = await make_health_check(harness).check_tenant(TENANT)

        assert sorted(health_by_key(report)) == sorted(keys[:33])
        assert len(report.tasks) == 33


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_tenants_are_checked_apart(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        for tenant, key in ((TENANT, "a"), ("other", "b")):
            await harness.producer.submit(tenant, REQUEST, {"tasks": [make_task(key)]})
            await claim_with_long_lease(harness, key, tenant)
        await harness.producer.submit("idle", REQUEST, {"tasks": [make_task("c")]})
        harness.clock.advance(11 * MINUTE)

        reports = await make_health_check(harness, alerts).check_all()

        assert [(item.tenant, health_by_key(item)) for item in reports] == [
            (TENANT, {"a": "critical"}),
            ("other", {"b": "critical"}),
        ]
        assert [notice.tenant for notice in alerts.notices] == [TENANT, "other"]
        assert [
            len(await health_check_events(harness, item)) for item in (TENANT, "other", "idle")
        ] == [*(1, 1, 0)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_definition_has_its_own_idea_of_health(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        own = HealthThresholds(longest_run=timedelta(days=1), healthy_within=40 * MINUTE)
        slow = Definition(name="slow", runner=RunnerKind.COMMAND, overridable=("argv",), health=own)
        await backend.definitions.put(TENANT, slow)
        await harness.submit(make_task("slow", name="slow"), make_task("usual"))
        for key in ("slow", "usual"):
            await claim_with_long_lease(harness, key)
        harness.clock.advance(30 * MINUTE)
        check = make_health_check(harness)

        report = await check.check_tenant(TENANT)
        harness.clock.advance(11 * MINUTE)
        later = await check.check_tenant(TENANT)

        assert health_by_key(report) == {"slow": "healthy", "usual": "critical"}
        assert health_by_key(later) == {"slow": "critical", "usual": "critical"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_thresholds_can_be_set(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await claim_with_long_lease(harness, "a")
        harness.clock.advance(2 * MINUTE)
        strict = HealthPolicy(longest_run=MINUTE)

        report = await make_health_check(harness, thresholds=strict).check_tenant(TENANT)

        assert health_by_key(report) == {"a": "overtime"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_check_of_one_task_sends_no_alert(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        watched, calls = record_calls(backend)
        harness, alerts = ServiceHarness(watched), RecordingAlerts()
        await harness.submit(make_task("a"), make_task("b"))
        await claim_with_long_lease(harness, "a")
        harness.clock.advance(11 * MINUTE)
        check = make_health_check(harness, alerts)

        result = await check.check_task(await harness.task("a"))
        idle = await check.check_task(await harness.task("b"))

        assert result is not None
        assert result.health is Health.CRITICAL
        assert idle is None
        assert alerts.sends == 0
        assert "events.append" not in calls
        assert not [call for call in calls if call.startswith("blobs.")]


class DamagedLedger:
    """A ledger with a row that cannot be read."""

    def __init__(self, ledger: Any, damaged: str) -> None:
        self._ledger = ledger
        self._damaged = damaged

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def get_tasks(self, task_ids: Any) -> Any:
        if self._damaged in task_ids:
            raise ValueError("not a row")
        return await self._ledger.get_tasks(task_ids)

    async def get_task(self, task_id: str) -> Any:
        if task_id == self._damaged:
            raise ValueError("not a row")
        return await self._ledger.get_task(task_id)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_one_damaged_row_does_not_keep_the_others_from_being_checked(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await harness.submit(make_task("a"), make_task("b"))
        for key in "ab":
            await claim_with_long_lease(harness, key)
        harness.clock.advance(11 * MINUTE)
        ledger = DamagedLedger(backend.ledger, task_id("a"))

        (report,) = await make_health_check(harness.with_ports(ledger=ledger), alerts).check_all()

        assert health_by_key(report) == {"b": "critical"}
        assert alerts.health_notices == [{"b": "critical"}]
        *_, record = [item for item in caplog.records if item.levelno == logging.ERROR]
        assert (record.msg, record.task_id) == ("row.read_failed", task_id("a"))


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_definition_that_cannot_be_read_counts_as_one_without_thresholds(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await claim_with_long_lease(harness, "a")
        harness.clock.advance(6 * MINUTE)
        broken = FlakyPort(backend.definitions, "get", ValueError("damaged"), times=None)

        report = await make_health_check(harness.with_ports(definitions=broken)).check_tenant(
            TENANT
        )

        assert health_by_key(report) == {"a": "warning"}


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", [BackendUnavailable("full"), RuntimeError("a fault")])
@scenario
async def test_alerts_are_sent_although_the_history_is_unavailable(
    kind: str, error: Exception, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await harness.submit(make_task())
        await claim_with_long_lease(harness, "a")
        harness.clock.advance(11 * MINUTE)
        events = FlakyPort(backend.events, "append", error)
        check = make_health_check(harness.with_ports(events=events), alerts)

        if isinstance(error, BackendUnavailable):
            with pytest.raises(BackendUnavailable):
                await check.check_tenant(TENANT)
        else:
            await check.check_tenant(TENANT)

        assert alerts.health_notices == [{"a": "critical"}]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_check_that_is_cancelled_while_it_writes_sends_no_alert_and_stops_at_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await harness.submit(make_task())
        await claim_with_long_lease(harness, "a")
        harness.clock.advance(11 * MINUTE)
        events = InterposedPort(backend.events, "append", before=asyncio.Event().wait)
        check = make_health_check(harness.with_ports(events=events), alerts)

        checking = asyncio.ensure_future(check.check_tenant(TENANT))
        await harness.advance(timedelta(0))
        checking.cancel()
        await harness.advance(timedelta(0))

        assert checking.cancelled()
        assert alerts.sends == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_ends_while_it_is_looked_at_is_not_reported(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        claimed = await claim_with_long_lease(harness, "a")
        stale = await backend.ledger.leased_tasks(limit=10)
        row = await harness.task("a")
        failed = c.Release(fence=row.fence, reason="drained")
        await harness.transitions.apply_to_task(claimed, failed)

        class Lagging:
            def __getattr__(self, name: str) -> Any:
                return getattr(backend.ledger, name)

            async def leased_tasks(self, **_: Any) -> Any:
                return stale

        check = make_health_check(harness.with_ports(ledger=Lagging()))

        assert (await check.check_tenant(TENANT)).tasks == ()
        assert await check.check_all() == []
