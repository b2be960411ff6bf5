"""One task: read it, its result and its artifacts; cancel, approve and revise it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from longshore.core.ids import task_id_of
from longshore.core.maximums import FEEDBACK_LIMIT_CHARACTERS, comment_problem
from longshore.errors import Problem
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.auth import Operator, Reader
from longshore.interfaces.rest.errors import ApiProblem
from longshore.interfaces.rest.openapi import answers, problem_responses, respond
from longshore.interfaces.rest.params import Body, LongLimit, OptionalBody
from longshore.interfaces.rest.parsing import parse_model
from longshore.services import documents as d

router = APIRouter(prefix="/jobs/{job_id}/tasks/{task_id}", tags=["tasks"])


@router.get("", **answers(d.TaskDocument, 404))
async def read_task(operations: Reader, job_id: str, task_id: str) -> Response:
    """Read a task."""
    return respond(await operations.get_task(task_id_of(job_id, task_id)))


@router.get("/result", **answers(d.ResultDocument, 404, 409))
async def read_result(operations: Reader, job_id: str, task_id: str) -> Response:
    """Read the result that the task hands to its dependents."""
    return respond(await operations.get_result(task_id_of(job_id, task_id)))


@router.get("/artifacts", **answers(d.ArtifactList, 404))
async def list_artifacts(
    operations: Reader,
    job_id: str,
    task_id: str,
    limit: LongLimit = 100,
    after: Annotated[
        str, Query(max_length=1_024, description="`name` of the last file that was read.")
    ] = "",
) -> Response:
    """List the files that the attempts of the task stored."""
    full_id = task_id_of(job_id, task_id)
    return respond(await operations.list_artifacts(full_id, limit=limit, after=after))


@router.get(
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
async def read_artifact(
    operations: Reader, job_id: str, task_id: str, name: str
) -> StreamingResponse:
    """Download one of these files."""
    artifact = await operations.open_artifact(task_id_of(job_id, task_id), name)
    # A browser must not run the file.
    headers = {"Content-Length": str(artifact.size), "Content-Disposition": "attachment"}
    return StreamingResponse(
        artifact.chunks, headers=headers, media_type="application/octet-stream"
    )


@router.post(
    "/cancel",
    **answers(d.TaskDocument, 404, 409, body=s.CancelRequestDocument, body_required=False),
)
async def cancel_task(
    operations: Operator, job_id: str, task_id: str, document: OptionalBody
) -> Response:
    """Cancel a task; a running one is `processing` until its worker has stopped it."""
    reason = parse_model(s.CancelRequestDocument, document).reason
    return respond(await operations.cancel_task(task_id_of(job_id, task_id), reason=reason))


@router.post(
    "/approve",
    **answers(d.TaskDocument, 404, 409, body=s.ApproveRequestDocument, body_required=False),
)
async def approve_task(
    operations: Operator, job_id: str, task_id: str, document: OptionalBody
) -> Response:
    """Approve the result in review: the task completes, and its dependents continue."""
    attempt = parse_model(s.ApproveRequestDocument, document).attempt
    return respond(await operations.approve(task_id_of(job_id, task_id), attempt=attempt))


@router.post("/revise", **answers(d.RevisedTaskDocument, 404, 409, body=s.ReviseRequestDocument))
async def revise_task(operations: Operator, job_id: str, task_id: str, document: Body) -> Response:
    """Send the result in review back: a new attempt gets it, and the feedback."""
    request = parse_model(s.ReviseRequestDocument, document)
    problem = comment_problem(request.feedback, limit=FEEDBACK_LIMIT_CHARACTERS)
    if problem is not None:
        errors = [Problem("feedback", problem)]
        raise ApiProblem(422, "invalid", "the request has problems", errors)
    task = await operations.revise(
        task_id_of(job_id, task_id), request.feedback, attempt=request.attempt
    )
    return respond(task)


@router.get("/why", **answers(d.WhyDocument, 404))
async def explain_task(operations: Reader, job_id: str, task_id: str) -> Response:
    """Explain what the task waits for: the whole chain, and what would resolve it."""
    return respond(await operations.why(task_id_of(job_id, task_id)))
