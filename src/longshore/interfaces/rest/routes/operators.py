"""What operators manage: definitions, dead letters, queues, health checks, keys; the probes.

A dead message that leads to no task belongs to no tenant, and its content is unknown: only the
tenant that operates the installation sees it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import AwareDatetime

from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.ids import NAME_PATTERN
from longshore.core.tasks.failures import ErrorCategory
from longshore.errors import BackendUnavailable
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.auth import Admin, Operator, OperatorAdmin, Reader
from longshore.interfaces.rest.errors import ApiProblem
from longshore.interfaces.rest.openapi import (
    answers,
    openapi_document,
    operation_route,
    respond,
)
from longshore.interfaces.rest.requests import (
    Body,
    Cursor,
    Limit,
    OptionalBody,
    TaskId,
    check_query,
    parse_model,
)
from longshore.services import documents as d
from longshore.services.app import Application

definition_router = APIRouter(tags=["definitions"])


@operation_route(definition_router, Application.list_definitions)
def list_definitions(operations: Reader) -> None:
    """List the newest version of each definition, by name, without those that are built in."""


@operation_route(definition_router, Application.get_definition, 404)
def get_definition(
    operations: Reader,
    name: str,
    version: Annotated[
        int | None, Query(ge=1, le=2**31, description="Without it, the newest.")
    ] = None,
) -> None:
    """Read a definition. A version that jobs use can be read also after it was deleted."""


@operation_route(definition_router, Application.list_definition_versions, 404)
def list_definition_versions(
    operations: Reader,
    name: str,
    limit: Limit = 50,
    after: Annotated[int, Query(ge=0, le=2**31, description="The last version that was read.")] = 0,
) -> None:
    """List every version of a definition, from the first, also of a deleted one."""


@operation_route(definition_router, Application.put_definition, body=s.DefinitionRequestDocument)
def put_definition(operations: Operator, name: str, document: Body) -> None:
    """Store the next version; the same content again stores nothing. Running jobs keep theirs."""


@operation_route(definition_router, Application.delete_definition, 404, status=204)
def delete_definition(operations: Operator, name: str) -> None:
    """Delete a definition: new jobs cannot use it, accepted jobs keep their version."""


dead_letter_router = APIRouter(tags=["dead letters"])


async def _dead_letter_filter(
    queue: Annotated[str | None, Query(max_length=64)] = None,
    name: Annotated[
        str | None, Query(max_length=64, description="The name of a definition.")
    ] = None,
    category: Annotated[ErrorCategory | None, Query()] = None,
    job_id: Annotated[str | None, Query(alias="jobId", max_length=64)] = None,
    since: Annotated[AwareDatetime | None, Query(description="Not older than this.")] = None,
) -> DeadLetterFilter:
    return DeadLetterFilter(
        queue=queue, definition=name, category=category, job_id=job_id, since=since
    )


DeadFilterDep = Annotated[DeadLetterFilter, Depends(_dead_letter_filter)]


@operation_route(dead_letter_router, Application.list_dead_letters)
def list_dead_letters(
    operations: Reader, dead_filter: DeadFilterDep, limit: Limit = 50, cursor: Cursor = None
) -> None:
    """List dead letters, the latest first."""


@operation_route(dead_letter_router, Application.count_dead_letters)
def count_dead_letters(operations: Reader, dead_filter: DeadFilterDep) -> None:
    """Count dead letters by queue and category: what a replay of all that match would run."""


@operation_route(dead_letter_router, Application.get_dead_letter, 404)
def read_dead_letter(operations: Reader, letter_id: str) -> None:
    """Read a dead letter with its attempts and the last lines of its output."""


@dead_letter_router.post(
    "/dead-letters/replay", **answers(d.ReplayResultDocument, 404, body=s.ReplayRequestDocument)
)
async def replay_dead_letters(operations: Operator, document: Body) -> Response:
    """Run dead tasks again: the named ones, or all that match.

    `GET …/counts` counts those that match. Messages are not replayed.
    """
    request = parse_model(s.ReplayRequestDocument, document)
    if (request.ids is None) == (request.matching is None):
        raise ApiProblem(422, "invalid", "give either 'ids' or 'matching'")
    matching = await _dead_letter_filter(**dict(request.matching or {}))
    selected = matching if request.ids is None else request.ids
    return respond(await operations.replay_dead_letters(selected))


@operation_route(dead_letter_router, Application.discard_dead_letter, 404, 409)
def discard_dead_letter(operations: Operator, letter_id: str) -> None:
    """Delete a message that leads to no task. A task cannot be discarded."""


queue_router = APIRouter(tags=["queues"])
QueueName = Annotated[str, Path(pattern=f"^{NAME_PATTERN.pattern}$")]


@operation_route(queue_router, Application.list_paused_queues)
def list_paused_queues(operations: Reader) -> None:
    """List the queues that are paused or held: by whom, why, since when.

    A pause concerns all tenants, so all may read its reason. An entry with `until` is a hold: the
    model's API asked a worker to wait, and the hold ends by itself.
    """


@operation_route(queue_router, Application.pause_queue, body=s.PauseRequestDocument)
def pause_queue(operations: OperatorAdmin, name: QueueName, document: OptionalBody) -> None:
    """Pause a queue: none of its tasks starts, running tasks continue.

    A queue has tasks of all tenants, so this needs a key with the scope `admin` of the tenant that
    operates the installation: the one that the machine's own key belongs to. If the queue is
    paused already, the earlier pause stays and is the answer.
    """


@operation_route(queue_router, Application.resume_queue, 409)
def resume_queue(operations: OperatorAdmin, name: QueueName) -> None:
    """Resume a queue. The answer is the pause, or else the hold, that ended.

    Needs the same key as a pause. 409 if the queue is neither paused nor held.
    """


health_router = APIRouter(tags=["health"])


@operation_route(health_router, Application.last_health_check, 404)
def read_last_health_check(operations: Reader) -> None:
    """Read the latest health check of the tenant's running tasks.

    Earlier ones are events of `SYSTEM#health-check`.
    """


@operation_route(health_router, Application.run_health_check)
def run_health_check(operations: Operator) -> None:
    """Check all running tasks of the tenant now.

    As in a scheduled check, the result is recorded as an event, and new problems are sent as
    alerts.
    """


@operation_route(health_router, Application.task_health, 404)
def read_task_health(operations: Reader, task_id: TaskId) -> None:
    """Read the health of a task now: how long it has run, and how long it was silent.

    Nothing is recorded and no alert is sent.
    """


key_router = APIRouter(tags=["keys"])


@operation_route(key_router, Application.list_keys)
def list_keys(operations: Admin) -> None:
    """List all keys, oldest first, revoked ones too, without their secrets."""


@operation_route(key_router, Application.create_key, status=201, body=s.KeyRequestDocument)
def create_key(operations: Admin, document: Body) -> None:
    """Create a key. Its secret is in this answer only.

    With `tenant` it is a key of that tenant, such as its first one. This needs a key of the tenant
    that operates the installation.
    """


@operation_route(key_router, Application.revoke_key, 404)
def revoke_key(operations: Admin, key_id: str) -> None:
    """Revoke a key, at every server at once."""


schema_router = APIRouter()


@schema_router.get("/openapi.json", include_in_schema=False)
async def read_openapi(request: Request, operations: Reader) -> Any:
    return openapi_document(request.app)


probe_router = APIRouter(tags=["probes"])


@probe_router.get("/live", dependencies=[Depends(check_query)], **answers(d.ProbeDocument))
async def live() -> Response:
    """Check that the server runs. Needs no key."""
    return respond(d.ProbeDocument())


@probe_router.get("/ready", **answers(d.ProbeDocument))
async def ready(operations: Reader) -> Response:
    """Check that the server can work: its store takes writes. A problem says why it does not.

    The answer may be 5 seconds old, so that probes write no more often than that.
    """
    try:
        return respond(await operations.check_ready())
    except BackendUnavailable as error:
        raise ApiProblem(503, "unavailable", str(error)) from error
