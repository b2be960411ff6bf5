"""Queues: list the paused and held ones, pause, resume."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from longshore.core.ids import NAME_PATTERN
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.auth import OperatorAdmin, Reader
from longshore.interfaces.rest.openapi import answers, respond
from longshore.interfaces.rest.params import OptionalBody
from longshore.interfaces.rest.parsing import parse_model
from longshore.services import documents as d

router = APIRouter(prefix="/queues", tags=["queues"])
QueueName = Annotated[str, Path(pattern=f"^{NAME_PATTERN.pattern}$")]


@router.get("", **answers(d.PausedQueueList))
async def list_paused_queues(operations: Reader) -> Response:
    """List the queues that are paused or held: by whom, why, since when.

    A pause concerns all tenants, so all may read its reason. An entry with `until` is a hold: the
    model's API asked a worker to wait, and the hold ends by itself.
    """
    return respond(await operations.list_paused_queues())


@router.post(
    "/{name}/pause",
    **answers(d.PausedQueueDocument, body=s.PauseRequestDocument, body_required=False),
)
async def pause_queue(
    operations: OperatorAdmin, name: QueueName, document: OptionalBody
) -> Response:
    """Pause a queue: none of its tasks starts, running tasks continue.

    A queue has tasks of all tenants, so this needs a key with the scope `admin` of the tenant that
    operates the installation: the one that the machine's own key belongs to. If the queue is
    paused already, the earlier pause stays and is the answer.
    """
    reason = parse_model(s.PauseRequestDocument, document).reason
    return respond(await operations.pause_queue(name, reason=reason))


@router.post("/{name}/resume", **answers(d.PausedQueueDocument, 409))
async def resume_queue(operations: OperatorAdmin, name: QueueName) -> Response:
    """Resume a queue. The answer is the pause, or else the hold, that ended.

    Needs the same key as a pause. 409 if the queue is neither paused nor held.
    """
    return respond(await operations.resume_queue(name))
