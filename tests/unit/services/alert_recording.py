"""Channels that record their notices, and health checks that send them."""

from datetime import timedelta
from typing import Any

from longshore.core.alerts import HealthNotice
from longshore.core.events.event import Event
from longshore.core.health import HealthPolicy, HealthReport
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.tasks import commands as c
from longshore.services.health import AlertSender, HealthCheck
from tests.unit.services.harness import APP, LEASE, REQUEST, TENANT, ServiceHarness

MINUTE = timedelta(minutes=1)


class RecordingAlerts:
    """See ``ports.alerts.Alerts``; fails with ``error`` if there is one."""

    def __init__(self, channel: str = "slack", error: BaseException | None = None) -> None:
        self.channel = channel
        self.error = error
        self.sends = 0
        self.notices: list[HealthNotice] = []

    async def send(self, notice: HealthNotice) -> None:
        self.sends += 1
        if self.error is not None:
            raise self.error
        self.notices.append(notice)

    @property
    def health_notices(self) -> list[dict[str, str]]:
        """Of each notice, what it says of each task, by its key."""
        return [health_in(notice) for notice in self.notices]


def health_in(notice: HealthNotice) -> dict[str, str]:
    problems = (*notice.urgent, *notice.warnings)
    message = {_key(task.task_id): task.health.value for task in problems}
    return message | {_key(item.task_id): "recovered" for item in notice.recovered}


def health_by_key(report: HealthReport) -> dict[str, str]:
    return {_key(task.task_id): task.health.value for task in report.tasks}


def _key(task_id: str) -> str:
    return task_id.rpartition("_")[2]


def make_health_check(
    harness: ServiceHarness,
    *channels: Any,
    every: timedelta = timedelta(minutes=5),
    thresholds: HealthPolicy | None = None,
    worker_registry: Any = None,
    **options: Any,
) -> HealthCheck:
    return HealthCheck(
        backend=harness.backend,
        worker_registry=worker_registry or harness.worker_registry,
        alert_sender=AlertSender(harness.backend, channels, **options),
        app=APP,
        every=every,
        thresholds=thresholds or HealthPolicy(),
    )


async def renew_lease(harness: ServiceHarness, key: str) -> None:
    """The task's worker says that it is alive, however long it was silent."""
    row = await harness.task(key)
    renew = c.Renew(fence=row.fence, process_id=1, lease_duration=LEASE.duration)
    await harness.transitions.apply_to_task(row.id, renew)


async def claim_with_long_lease(harness: ServiceHarness, key: str, tenant: str = TENANT) -> str:
    """Claim a task under a lease that outlasts the test; its id."""
    id_ = task_id_of(job_id_of(tenant, REQUEST), key)
    claim = c.Claim(worker_id="worker-1", process_id=1, lease_duration=timedelta(days=9))
    await harness.transitions.apply_to_task(id_, claim)
    return id_


async def health_check_events(harness: ServiceHarness, tenant: str = TENANT) -> list[Event]:
    events = await harness.backend.events.history(tenant, "SYSTEM#health-check")
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    return events
