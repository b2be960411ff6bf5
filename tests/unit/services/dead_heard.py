"""Tasks that die, health checks that notice, and what people hear of it."""

from typing import Any

from longshore.core.alerting import Notice
from longshore.core.failures import ErrorCategory
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.piles import Pile
from longshore.services.alerting import Alerting
from longshore.services.health_check import HealthCheck, HealthCheckPolicy
from tests.unit.services.stage import APP, SECOND, TENANT, Stage, a_task


def a_check(stage: Stage, *channels: Any, tenant: str = TENANT, **alerting: Any) -> HealthCheck:
    return HealthCheck(
        backend=stage.backend,
        presence=stage.presence,
        alerting=Alerting(stage.backend, channels, **alerting),
        app=APP,
        policy=HealthCheckPolicy(),
        tenant=tenant,
    )


async def dies(
    stage: Stage,
    key: str = "a",
    category: ErrorCategory = ErrorCategory.VALIDATION,
    *,
    tenant: str = TENANT,
    **fields: Any,
) -> str:
    """A task of a job of its own fails for good; its id."""
    await stage.producer.submit(tenant, key, {"tasks": [a_task(key, **fields)]})
    id_ = task_id_of(job_id_of(tenant, key), key)
    stage.clock.advance(SECOND)
    await stage.fail(id_, category)
    return id_


async def replayed(stage: Stage, *ids: str) -> None:
    await stage.dead_letters.replay(TENANT, ids, by="ann")


def said(notice: Notice) -> tuple[str, int] | None:
    """What a notice says of dead letters: what is new, and how many there are."""
    return (notice.dead.news.value, notice.dead.found.at_least) if notice.dead else None


def counted(notice: Notice) -> Pile:
    assert notice.dead is not None
    return notice.dead.found
