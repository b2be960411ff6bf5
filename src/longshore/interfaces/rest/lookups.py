"""Finding things: tasks of all jobs, ids by their beginning."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from longshore.core.states import TaskState
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import problems
from longshore.interfaces.rest.callers import Reader
from longshore.interfaces.rest.desk import AtDesk
from longshore.interfaces.rest.found import FoundJob
from longshore.interfaces.rest.jobs import task_page
from longshore.interfaces.rest.params import Cursor, Limit, LongLimit

router = APIRouter(tags=["lookups"])


@router.get("/tasks", response_model=s.TaskPage, responses=problems())
async def list_all_tasks(
    desk: AtDesk,
    caller: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Annotated[s.TaskStatus | None, Query()] = None,
) -> Any:
    """The tenant's tasks of all jobs, the newest first."""
    state = TaskState(status) if status else None
    return await task_page(desk, caller.tenant, None, limit, cursor, state)


@router.get("/jobs/{job_id}/statuses", response_model=s.StatusesDocument, responses=problems(404))
async def read_statuses(desk: AtDesk, job: FoundJob) -> Any:
    """Where every task of a job stands, in one answer however many there are."""
    states = await desk.backend.ledger.task_states(job.id)
    return {"statuses": {key: state.value for key, state in states.items()}}


@router.get("/ids", response_model=s.IdList, responses=problems())
async def find_ids(
    desk: AtDesk,
    caller: Reader,
    prefix: Annotated[
        str, Query(min_length=1, max_length=300, description="How the id begins, letter by letter.")
    ],
    limit: LongLimit = 10,
) -> Any:
    """Ids of jobs and tasks that begin so, in order: for people who type as much as is enough."""
    return {"ids": await desk.backend.ledger.find(caller.tenant, prefix, limit=limit)}
