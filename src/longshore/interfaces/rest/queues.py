"""Queues: which are paused or held, to pause one, to let it go on."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path

from longshore.core.ids import NAME_PATTERN
from longshore.errors import CommandRefused
from longshore.interfaces import views
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import body_of, problems
from longshore.interfaces.rest.bodies import shaped
from longshore.interfaces.rest.callers import Housekeeper, Reader
from longshore.interfaces.rest.desk import AtDesk
from longshore.interfaces.rest.params import OptionalBody

router = APIRouter(prefix="/queues", tags=["queues"])
Name = Annotated[str, Path(pattern=f"^{NAME_PATTERN.pattern}$")]


@router.get("", response_model=s.PausedQueueList, responses=problems())
async def list_paused(desk: AtDesk, caller: Reader) -> Any:
    """The queues that are paused: by whom, why, since when.

    A pause holds for all tenants, so all may read what was said with it. One with `until` is a
    hold: the model's API has asked a worker to wait, and it ends by itself.
    """
    return {"paused": [views.paused_document(queue) for queue in await desk.pausing.paused()]}


@router.post(
    "/{name}/pause",
    response_model=s.PausedQueueDocument,
    responses=problems(413, 415),
    openapi_extra=body_of(s.PauseDocument, required=False),
)
async def pause(desk: AtDesk, caller: Housekeeper, name: Name, document: OptionalBody) -> Any:
    """Let nothing of the queue begin from now on; what runs goes on.

    Tasks of all tenants lie on a queue, so this needs a key with the scope `admin` of the tenant
    that runs the installation: the one to which the machine's own key belongs. Of several pauses
    the first counts: the answer is the one that holds.
    """
    wish = shaped(s.PauseDocument, document)
    held = await desk.pausing.pause(name, by=caller.by, reason=wish.reason)
    return views.paused_document(held)


@router.post("/{name}/resume", response_model=s.PausedQueueDocument, responses=problems(409))
async def resume(desk: AtDesk, caller: Housekeeper, name: Name) -> Any:
    """Let the queue go on; the answer is the pause, or else the hold, that this has ended.

    Needs the same key as to pause. A queue that is neither paused nor held is a 409.
    """
    ended = await desk.pausing.resume(name, by=caller.by)
    if ended is None:
        raise CommandRefused(name, "the queue is not paused")
    return views.paused_document(ended)
