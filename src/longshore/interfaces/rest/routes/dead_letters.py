"""Dead letters of the caller's tenant: failed tasks, and messages that lead to no task.

A message that leads to no task belongs to no tenant, and its content is unknown: only the tenant
that operates the installation sees it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.tasks.error_categories import ErrorCategory
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.auth import Operator, Reader
from longshore.interfaces.rest.errors import ApiProblem
from longshore.interfaces.rest.openapi import answers, respond
from longshore.interfaces.rest.params import Body, Cursor, Limit, Moment
from longshore.interfaces.rest.parsing import parse_model
from longshore.services import documents as d

router = APIRouter(prefix="/dead-letters", tags=["dead letters"])


async def _dead_letter_filter(
    queue: Annotated[str | None, Query(max_length=64)] = None,
    name: Annotated[
        str | None, Query(max_length=64, description="The name of a definition.")
    ] = None,
    category: Annotated[ErrorCategory | None, Query()] = None,
    job_id: Annotated[str | None, Query(alias="jobId", max_length=64)] = None,
    since: Annotated[Moment | None, Query(description="Not older than this.")] = None,
) -> DeadLetterFilter:
    return DeadLetterFilter(
        queue=queue, definition=name, category=category, job_id=job_id, since=since
    )


DeadFilterDep = Annotated[DeadLetterFilter, Depends(_dead_letter_filter)]


@router.get("", **answers(d.DeadLetterPage))
async def list_dead_letters(
    operations: Reader, dead_filter: DeadFilterDep, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """List dead letters, the latest first."""
    return respond(await operations.list_dead_letters(dead_filter, limit=limit, cursor=cursor))


@router.get("/counts", **answers(d.DeadLetterCountsDocument))
async def count_dead_letters(operations: Reader, dead_filter: DeadFilterDep) -> Response:
    """Count dead letters by queue and category: what a replay of all that match would run."""
    return respond(await operations.count_dead_letters(dead_filter))


@router.get("/{letter_id}", **answers(d.PostMortemDocument, 404))
async def read_dead_letter(operations: Reader, letter_id: str) -> Response:
    """Read a dead letter with its attempts and the last lines of its output."""
    return respond(await operations.get_dead_letter(letter_id))


@router.post("/replay", **answers(d.ReplayResultDocument, 404, body=s.ReplayRequestDocument))
async def replay_dead_letters(operations: Operator, document: Body) -> Response:
    """Run dead tasks again: the named ones, or all that match.

    `GET …/counts` counts those that match. Messages are not replayed.
    """
    request = parse_model(s.ReplayRequestDocument, document)
    if request.ids is not None and request.matching is None:
        return respond(await operations.replay_dead_letters(request.ids))
    if request.matching is None or request.ids is not None:
        raise ApiProblem(422, "invalid", "give either 'ids' or 'matching'")
    matching = DeadLetterFilter(
        queue=request.matching.queue,
        definition=request.matching.name,
        category=request.matching.category,
        job_id=request.matching.job_id,
        since=request.matching.since,
    )
    return respond(await operations.replay_matching_dead_letters(matching))


@router.delete("/{letter_id}", **answers(d.DeadLetterDocument, 404, 409))
async def discard_dead_letter(operations: Operator, letter_id: str) -> Response:
    """Delete a message that leads to no task. A task cannot be discarded."""
    return respond(await operations.discard_dead_letter(letter_id))
