"""Tasks that die, health checks that detect it, and the alerts about it."""

from collections.abc import Sequence
from typing import Any

from longshore.core.alerts import Backlog, BacklogKind, HealthNotice
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.tasks.failures import ErrorCategory
from longshore.services.health import AlertSender, HealthCheck
from tests.unit.services.harness import APP, SECOND, TENANT, ServiceHarness, make_task


def make_tenant_health_check(
    harness: ServiceHarness,
    *channels: Any,
    tenant: str = TENANT,
    queues: Sequence[str] = ("default",),
    **alerting: Any,
) -> HealthCheck:
    return HealthCheck(
        backend=harness.backend,
        worker_registry=harness.worker_registry,
        alert_sender=AlertSender(harness.backend, channels, **alerting),
        app=APP,
        tenant=tenant,
        queues=queues,
    )


async def fail_task(
    harness: ServiceHarness,
    key: str = "a",
    category: ErrorCategory = ErrorCategory.VALIDATION,
    *,
    tenant: str = TENANT,
    **fields: Any,
) -> str:
    """A task of a job of its own fails for good; its id."""
    await harness.producer.submit(tenant, key, {"tasks": [make_task(key, **fields)]})
    id_ = task_id_of(job_id_of(tenant, key), key)
    harness.clock.advance(SECOND)
    await harness.fail(id_, category)
    return id_


async def replay(harness: ServiceHarness, *ids: str) -> None:
    await harness.dead_letters.replay(TENANT, ids, by="ann")


def dead_letter_change(notice: HealthNotice) -> tuple[str, int] | None:
    """What a notice says of dead letters: what is new, and how many there are."""
    dead = notice.backlogs.get(BacklogKind.DEAD_LETTERS)
    return (dead.change.value, dead.backlog.minimum_count) if dead else None


def dead_letter_backlog(notice: HealthNotice) -> Backlog:
    return notice.backlogs[BacklogKind.DEAD_LETTERS].backlog
