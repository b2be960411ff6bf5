"""Budgets of a task, of a job and of a day: read them, and add to them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from longshore.core.budgets import Budget
from longshore.core.ids import task_id_of
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.auth import Admin, Operator, Reader
from longshore.interfaces.rest.errors import ApiProblem
from longshore.interfaces.rest.openapi import answers, respond
from longshore.interfaces.rest.params import Body, RequestId
from longshore.interfaces.rest.parsing import parse_model
from longshore.services import documents as d

router = APIRouter(tags=["budgets"])
_ADD_ROUTE = answers(d.BudgetStatusDocument, 404, 409, body=s.AddBudgetRequestDocument)


@router.get("/budget", **answers(d.BudgetStatusDocument))
async def read_daily_budget(operations: Reader) -> Response:
    """Read what the tenant's agents may spend today (UTC), and what they have spent."""
    return respond(await operations.get_budget())


@router.post("/budget", **_ADD_ROUTE)
async def add_daily_budget(
    operations: Admin, document: Body, request_id: RequestId = None
) -> Response:
    """Add to today's budget of the tenant; tasks that are parked because of it continue.

    Needs a key with the scope `admin`.
    """
    amount = _parse_amount(document)
    return respond(await operations.add_budget(None, amount, request_id=request_id))


@router.get("/jobs/{job_id}/budget", **answers(d.BudgetStatusDocument, 404))
async def read_job_budget(operations: Reader, job_id: str) -> Response:
    """Read what all tasks of a job together may spend, and have spent."""
    return respond(await operations.get_budget(job_id))


@router.post("/jobs/{job_id}/budget", **_ADD_ROUTE)
async def add_job_budget(
    operations: Operator, job_id: str, document: Body, request_id: RequestId = None
) -> Response:
    """Add to the budget of a job; its tasks that are parked because of it continue."""
    amount = _parse_amount(document)
    return respond(await operations.add_budget(job_id, amount, request_id=request_id))


@router.get("/jobs/{job_id}/tasks/{task_id}/budget", **answers(d.BudgetStatusDocument, 404))
async def read_task_budget(operations: Reader, job_id: str, task_id: str) -> Response:
    """Read what a task may spend in all its attempts, and has spent."""
    return respond(await operations.get_budget(task_id_of(job_id, task_id)))


@router.post("/jobs/{job_id}/tasks/{task_id}/budget", **_ADD_ROUTE)
async def add_task_budget(
    operations: Operator,
    job_id: str,
    task_id: str,
    document: Body,
    request_id: RequestId = None,
) -> Response:
    """Add to the budget of a task; if it is parked because of it, it continues."""
    amount, full_id = _parse_amount(document), task_id_of(job_id, task_id)
    return respond(await operations.add_budget(full_id, amount, request_id=request_id))


def _parse_amount(document: Any) -> Budget:
    request = parse_model(s.AddBudgetRequestDocument, document)
    amount = Budget(usd=request.usd, tokens=request.tokens, minutes=request.minutes)
    if not amount:
        raise ApiProblem(422, "invalid", "nothing is added: expected usd, tokens or minutes")
    return amount
