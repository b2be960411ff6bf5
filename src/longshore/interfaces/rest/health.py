"""Health of what runs: of one task, of all; H1 and H2 by hand."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from longshore.core.events.codec import properties_of
from longshore.core.events.types import TaskHealthCheck
from longshore.errors import NotFound
from longshore.interfaces import views
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import problems
from longshore.interfaces.rest.callers import Operator, Reader
from longshore.interfaces.rest.desk import AtDesk
from longshore.interfaces.rest.found import FoundTask
from longshore.services.health_check import ENTITY_ID

router = APIRouter(tags=["health"])
_ENTITY = f"{TaskHealthCheck.ENTITY.value}#{ENTITY_ID}"


@router.get("/health-check", response_model=s.HealthCheckDocument, responses=problems(404))
async def last_check(desk: AtDesk, caller: Reader) -> Any:
    """What the last check of the tenant's running tasks found, by the clock or by hand.

    Earlier ones are events of `SYSTEM#health-check`.
    """
    event = await desk.backend.events.latest(caller.tenant, _ENTITY)
    if event is None:
        raise NotFound("health check", caller.tenant)
    return {**await desk.documents.whole(properties_of(event)), "checkedAt": event.at}


@router.post("/health-check", response_model=s.HealthCheckDocument, responses=problems())
async def check_now(desk: AtDesk, caller: Operator) -> Any:
    """Check everything of the tenant that runs now.

    As when the clock does it: history is told, and people if something is wrong and they do not
    know it yet.
    """
    report = await desk.health_check.check(caller.tenant)
    return views.health_check_document(report.event(), report.at)


@router.get(
    "/jobs/{job_id}/tasks/{task_id}/health",
    response_model=s.TaskHealthDocument,
    responses=problems(404),
)
async def read_health(desk: AtDesk, row: FoundTask) -> Any:
    """Whether a running task beats its heart, and for how long it has run; nobody else is told."""
    found = await desk.health_check.check_one(row.spec.tenant, row.id)
    return views.task_health_document(row, found)
