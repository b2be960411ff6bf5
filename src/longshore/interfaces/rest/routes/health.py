"""Health of running tasks: of one, and of all."""

from __future__ import annotations

from fastapi import APIRouter, Response

from longshore.core.ids import task_id_of
from longshore.interfaces.rest.auth import Operator, Reader
from longshore.interfaces.rest.openapi import answers, respond
from longshore.services import documents as d

router = APIRouter(tags=["health"])


@router.get("/health-check", **answers(d.HealthCheckDocument, 404))
async def read_last_health_check(operations: Reader) -> Response:
    """Read the latest health check of the tenant's running tasks.

    Earlier ones are events of `SYSTEM#health-check`.
    """
    return respond(await operations.last_health_check())


@router.post("/health-check", **answers(d.HealthCheckDocument))
async def run_health_check(operations: Operator) -> Response:
    """Check all running tasks of the tenant now.

    As in a scheduled check, the result is recorded as an event, and new problems are sent as
    alerts.
    """
    return respond(await operations.run_health_check())


@router.get("/jobs/{job_id}/tasks/{task_id}/health", **answers(d.TaskHealthDocument, 404))
async def read_task_health(operations: Reader, job_id: str, task_id: str) -> Response:
    """Read the health of a task now: how long it has run, and how long it was silent.

    Nothing is recorded and no alert is sent.
    """
    return respond(await operations.task_health(task_id_of(job_id, task_id)))
