"""Jobs, their tasks and their budgets: submit, list, read, cancel, resume, review."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime

from longshore.core.budgets import Budget
from longshore.core.maximums import FEEDBACK_LIMIT_CHARACTERS, comment_problem
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import LongshoreError, Problem
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.auth import Admin, Operator, Reader, Submitter
from longshore.interfaces.rest.errors import ApiProblem, api_problem_of, problem_document
from longshore.interfaces.rest.openapi import (
    answers,
    problem_responses,
    respond,
    respond_with_etag,
)
from longshore.interfaces.rest.requests import (
    MAX_PAGE_SIZE,
    Body,
    Cursor,
    Limit,
    LongLimit,
    OptionalBody,
    RequestId,
    TaskId,
    parse_model,
)
from longshore.services import documents as d
from longshore.services.submit import Submission

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


@router.post("/jobs/batch", **answers(d.BatchAnswersDocument, body=s.JobBatchDocument))
async def submit_jobs(request: Request, operations: Submitter, document: Body) -> Response:
    """Submit many jobs, each accepted whole or refused. Every job has an answer, in their order.

    The same batch can be sent again: a job with a request id is accepted once.
    """
    batch = parse_model(s.JobBatchDocument, document)
    results = await operations.submit_many(
        [Submission(item.job, item.request_id) for item in batch.jobs]
    )
    id_ = request.state.request_id
    return respond(d.BatchAnswersDocument(answers=[_batch_answer(id_, item) for item in results]))


def _batch_answer(
    request_id: str, result: d.AcceptedJobDocument | LongshoreError
) -> d.BatchAnswerDocument:
    if not isinstance(result, LongshoreError):
        return d.BatchAnswerDocument(job=result)
    if (problem := api_problem_of(result)) is None:
        raise result  # unexpected: the middleware answers
    return d.BatchAnswerDocument(problem=problem_document(request_id, problem))


@router.get("/jobs", **answers(d.JobPage))
async def list_jobs(
    operations: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Annotated[JobState | None, Query()] = None,
    name: Annotated[str | None, Query(max_length=200, description="The whole name.")] = None,
    created_from: Annotated[
        AwareDatetime | None,
        Query(alias="createdFrom", description="Created at this time or later."),
    ] = None,
    created_before: Annotated[
        AwareDatetime | None, Query(alias="createdBefore", description="Created before this time.")
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


# One task

task_router = APIRouter(prefix="/jobs/{job_id}/tasks/{task_id}", tags=["tasks"])


@task_router.get("", **answers(d.TaskDocument, 404))
async def read_task(operations: Reader, task: TaskId) -> Response:
    """Read a task."""
    return respond(await operations.get_task(task))


@task_router.get("/result", **answers(d.ResultDocument, 404, 409))
async def read_result(operations: Reader, task: TaskId) -> Response:
    """Read the result that the task hands to its dependents."""
    return respond(await operations.get_result(task))


@task_router.get("/artifacts", **answers(d.ArtifactList, 404))
async def list_artifacts(
    operations: Reader,
    task: TaskId,
    limit: LongLimit = 100,
    after: Annotated[
        str, Query(max_length=1_024, description="`name` of the last file that was read.")
    ] = "",
) -> Response:
    """List the files that the attempts of the task stored."""
    return respond(await operations.list_artifacts(task, limit=limit, after=after))


@task_router.get(
    "/artifacts/{name:path}",
    response_class=StreamingResponse,
    responses={
        **problem_responses(404),
        200: {
            "description": "The file.",
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
        },
    },
)
async def read_artifact(operations: Reader, task: TaskId, name: str) -> StreamingResponse:
    """Download one of these files."""
    artifact = await operations.open_artifact(task, name)
    # A browser must not run the file.
    headers = {"Content-Length": str(artifact.size), "Content-Disposition": "attachment"}
    return StreamingResponse(
        artifact.chunks, headers=headers, media_type="application/octet-stream"
    )


@task_router.post(
    "/cancel",
    **answers(d.TaskDocument, 404, 409, body=s.CancelRequestDocument, body_required=False),
)
async def cancel_task(operations: Operator, task: TaskId, document: OptionalBody) -> Response:
    """Cancel a task; a running one is `processing` until its worker has stopped it."""
    reason = parse_model(s.CancelRequestDocument, document).reason
    return respond(await operations.cancel_task(task, reason=reason))


@task_router.post(
    "/approve",
    **answers(d.TaskDocument, 404, 409, body=s.ApproveRequestDocument, body_required=False),
)
async def approve_task(operations: Operator, task: TaskId, document: OptionalBody) -> Response:
    """Approve the result in review: the task completes, and its dependents continue."""
    attempt = parse_model(s.ApproveRequestDocument, document).attempt
    return respond(await operations.approve(task, attempt=attempt))


@task_router.post(
    "/revise", **answers(d.RevisedTaskDocument, 404, 409, body=s.ReviseRequestDocument)
)
async def revise_task(operations: Operator, task: TaskId, document: Body) -> Response:
    """Send the result in review back: a new attempt gets it, and the feedback."""
    request = parse_model(s.ReviseRequestDocument, document)
    problem = comment_problem(request.feedback, limit=FEEDBACK_LIMIT_CHARACTERS)
    if problem is not None:
        errors = [Problem("feedback", problem)]
        raise ApiProblem(422, "invalid", "the request has problems", errors)
    return respond(await operations.revise(task, request.feedback, attempt=request.attempt))


@task_router.get("/why", **answers(d.WhyDocument, 404))
async def explain_task(operations: Reader, task: TaskId) -> Response:
    """Explain what the task waits for: the whole chain, and what would resolve it."""
    return respond(await operations.why(task))


# Budgets

budget_router = APIRouter(tags=["budgets"])
_ADD_ROUTE = answers(d.BudgetStatusDocument, 404, 409, body=s.AddBudgetRequestDocument)


async def _read_amount(document: Body) -> Budget:
    request = parse_model(s.AddBudgetRequestDocument, document)
    amount = Budget(usd=request.usd, tokens=request.tokens, minutes=request.minutes)
    if not amount:
        raise ApiProblem(422, "invalid", "nothing is added: expected usd, tokens or minutes")
    return amount


AddedAmount = Annotated[Budget, Depends(_read_amount)]


@budget_router.get("/budget", **answers(d.BudgetStatusDocument))
async def read_daily_budget(operations: Reader) -> Response:
    """Read what the tenant's agents may spend today (UTC), and what they have spent."""
    return respond(await operations.get_budget())


@budget_router.post("/budget", **_ADD_ROUTE)
async def add_daily_budget(
    operations: Admin, amount: AddedAmount, request_id: RequestId = None
) -> Response:
    """Add to today's budget of the tenant; tasks that are parked because of it continue.

    Needs a key with the scope `admin`.
    """
    return respond(await operations.add_budget(None, amount, request_id=request_id))


@budget_router.get("/jobs/{job_id}/budget", **answers(d.BudgetStatusDocument, 404))
async def read_job_budget(operations: Reader, job_id: str) -> Response:
    """Read what all tasks of a job together may spend, and have spent."""
    return respond(await operations.get_budget(job_id))


@budget_router.post("/jobs/{job_id}/budget", **_ADD_ROUTE)
async def add_job_budget(
    operations: Operator, job_id: str, amount: AddedAmount, request_id: RequestId = None
) -> Response:
    """Add to the budget of a job; its tasks that are parked because of it continue."""
    return respond(await operations.add_budget(job_id, amount, request_id=request_id))


@budget_router.get("/jobs/{job_id}/tasks/{task_id}/budget", **answers(d.BudgetStatusDocument, 404))
async def read_task_budget(operations: Reader, task: TaskId) -> Response:
    """Read what a task may spend in all its attempts, and has spent."""
    return respond(await operations.get_budget(task))


@budget_router.post("/jobs/{job_id}/tasks/{task_id}/budget", **_ADD_ROUTE)
async def add_task_budget(
    operations: Operator,
    task: TaskId,
    amount: AddedAmount,
    request_id: RequestId = None,
) -> Response:
    """Add to the budget of a task; if it is parked because of it, it continues."""
    return respond(await operations.add_budget(task, amount, request_id=request_id))
