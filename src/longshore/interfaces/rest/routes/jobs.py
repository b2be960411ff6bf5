"""Jobs, their tasks and their budgets: submit, list, read, cancel, resume, review."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime

from longshore.core.budgets import Budget
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import LongshoreError
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.auth import Admin, Operator, Reader, Submitter
from longshore.interfaces.rest.errors import ApiProblem, api_problem_of, problem_document
from longshore.interfaces.rest.openapi import (
    answers,
    operation_route,
    problem_responses,
    respond,
    respond_with_etag,
)
from longshore.interfaces.rest.requests import (
    MAX_PAGE_SIZE,
    Body,
    Cursor,
    JobId,
    Jobs,
    Limit,
    LongLimit,
    OptionalBody,
    RequestId,
    TaskId,
    parse_model,
    submit_off_loop,
)
from longshore.services import documents as d
from longshore.services.app import Application
from longshore.services.submit import Submission

router = APIRouter(tags=["jobs"])
_BEFORE = "The same request had been accepted before."


@router.post(
    "/jobs",
    **answers(d.AcceptedJobDocument, status=201, others={200: _BEFORE}, body=s.JobRequestDocument),
)
async def submit_job(
    request: Request, operations: Submitter, document: Jobs, request_id: RequestId = None
) -> Response:
    """Submit a job of one task, or of many that depend on each other."""
    work = operations.submit(document, request_id=request_id)
    accepted = await submit_off_loop(request, operations, work)
    location = {"Location": f"/v1/jobs/{accepted.job_id}"}
    return respond(accepted, 201 if accepted.created else 200, location)


@router.post("/jobs/batch", **answers(d.BatchAnswersDocument, body=s.JobBatchDocument))
async def submit_jobs(request: Request, operations: Submitter, document: Jobs) -> Response:
    """Submit many jobs, each accepted whole or refused. Every job has an answer, in their order.

    The same batch can be sent again: a job with a request id is accepted once.
    """
    batch = parse_model(s.JobBatchDocument, document)
    submissions = [Submission(item.job, item.request_id) for item in batch.jobs]
    work = operations.submit_many(submissions)
    results = await submit_off_loop(request, operations, work)
    answers = [_batch_answer(request.state.request_id, result) for result in results]
    return respond(d.BatchAnswersDocument(answers=answers))


def _batch_answer(
    request_id: str, result: d.AcceptedJobDocument | LongshoreError
) -> d.BatchAnswerDocument:
    if not isinstance(result, LongshoreError):
        return d.BatchAnswerDocument(job=result)
    if (problem := api_problem_of(result)) is None:
        raise result  # unexpected: the middleware answers
    return d.BatchAnswerDocument(problem=problem_document(request_id, problem))


@operation_route(router, Application.prune_jobs, 400, body=s.PruneRequestDocument)
def prune_jobs(operations: Admin, document: Body) -> None:
    """Remove the tenant's jobs that ended so long ago, with events, output, results and artifacts.

    A call removes up to about a thousand jobs, and says whether to call again. The request id of a
    removed job is remembered for as long again: a submit with it is refused.
    """


@operation_route(router, Application.list_jobs)
def list_jobs(
    operations: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    state: Annotated[JobState | None, Query(alias="status")] = None,
    name: Annotated[str | None, Query(max_length=200, description="The whole name.")] = None,
    created_from: Annotated[
        AwareDatetime | None,
        Query(alias="createdFrom", description="Created at this time or later."),
    ] = None,
    created_before: Annotated[
        AwareDatetime | None, Query(alias="createdBefore", description="Created before this time.")
    ] = None,
) -> None:
    """List the jobs that match all conditions, newest first.

    A cursor stays valid when jobs are added: nothing is skipped or shown twice.
    """


@router.get(
    "/jobs/{job_id}",
    **answers(d.JobDetailDocument, 404, others={304: "The job has not changed."}),
)
async def read_job(
    request: Request, operations: Reader, job_id: str, limit: Limit = MAX_PAGE_SIZE
) -> Response:
    """Read a job with its tasks: all of them, or the first hundred."""
    return respond_with_etag(request, await operations.get_job(job_id, limit=limit))


@operation_route(router, Application.task_statuses, 404)
def read_statuses(operations: Reader, job_id: JobId) -> None:
    """Read the state of every task of a job, in one answer."""


@operation_route(router, Application.list_tasks, 404)
def list_tasks(
    operations: Reader,
    job_id: JobId,
    limit: Limit = 50,
    cursor: Cursor = None,
    state: Annotated[TaskState | None, Query(alias="status")] = None,
) -> None:
    """List the tasks of a job, in the job's order."""


@operation_route(router, Application.list_tasks)
def list_all_tasks(
    operations: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    state: Annotated[TaskState | None, Query(alias="status")] = None,
) -> None:
    """List the tasks of all jobs, newest first."""


@operation_route(router, Application.find_ids)
def find_ids(
    operations: Reader,
    prefix: Annotated[
        str, Query(min_length=1, max_length=300, description="The beginning of the id.")
    ],
    limit: LongLimit = 10,
) -> None:
    """Find the ids of jobs and tasks that begin with a prefix, sorted."""


@operation_route(
    *(router, Application.add_tasks, 404, 409),
    status=201,
    others={200: "The same request had added them before."},
    body=s.AddTasksRequestDocument,
)
def add_tasks(
    request: Request,
    operations: Submitter,
    job_id: JobId,
    document: Jobs,
    request_id: RequestId = None,
) -> None:
    """Add tasks to a job; they may depend on its other tasks, also on completed ones."""


@operation_route(router, Application.cancel_job, 404, 409, body=s.CancelRequestDocument)
def cancel_job(operations: Operator, job_id: JobId, document: OptionalBody) -> None:
    """Cancel a job with all its waiting and running tasks; results of completed tasks stay."""


@operation_route(router, Application.resume, 404, 409, body=s.ResumeRequestDocument)
def resume_job(operations: Operator, job_id: JobId, document: OptionalBody) -> None:
    """Run failed and cancelled tasks again; completed tasks do not run again."""


@operation_route(router, Application.why, 404)
def explain_job(operations: Reader, entity_id: JobId) -> None:
    """Explain what the job waits for, and what would resolve it."""


# One task

task_router = APIRouter(tags=["tasks"])


@operation_route(task_router, Application.get_task, 404)
def read_task(operations: Reader, task_id: TaskId) -> None:
    """Read a task."""


@operation_route(task_router, Application.get_result, 404, 409)
def read_result(operations: Reader, task_id: TaskId) -> None:
    """Read the result that the task hands to its dependents."""


@operation_route(task_router, Application.list_artifacts, 404)
def list_artifacts(
    operations: Reader,
    task_id: TaskId,
    limit: LongLimit = 100,
    after: Annotated[
        str, Query(max_length=1_024, description="`name` of the last file that was read.")
    ] = "",
) -> None:
    """List the files that the attempts of the task stored, and the result and a summary of the
    latest attempt, `artifacts/task-result.json` and `logs/summary.log`."""


@task_router.get(
    "/jobs/{job_id}/tasks/{task_id}/artifacts/{name:path}",
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


@operation_route(task_router, Application.cancel_task, 404, 409, body=s.CancelRequestDocument)
def cancel_task(operations: Operator, task_id: TaskId, document: OptionalBody) -> None:
    """Cancel a task; a running one is `processing` until its worker has stopped it."""


@operation_route(task_router, Application.approve, 404, 409, body=s.ApproveRequestDocument)
def approve_task(operations: Operator, task_id: TaskId, document: OptionalBody) -> None:
    """Approve the result in review: the task completes, and its dependents continue."""


@operation_route(task_router, Application.revise, 404, 409, body=s.ReviseRequestDocument)
def revise_task(operations: Operator, task_id: TaskId, document: Body) -> None:
    """Send the result in review back: a new attempt gets it, and the feedback."""


@operation_route(task_router, Application.why, 404)
def explain_task(operations: Reader, entity_id: TaskId) -> None:
    """Explain what the task waits for: the whole chain, and what would resolve it."""


# Budgets

budget_router = APIRouter(tags=["budgets"])


async def _read_amount(document: Body) -> Budget:
    request = parse_model(s.AddBudgetRequestDocument, document)
    amount = Budget(usd=request.usd, tokens=request.tokens, minutes=request.minutes)
    if not amount:
        raise ApiProblem(422, "invalid", "nothing is added: expected usd, tokens or minutes")
    return amount


AddedAmount = Annotated[Budget, Depends(_read_amount)]


@operation_route(budget_router, Application.get_budget)
def read_daily_budget(operations: Reader) -> None:
    """Read what the tenant's agents may spend today (UTC), and what they have spent."""


@operation_route(budget_router, Application.add_budget, 404, 409, body=s.AddBudgetRequestDocument)
def add_daily_budget(operations: Admin, amount: AddedAmount, request_id: RequestId = None) -> None:
    """Add to today's budget of the tenant; tasks that are parked because of it continue.

    Needs a key with the scope `admin`.
    """


@operation_route(budget_router, Application.get_budget, 404)
def read_job_budget(operations: Reader, entity_id: JobId) -> None:
    """Read what all tasks of a job together may spend, and have spent."""


@operation_route(budget_router, Application.add_budget, 404, 409, body=s.AddBudgetRequestDocument)
def add_job_budget(
    operations: Operator, entity_id: JobId, amount: AddedAmount, request_id: RequestId = None
) -> None:
    """Add to the budget of a job; its tasks that are parked because of it continue."""


@operation_route(budget_router, Application.get_budget, 404)
def read_task_budget(operations: Reader, entity_id: TaskId) -> None:
    """Read what a task may spend in all its attempts, and has spent."""


@operation_route(budget_router, Application.add_budget, 404, 409, body=s.AddBudgetRequestDocument)
def add_task_budget(
    operations: Operator, entity_id: TaskId, amount: AddedAmount, request_id: RequestId = None
) -> None:
    """Add to the budget of a task; if it is parked because of it, it continues."""
