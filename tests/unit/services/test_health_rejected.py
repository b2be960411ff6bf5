"""Alerts report messages that a worker rejected: the first ones, new ones, and when a day is over.

Also what is no reason for an alert: a message of a job that retention has removed.
"""

from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.alerts import BacklogGroup, BacklogKind, HealthNotice
from longshore.core.queues import QueueDepth, message_body
from longshore.services import health
from longshore.services.retention import JobRetention
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.alert_recording import MINUTE, RecordingAlerts
from tests.unit.services.dead_letter_alerts import make_tenant_health_check
from tests.unit.services.dead_messages import exhaust_receives, send
from tests.unit.services.harness import (
    NO_WAIT,
    SECOND,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)

DAY = timedelta(days=1)
EMPTY = QueueDepth(ready=0, hidden=0, dead_letters=0)
UNKNOWN = message_body("job-none_such")
NO_SUCH_TASK = "there is no task 'job-none_such'"


def rejected_change(notice: HealthNotice) -> tuple[str, int] | None:
    """What a notice says of rejected messages: what is new, and how many there are."""
    rejected = notice.backlogs.get(BacklogKind.REJECTED_MESSAGES)
    return (rejected.change.value, rejected.backlog.minimum_count) if rejected else None


async def reject(harness: ServiceHarness, *bodies: str, queue: str = "default") -> None:
    """Messages come, and a worker rejects them."""
    await send(harness, *bodies, queue=queue)
    async with harness.running_worker(queues=(queue,)):
        await harness.advance(NO_WAIT)
    assert await harness.source.depth(queue) == EMPTY


async def complete_and_remove_job(harness: ServiceHarness) -> None:
    await harness.submit(make_task())
    await harness.complete(task_id("a"))
    await harness.dispatch()
    harness.clock.advance(SECOND)
    removed = JobRetention(backend=harness.backend, keep_for=SECOND)
    await removed.remove_expired()
    assert await harness.backend.ledger.get_task(task_id("a")) is None


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_rejected_messages_are_reported_once_and_when_a_day_is_over(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await check.check_all()
        await reject(harness, UNKNOWN)

        # There is nothing to remind of: the message was deleted.
        for hours in (0, 1, 22):
            harness.clock.advance(timedelta(hours=hours))
            await check.check_all()
        harness.clock.advance(timedelta(hours=1))
        for _ in range(2):
            await check.check_all()

        assert [rejected_change(item) for item in alerts.notices] == [
            ("first", 1),
            ("none_left", 0),
        ]
        assert await backend.blobs.list_keys("health/") == []


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_rejected_messages_are_reported_by_queue_and_reason(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts, queues=("default", "mail"))
        await reject(harness, UNKNOWN)
        await reject(harness, "poison", "poison", queue="mail")

        await check.check_all()
        await reject(harness, "[]")
        await check.check_all()

        assert [rejected_change(item) for item in alerts.notices] == [("first", 3), ("more", 4)]
        backlog = alerts.notices[0].backlogs[BacklogKind.REJECTED_MESSAGES].backlog
        assert backlog.groups == (
            BacklogGroup(queue="mail", reason="not JSON", count=2),
            BacklogGroup(queue="default", reason=NO_SUCH_TASK, count=1),
        )


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_that_is_rejected_twice_is_reported_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await send(harness, "poison")
        # The worker dies before it deletes the message.
        dying = harness.with_ports(queue=FlakyPort(backend.queue, "delete"))
        async with dying.running_worker():
            await dying.advance(NO_WAIT)
        await check.check_all()
        async with harness.running_worker():
            await harness.advance(MINUTE)
        await check.check_all()

        rejected = await backend.events.history(TENANT, "QUEUE#default")
        assert [event.type for event in rejected] == ["Message Rejected"] * 2
        assert [rejected_change(item) for item in alerts.notices] == [("first", 1)]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_of_very_many_rejected_messages_the_newest_are_reported(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "COUNT_LIMIT", 1)
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await reject(harness, "poison", "poison")
        await check.check_all()
        await reject(harness, "[]")
        await check.check_all()
        await check.check_all()

        assert [rejected_change(item) for item in alerts.notices] == [("first", 2), ("more", 2)]
        backlog = alerts.notices[-1].backlogs[BacklogKind.REJECTED_MESSAGES].backlog
        assert backlog.newest[0].reason == "not a JSON object"


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_what_an_operator_discards_is_not_reported_as_rejected(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await send(harness, "poison")
        await exhaust_receives(harness)
        for letter in (await harness.dead_letters.list_page(TENANT)).items:
            await harness.dead_letters.discard(TENANT, letter, by="ann")

        await check.check_all()

        assert alerts.notices == []


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_dead_message_that_a_function_settles_is_reported(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await send(harness, UNKNOWN)
        await exhaust_receives(harness)
        (message,) = await backend.queue.dead_letters(None, limit=10)
        await backend.queue.delete_dead_letter(message.id)
        await harness.dead_letters.settle_received(message, tenant=TENANT)

        await check.check_all()

        assert [rejected_change(item) for item in alerts.notices] == [("first", 1)]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_rejected_messages_are_reported_to_the_operator_tenant_only(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        check = make_tenant_health_check(harness, alerts)
        await reject(harness, UNKNOWN)

        await check.check_tenant("other")
        others = list(alerts.notices)
        await check.check_tenant(TENANT)

        assert others == []
        assert [(item.tenant, rejected_change(item)) for item in alerts.notices] == [
            (TENANT, ("first", 1))
        ]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_of_a_job_that_retention_removed_is_dropped_and_not_reported(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await complete_and_remove_job(harness)

        await reject(harness, message_body(task_id("a")))
        await make_tenant_health_check(harness, alerts).check_all()

        assert await backend.events.history(TENANT, "QUEUE#default") == []
        assert alerts.notices == []


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_dead_message_of_a_job_that_retention_removed_is_dropped_and_not_reported(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, alerts = ServiceHarness(backend), RecordingAlerts()
        await complete_and_remove_job(harness)
        await exhaust_receives(harness)

        await make_tenant_health_check(harness, alerts).check_all()
        settled = await harness.dead_letters.settle_messages()

        assert alerts.notices == []
        assert settled["dropped"] == 1
