"""Dead letters of the caller's tenant: tasks that failed for good, messages that lead nowhere.

A message that leads to no task is no tenant's, and nobody knows what is in it: only the tenant that
runs the installation sees it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from longshore.core.dead_letters import DeadFilter, DeadLetter
from longshore.core.error_categories import ErrorCategory
from longshore.errors import NotFound
from longshore.interfaces import views
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import body_of, problems
from longshore.interfaces.rest.bodies import shaped
from longshore.interfaces.rest.callers import Operator, Reader
from longshore.interfaces.rest.desk import AtDesk
from longshore.interfaces.rest.params import Body, Cursor, Limit, Moment
from longshore.interfaces.rest.problems import Refused
from longshore.services.post_mortem import examine

router = APIRouter(prefix="/dead-letters", tags=["dead letters"])


async def _wanted(
    desk: AtDesk,
    caller: Reader,
    queue: Annotated[str | None, Query(max_length=64)] = None,
    name: Annotated[str | None, Query(max_length=64, description="Of a definition.")] = None,
    category: Annotated[s.Category | None, Query()] = None,
    job_id: Annotated[str | None, Query(alias="jobId", max_length=64)] = None,
    since: Annotated[Moment | None, Query(description="Not those from before.")] = None,
) -> DeadFilter:
    return DeadFilter(
        queue=queue,
        definition=name,
        category=ErrorCategory(category) if category else None,
        job_id=job_id,
        since=since,
        ownerless=desk.access.is_of_the_house(caller.key),
    )


async def _found(desk: AtDesk, caller: Reader, letter_id: str) -> DeadLetter:
    letter = await desk.dead_letters.find(caller.tenant, letter_id)
    if letter.row is None and not desk.access.is_of_the_house(caller.key):
        raise NotFound("dead letter", letter_id[:300])
    return letter


Found = Annotated[DeadLetter, Depends(_found)]
Wanted = Annotated[DeadFilter, Depends(_wanted)]


@router.get("", response_model=s.DeadLetterPage, responses=problems())
async def list_dead(
    desk: AtDesk, caller: Reader, wanted: Wanted, limit: Limit = 50, cursor: Cursor = None
) -> Any:
    """What failed for good, those that died last first."""
    found = await desk.dead_letters.page(caller.tenant, wanted, limit=limit, cursor=cursor)
    return {
        "deadLetters": [views.dead_letter_document(letter) for letter in found.items],
        "count": found.total,
        "cursor": found.cursor,
    }


@router.get("/counts", response_model=s.DeadCounts, responses=problems())
async def count_dead(desk: AtDesk, caller: Reader, wanted: Wanted) -> Any:
    """How many there are and of which kinds: what a replay of all that fit would touch."""
    counts = await desk.dead_letters.count(caller.tenant, wanted)
    return {
        "count": counts.total,
        "tasks": counts.tasks,
        "messages": counts.messages,
        "kinds": [
            {"queue": queue, "category": category, "count": count}
            for (queue, category), count in counts.by_kind.most_common()
        ],
    }


@router.get("/{letter_id}", response_model=s.PostMortemDocument, responses=problems(404))
async def read_dead(desk: AtDesk, letter: Found) -> Any:
    """One of them, with its attempts and its last lines."""
    return views.post_mortem_document(await examine(desk.backend, letter))


@router.post(
    "/replay",
    response_model=s.ReplayedDocument,
    responses=problems(404, 413, 415),
    openapi_extra=body_of(s.ReplayDocument),
)
async def replay(desk: AtDesk, caller: Operator, document: Body) -> Any:
    """Give tasks that failed for good another round: those that are named, or all that fit.

    `GET …/counts` says before how many that is. Messages stay where they are.
    """
    wish = shaped(s.ReplayDocument, document)
    if (wish.ids is None) == (wish.matching is None):
        raise Refused(422, "invalid", "give either 'ids' or 'matching'")
    if wish.ids is not None:
        replayed = await desk.dead_letters.replay(caller.tenant, wish.ids, by=caller.by)
    else:
        meant = wish.matching or s.DeadFilterDocument()
        wanted = DeadFilter(
            queue=meant.queue,
            definition=meant.name,
            category=ErrorCategory(meant.category) if meant.category else None,
            job_id=meant.job_id,
            since=meant.since,
        )
        replayed = await desk.dead_letters.replay_matching(caller.tenant, wanted, by=caller.by)
    rounds, moved_on = replayed.rounds.items(), replayed.moved_on.items()
    return {
        "replayed": [{"requestId": one, "round": number} for one, number in rounds],
        "movedOn": [{"requestId": one, "reason": why} for one, why in moved_on],
    }


@router.delete("/{letter_id}", response_model=s.DeadLetterDocument, responses=problems(404, 409))
async def discard(desk: AtDesk, caller: Operator, letter: Found) -> Any:
    """Forget a message that leads to no task; tasks cannot be forgotten so."""
    gone = await desk.dead_letters.discard(caller.tenant, letter.id, by=caller.by)
    return views.dead_letter_document(gone)
