"""Budgets: what may be spent on a task, on a job and in a day, what is spent, and to allow more."""

from __future__ import annotations

import secrets
from typing import Any

from fastapi import APIRouter

from longshore.core.budgets import Budget
from longshore.core.ids import task_id_of
from longshore.interfaces import views
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import body_of, problems
from longshore.interfaces.rest.bodies import shaped
from longshore.interfaces.rest.callers import Admin, Operator, Reader
from longshore.interfaces.rest.desk import AtDesk
from longshore.interfaces.rest.params import Body, RequestId
from longshore.interfaces.rest.problems import Refused

router = APIRouter(tags=["budgets"])
_ADDING: dict[str, Any] = {
    "response_model": s.StandingDocument,
    "responses": problems(404, 409, 413, 415),
    "openapi_extra": body_of(s.AddBudgetDocument),
}


@router.get("/budget", response_model=s.StandingDocument, responses=problems())
async def read_day(desk: AtDesk, caller: Reader) -> Any:
    """What the tenant's agents may spend today (UTC), and have spent."""
    return views.standing_document(await desk.budgeting.of_day(caller.tenant))


@router.post("/budget", **_ADDING)
async def add_to_day(
    desk: AtDesk, caller: Admin, document: Body, request_id: RequestId = None
) -> Any:
    """Allow the tenant's agents more for today; tasks that rest for want of it go on.

    Needs a key with the scope `admin`.
    """
    standing = await desk.budgeting.add_to_day(
        caller.tenant, _more(document), by=caller.by, request_id=_id(request_id)
    )
    return views.standing_document(standing)


@router.get("/jobs/{job_id}/budget", response_model=s.StandingDocument, responses=problems(404))
async def read_job(desk: AtDesk, caller: Reader, job_id: str) -> Any:
    """What may be spent on all tasks of the job together, and is spent."""
    return views.standing_document(await desk.budgeting.of_job(caller.tenant, job_id))


@router.post("/jobs/{job_id}/budget", **_ADDING)
async def add_to_job(
    desk: AtDesk, caller: Operator, job_id: str, document: Body, request_id: RequestId = None
) -> Any:
    """Allow more to be spent on the job; its tasks that rest for want of it go on."""
    await desk.budgeting.add_to_job(
        caller.tenant, job_id, _more(document), by=caller.by, request_id=_id(request_id)
    )
    return views.standing_document(await desk.budgeting.of_job(caller.tenant, job_id))


@router.get(
    "/jobs/{job_id}/tasks/{task_id}/budget",
    response_model=s.StandingDocument,
    responses=problems(404),
)
async def read_task(desk: AtDesk, caller: Reader, job_id: str, task_id: str) -> Any:
    """What may be spent on the task in all its attempts, and is spent."""
    standing = await desk.budgeting.of_task(caller.tenant, task_id_of(job_id, task_id))
    return views.standing_document(standing)


@router.post("/jobs/{job_id}/tasks/{task_id}/budget", **_ADDING)
async def add_to_task(
    desk: AtDesk,
    caller: Operator,
    job_id: str,
    task_id: str,
    document: Body,
    request_id: RequestId = None,
) -> Any:
    """Allow more to be spent on the task; if it rests for want of that, it goes on."""
    full_id = task_id_of(job_id, task_id)
    await desk.budgeting.add_to_task(
        caller.tenant, full_id, _more(document), by=caller.by, request_id=_id(request_id)
    )
    return views.standing_document(await desk.budgeting.of_task(caller.tenant, full_id))


def _more(document: Any) -> Budget:
    wish = shaped(s.AddBudgetDocument, document)
    more = Budget(usd=wish.usd, tokens=wish.tokens, minutes=wish.minutes)
    if not more:
        raise Refused(422, "invalid", "nothing is added: expected usd, tokens or minutes")
    return more


def _id(request_id: str | None) -> str:
    return request_id or secrets.token_hex(16)
