"""Jobs: submit, add tasks, list, read, cancel, resume; tasks of all jobs, and ids by prefix."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from longshore.core.tasks.states import JobState, TaskState
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.auth import Operator, Reader, Submitter
from longshore.interfaces.rest.openapi import answers, respond, respond_with_etag
from longshore.interfaces.rest.params import (
    MAX_PAGE_SIZE,
    Body,
    Cursor,
    Limit,
    LongLimit,
    Moment,
    OptionalBody,
    RequestId,
)
from longshore.interfaces.rest.parsing import parse_model
from longshore.services import documents as d

router = APIRouter(tags=["jobs"])
_BEFORE = "The same request had been accepted before."


@router.post(
    "/jobs",
    **answers(d.AcceptedJobDocument, status=201, others={200: _BEFORE}, body=s.JobRequestDocument),
)
async def submit_job(
    operations: Submitter, document: Body, request_id: RequestId = None
) -> Response:
    """Submit a job of one task, or of many that depend on each other."""
    accepted = await operations.submit(document, request_id=request_id)
    location = {"Location": f"/v1/jobs/{accepted.job_id}"}
    return respond(accepted, 201 if accepted.created else 200, location)


@router.get("/jobs", **answers(d.JobPage))
async def list_jobs(
    operations: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Annotated[JobState | None, Query()] = None,
    name: Annotated[str | None, Query(max_length=200, description="The whole name.")] = None,
    created_from: Annotated[
        Moment | None, Query(alias="createdFrom", description="Created at this time or later.")
    ] = None,
    created_before: Annotated[
        Moment | None, Query(alias="createdBefore", description="Created before this time.")
    ] = None,
) -> Response:
    """List the jobs that match all conditions, newest first.

    A cursor stays valid when jobs are added: nothing is skipped or shown twice.
    """
    page = await operations.list_jobs(
        state=status,
        name=name,
        created_from=created_from,
        created_before=created_before,
        limit=limit,
        cursor=cursor,
    )
    return respond(page)


@router.get(
    "/jobs/{job_id}",
    **answers(d.JobDetailDocument, 404, others={304: "The job has not changed."}),
)
async def read_job(
    request: Request, operations: Reader, job_id: str, limit: Limit = MAX_PAGE_SIZE
) -> Response:
    """Read a job with its tasks: all of them, or the first hundred."""
    return respond_with_etag(request, await operations.get_job(job_id, limit=limit))


@router.get("/jobs/{job_id}/statuses", **answers(d.TaskStatusesDocument, 404))
async def read_statuses(operations: Reader, job_id: str) -> Response:
    """Read the state of every task of a job, in one answer."""
    return respond(await operations.task_statuses(job_id))


@router.get("/jobs/{job_id}/tasks", **answers(d.TaskPage, 404))
async def list_tasks(
    operations: Reader,
    job_id: str,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Annotated[TaskState | None, Query()] = None,
) -> Response:
    """List the tasks of a job, in the job's order."""
    page = await operations.list_tasks(job_id=job_id, state=status, limit=limit, cursor=cursor)
    return respond(page)


@router.get("/tasks", **answers(d.TaskPage))
async def list_all_tasks(
    operations: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Annotated[TaskState | None, Query()] = None,
) -> Response:
    """List the tasks of all jobs, newest first."""
    return respond(await operations.list_tasks(state=status, limit=limit, cursor=cursor))


@router.get("/ids", **answers(d.IdList))
async def find_ids(
    operations: Reader,
    prefix: Annotated[
        str, Query(min_length=1, max_length=300, description="The beginning of the id.")
    ],
    limit: LongLimit = 10,
) -> Response:
    """Find the ids of jobs and tasks that begin with a prefix, sorted."""
    return respond(await operations.find_ids(prefix, limit=limit))


@router.post(
    "/jobs/{job_id}/tasks",
    **answers(
        d.AddedTasksDocument,
        *(404, 409),
        status=201,
        others={200: "The same request had added them before."},
        body=s.AddTasksRequestDocument,
    ),
)
async def add_tasks(
    operations: Submitter, job_id: str, document: Body, request_id: RequestId = None
) -> Response:
    """Add tasks to a job; they may depend on its other tasks, also on completed ones."""
    added = await operations.add_tasks(job_id, document, request_id=request_id)
    return respond(added, 201 if added.created else 200)


@router.post(
    "/jobs/{job_id}/cancel",
    **answers(d.JobDocument, 404, 409, body=s.CancelRequestDocument, body_required=False),
)
async def cancel_job(operations: Operator, job_id: str, document: OptionalBody) -> Response:
    """Cancel a job with all its waiting and running tasks; results of completed tasks stay."""
    reason = parse_model(s.CancelRequestDocument, document).reason
    return respond(await operations.cancel_job(job_id, reason=reason))


@router.post(
    "/jobs/{job_id}/resume",
    **answers(d.ResumeResultDocument, 404, 409, body=s.ResumeRequestDocument, body_required=False),
)
async def resume_job(operations: Operator, job_id: str, document: OptionalBody) -> Response:
    """Run failed and cancelled tasks again; completed tasks do not run again."""
    tasks = parse_model(s.ResumeRequestDocument, document).tasks
    return respond(await operations.resume(job_id, tasks))


@router.get("/jobs/{job_id}/why", **answers(d.WhyDocument, 404))
async def explain_job(operations: Reader, job_id: str) -> Response:
    """Explain what the job waits for, and what would resolve it."""
    return respond(await operations.why(job_id))
