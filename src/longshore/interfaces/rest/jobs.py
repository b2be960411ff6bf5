"""Jobs: submit, add to, list, read, cancel, resume."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from longshore.core.ids import task_id_of
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import JobState, TaskState
from longshore.interfaces import views
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import body_of, problems, tagged
from longshore.interfaces.rest.bodies import json_body, optional_json_body, shaped
from longshore.interfaces.rest.callers import Caller, Operator, Reader, Submitter
from longshore.interfaces.rest.desk import AtDesk, Desk

router = APIRouter(tags=["jobs"])
MOST_A_PAGE = 100
_LIMIT = Query(ge=1, le=MOST_A_PAGE, description="How many at most.")
_CURSOR = Query(max_length=1_000, description="`nextCursor` of the page before.")
_KEY = Header(
    alias="Idempotency-Key",
    min_length=1,
    max_length=256,
    description="The same key gives the same job, however often it is sent.",
)
Body = Annotated[Any, Depends(json_body)]
OptionalBody = Annotated[Any, Depends(optional_json_body)]
Limit = Annotated[int, _LIMIT]
Cursor = Annotated[str | None, _CURSOR]
RequestId = Annotated[str | None, _KEY]


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
) -> Any:
    """The tenant's jobs, the newest first."""
    state = JobState(status) if status else None
    page = await desk.backend.ledger.list_jobs(
        caller.tenant, state=state, limit=limit, cursor=cursor
    )
    return {"jobs": [_document(job) for job in page.items], "nextCursor": page.cursor}


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
    tasks = await _tasks(desk, caller, job_id, limit, None)
    return tagged(request, s.WholeJob.model_validate({**_document(job), **tasks}))


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
    return await _tasks(desk, caller, job_id, limit, cursor, TaskState(status) if status else None)


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
    return {**_short(added.job), "addedTasks": list(added.keys)}


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
    return _document(await desk.job(caller.tenant, job_id))


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
    ids = {task_id_of(job_id, key): key for key in keys}
    resumed = await desk.resuming.resume(job_id, list(ids), by=caller.by, tenant=caller.tenant)
    return {
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
    paused = {queue.name: queue for queue in await desk.backend.queues.paused()}
    reasons = await desk.explaining.explain(tenant, id_, paused=paused)
    return {"reasons": [views.reason_document(reason) for reason in reasons]}


async def _tasks(
    desk: Desk,
    caller: Caller,
    job_id: str,
    limit: int,
    cursor: str | None,
    state: TaskState | None = None,
) -> dict[str, Any]:
    page = await desk.backend.ledger.list_tasks(
        caller.tenant, job_id=job_id, state=state, limit=limit, cursor=cursor
    )
    tasks = [await task_document(desk, row) for row in page.items]
    return {"tasks": tasks, "nextCursor": page.cursor}


async def task_document(desk: Desk, row: TaskRow) -> dict[str, Any]:
    """A task with what was last told of it."""
    last = await desk.backend.events.latest(row.spec.tenant, f"TASK#{row.id}")
    return views.task_document(row, last_event=last)


def _document(job: JobRow) -> dict[str, Any]:
    return views.job_document(job, exit_code=None)


def _short(job: JobRow) -> dict[str, Any]:
    return {"jobId": job.id, "status": job.state.value, "totalTasks": job.total}
