"""Channels that remember what they were told, and health checks that tell them."""

from datetime import timedelta
from typing import Any

from longshore.core import commands as c
from longshore.core.alerting import Notice
from longshore.core.events.event import Event
from longshore.core.health import HealthReport
from longshore.core.ids import job_id_of, task_id_of
from longshore.services.alerting import Alerting
from longshore.services.health_check import HealthCheck, HealthCheckPolicy
from tests.unit.services.stage import APP, LEASE, REQUEST, TENANT, Stage

MINUTE = timedelta(minutes=1)


class RecordingAlerts:
    """See ``ports.alerts.Alerts``; fails with ``error`` if there is one."""

    def __init__(self, channel: str = "slack", error: BaseException | None = None) -> None:
        self.channel = channel
        self.error = error
        self.tried = 0
        self.notices: list[Notice] = []

    async def send(self, notice: Notice) -> None:
        self.tried += 1
        if self.error is not None:
            raise self.error
        self.notices.append(notice)

    @property
    def heard(self) -> list[dict[str, str]]:
        """Of each notice, what it says of each task, by its key."""
        return [heard_in(notice) for notice in self.notices]


def heard_in(notice: Notice) -> dict[str, str]:
    problems = (*notice.urgent, *notice.warnings)
    said = {_key(task.task_id): task.health.value for task in problems}
    return said | {_key(one.task_id): "recovered" for one in notice.recovered}


def healths(report: HealthReport) -> dict[str, str]:
    return {_key(task.task_id): task.health.value for task in report.tasks}


def _key(task_id: str) -> str:
    return task_id.rpartition("_")[2]


def a_health_check(
    stage: Stage,
    *channels: Any,
    policy: HealthCheckPolicy | None = None,
    presence: Any = None,
    **alerting: Any,
) -> HealthCheck:
    return HealthCheck(
        backend=stage.backend,
        presence=presence or stage.presence,
        alerting=Alerting(stage.backend, channels, **alerting),
        app=APP,
        policy=policy or HealthCheckPolicy(),
    )


async def beat(stage: Stage, key: str) -> None:
    """The task's worker says that it is alive, however long it was silent."""
    row = await stage.task(key)
    renew = c.Renew(fence=row.fence, process_id=1, lasts=LEASE.lasts)
    await stage.transitions.task(row.id, renew)


async def claim_for_long(stage: Stage, key: str, tenant: str = TENANT) -> str:
    """Claim a task under a lease that outlasts the story; its id."""
    id_ = task_id_of(job_id_of(tenant, REQUEST), key)
    claim = c.Claim(worker_id="worker-1", process_id=1, lasts=timedelta(days=9))
    await stage.transitions.task(id_, claim)
    return id_


async def checks_told(stage: Stage, tenant: str = TENANT) -> list[Event]:
    events = await stage.backend.events.history(tenant, "SYSTEM#health-check")
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    return events
