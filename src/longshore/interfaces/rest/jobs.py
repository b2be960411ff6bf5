"""Jobs: submit, add to, list, read, cancel, resume."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from longshore.core.ids import task_id_of
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import JobState, TaskState
from longshore.errors import CommandRefused
from longshore.interfaces import views
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import body_of, problems, tagged
from longshore.interfaces.rest.bodies import shaped
from longshore.interfaces.rest.callers import Operator, Reader, Submitter
from longshore.interfaces.rest.desk import AtDesk, Desk
from longshore.interfaces.rest.params import (
    MOST_A_PAGE,
    Body,
    Cursor,
    Limit,
    Moment,
    OptionalBody,
    RequestId,
)

router = APIRouter(tags=["jobs"])


@router.post(
    "/jobs",
    status_code=201,
    response_model=s.AcceptedDocument,
    responses={
        **problems(413, 415),
        200: {"description": "It had been accepted before.", "model": s.AcceptedDocument},
    },
    openapi_extra=body_of(s.JobRequestDocument),
)
async def submit(
    desk: AtDesk, caller: Submitter, document: Body, response: Response, key: RequestId = None
) -> Any:
    """Submit a job of one task or of many that depend on each other."""
    accepted = await desk.producer.submit(caller.tenant, key or secrets.token_urlsafe(16), document)
    response.status_code = 201 if accepted.created else 200
    response.headers["Location"] = f"/v1/jobs/{accepted.job.id}"
    return {
        **_short(accepted.job),
        "rootTasks": list(accepted.roots),
        "createdAt": accepted.job.spec.created_at,
    }


@router.get("/jobs", response_model=s.JobPage, responses=problems())
async def list_jobs(
    desk: AtDesk,
    caller: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Annotated[s.JobStatus | None, Query()] = None,
    name: Annotated[str | None, Query(max_length=200, description="The whole name.")] = None,
    created_from: Annotated[
        Moment | None, Query(alias="createdFrom", description="Those from then on.")
    ] = None,
    created_before: Annotated[
        Moment | None, Query(alias="createdBefore", description="Those from before then.")
    ] = None,
) -> Any:
    """The tenant's jobs to which everything applies that is asked, the newest first.

    A cursor names a place and not a number: jobs that are added meanwhile shift nothing.
    """
    page = await desk.backend.ledger.list_jobs(
        caller.tenant,
        state=JobState(status) if status else None,
        name=name,
        created_from=created_from,
        created_before=created_before,
        limit=limit,
        cursor=cursor,
    )
    return {"jobs": [await _document(desk, job) for job in page.items], "cursor": page.cursor}


@router.get(
    "/jobs/{job_id}",
    response_model=s.WholeJob,
    responses={**problems(404), 304: {"description": "It is as the client has it."}},
)
async def read(
    request: Request, desk: AtDesk, caller: Reader, job_id: str, limit: Limit = MOST_A_PAGE
) -> Any:
    """A job with its tasks: all of them, or the first hundred."""
    job = await desk.job(caller.tenant, job_id)
    page = await desk.backend.ledger.list_tasks(caller.tenant, job_id=job_id, limit=limit)
    states = {row.spec.key: row.state for row in page.items}
    if page.cursor is not None:
        states = await desk.backend.ledger.task_states(job_id)
    document = {
        **views.job_document(job, exit_code=views.job_exit_code(job, page.items)),
        "states": views.counts_of(states),
        "tasks": [await task_document(desk, row) for row in page.items],
        "cursor": page.cursor,
    }
    return tagged(request, s.WholeJob.model_validate(document))


@router.get("/jobs/{job_id}/tasks", response_model=s.TaskPage, responses=problems(404))
async def list_tasks(
    desk: AtDesk,
    caller: Reader,
    job_id: str,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Annotated[s.TaskStatus | None, Query()] = None,
) -> Any:
    """The tasks of a job, in their order."""
    await desk.job(caller.tenant, job_id)
    state = TaskState(status) if status else None
    return await task_page(desk, caller.tenant, job_id, limit, cursor, state)


@router.post(
    "/jobs/{job_id}/tasks",
    status_code=201,
    response_model=s.AddedDocument,
    responses={
        **problems(404, 409, 413, 415),
        200: {"description": "They had been added before.", "model": s.AddedDocument},
    },
    openapi_extra=body_of(s.TasksDocument),
)
async def add(
    desk: AtDesk,
    caller: Submitter,
    job_id: str,
    document: Body,
    response: Response,
    key: RequestId = None,
) -> Any:
    """Add tasks to a job under way; they may depend on old ones, also on those that are done."""
    request_id = key or secrets.token_urlsafe(16)
    added = await desk.adding.add(caller.tenant, job_id, request_id, document)
    response.status_code = 201 if added.created else 200
    return {**_short(added.job), "addedTasks": list(added.keys), "created": added.created}


@router.post(
    "/jobs/{job_id}/cancel",
    response_model=s.JobDocument,
    responses=problems(404, 409, 413, 415),
    openapi_extra=body_of(s.CancelDocument, required=False),
)
async def cancel(desk: AtDesk, caller: Operator, job_id: str, document: OptionalBody) -> Any:
    """End a job with all that runs or would run; what is done stays done."""
    wish = shaped(s.CancelDocument, document)
    await desk.cancelling.cancel(job_id, by=caller.by, reason=wish.reason, tenant=caller.tenant)
    return await _document(desk, await desk.job(caller.tenant, job_id))


@router.post(
    "/jobs/{job_id}/resume",
    response_model=s.ResumedDocument,
    responses=problems(404, 409, 413, 415),
    openapi_extra=body_of(s.ResumeDocument, required=False),
)
async def resume(desk: AtDesk, caller: Operator, job_id: str, document: OptionalBody) -> Any:
    """Run what failed or was cancelled again; what completed is not run again."""
    wish = shaped(s.ResumeDocument, document)
    await desk.job(caller.tenant, job_id)
    keys = wish.tasks
    if keys is None:
        states = await desk.backend.ledger.task_states(job_id)
        over = (TaskState.FAILED, TaskState.CANCELLED)
        keys = [key for key, state in states.items() if state in over]
        if not keys:
            raise CommandRefused(job_id, "nothing of it has failed or was cancelled")
    ids = {task_id_of(job_id, key): key for key in keys}
    resumed = await desk.resuming.resume(job_id, list(ids), by=caller.by, tenant=caller.tenant)
    return {
        "jobId": job_id,
        "round": resumed.round,
        "tasks": [ids[task_id] for task_id in resumed.tasks],
        "refused": {ids[task_id]: why for task_id, why in resumed.refused.items()},
    }


@router.get("/jobs/{job_id}/why", response_model=s.WhyDocument, responses=problems(404))
async def why(desk: AtDesk, caller: Reader, job_id: str) -> Any:
    """What the job waits for, and what would move it on."""
    return await why_document(desk, caller.tenant, job_id)


async def why_document(desk: Desk, tenant: str, id_: str) -> dict[str, Any]:
    """The reasons, from the thing asked about to the root of it."""
    paused = await desk.pausing.paused()
    reasons = await desk.explaining.explain(tenant, id_, paused=paused)
    return {"reasons": [views.reason_document(reason) for reason in reasons]}


async def task_page(
    desk: Desk,
    tenant: str,
    job_id: str | None,
    limit: int,
    cursor: str | None,
    state: TaskState | None,
) -> dict[str, Any]:
    """A page of tasks, of one job or of all."""
    page = await desk.backend.ledger.list_tasks(
        tenant, job_id=job_id, state=state, limit=limit, cursor=cursor
    )
    tasks = [await task_document(desk, row) for row in page.items]
    return {"tasks": tasks, "cursor": page.cursor}


async def task_document(desk: Desk, row: TaskRow) -> dict[str, Any]:
    """A task with what was last told of it."""
    last = await desk.backend.events.latest(row.spec.tenant, f"TASK#{row.id}")
    return views.task_document(row, last_event=last)


async def _document(desk: Desk, job: JobRow) -> dict[str, Any]:
    tasks: Sequence[TaskRow] = ()
    if job.total == 1 and job.state.terminal:
        ledger = desk.backend.ledger
        tasks = (await ledger.list_tasks(job.spec.tenant, job_id=job.id, limit=1)).items
    return views.job_document(job, exit_code=views.job_exit_code(job, tasks))


def _short(job: JobRow) -> dict[str, Any]:
    return {"jobId": job.id, "status": job.state.value, "totalTasks": job.total}
