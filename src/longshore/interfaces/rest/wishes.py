"""What people want of one task: to end it, to approve its result, to have it bettered."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from longshore.core.ids import task_id_of
from longshore.core.limits import FEEDBACK_LIMIT_CHARACTERS
from longshore.core.remarks import problem_of_remark
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import body_of, problems
from longshore.interfaces.rest.bodies import shaped
from longshore.interfaces.rest.callers import Operator, Reader
from longshore.interfaces.rest.desk import AtDesk
from longshore.interfaces.rest.jobs import task_document, why_document
from longshore.interfaces.rest.params import Body, OptionalBody
from longshore.interfaces.rest.problems import Refused, Wrong

router = APIRouter(prefix="/jobs/{job_id}/tasks/{task_id}", tags=["tasks"])


@router.post(
    "/cancel",
    response_model=s.TaskDocument,
    responses=problems(404, 409, 413, 415),
    openapi_extra=body_of(s.CancelDocument, required=False),
)
async def cancel_task(
    desk: AtDesk, caller: Operator, job_id: str, task_id: str, document: OptionalBody
) -> Any:
    """End one task; a running one is `processing` until its worker has killed it."""
    wish = shaped(s.CancelDocument, document)
    row = await desk.cancelling.cancel_task(
        caller.tenant, task_id_of(job_id, task_id), by=caller.by, reason=wish.reason
    )
    return await task_document(desk, row)


@router.post(
    "/approve",
    response_model=s.TaskDocument,
    responses=problems(404, 409, 413, 415),
    openapi_extra=body_of(s.ApproveDocument, required=False),
)
async def approve(
    desk: AtDesk, caller: Operator, job_id: str, task_id: str, document: OptionalBody
) -> Any:
    """The result in review is right: the task is completed, and what depends on it goes on."""
    wish = shaped(s.ApproveDocument, document)
    row = await desk.reviewing.approve(
        caller.tenant, task_id_of(job_id, task_id), by=caller.by, attempt=wish.attempt
    )
    return await task_document(desk, row)


@router.post(
    "/revise",
    response_model=s.RevisedDocument,
    responses=problems(404, 409, 413, 415),
    openapi_extra=body_of(s.ReviseDocument),
)
async def revise(
    desk: AtDesk,
    caller: Operator,
    job_id: str,
    task_id: str,
    document: Body,
) -> Any:
    """The result in review is to be bettered: a new attempt gets it, and the feedback."""
    wish = shaped(s.ReviseDocument, document)
    wrong = problem_of_remark(wish.feedback, limit=FEEDBACK_LIMIT_CHARACTERS)
    if wrong is not None:
        raise Refused(422, "invalid", "the request has problems", [Wrong("feedback", wrong)])
    row = await desk.reviewing.request_revision(
        caller.tenant,
        task_id_of(job_id, task_id),
        by=caller.by,
        feedback=wish.feedback,
        attempt=wish.attempt,
    )
    return {**await task_document(desk, row), "revision": row.revision}


@router.get("/why", response_model=s.WhyDocument, responses=problems(404))
async def why_task(desk: AtDesk, caller: Reader, job_id: str, task_id: str) -> Any:
    """What the task waits for: the whole chain, and what would move it on."""
    return await why_document(desk, caller.tenant, task_id_of(job_id, task_id))
