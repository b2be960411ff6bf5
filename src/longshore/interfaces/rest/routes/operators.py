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
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.auth import Admin, Operator, OperatorAdmin, Reader
from longshore.interfaces.rest.errors import ApiProblem
from longshore.interfaces.rest.openapi import (
    answers,
    openapi_document,
    problem_responses,
    respond,
)
from longshore.interfaces.rest.requests import (
    Body,
    Cursor,
    Limit,
    OptionalBody,
    TaskId,
    parse_model,
)
from longshore.services import documents as d

definition_router = APIRouter(prefix="/task-definitions", tags=["definitions"])


@definition_router.get("", **answers(d.DefinitionList))
async def list_definitions(operations: Reader) -> Response:
    """List the newest version of each definition, by name, without those that are built in."""
    return respond(await operations.list_definitions())


@definition_router.get("/{name}", **answers(d.DefinitionDocument, 404))
async def get_definition(
    operations: Reader,
    name: str,
    version: Annotated[
        int | None, Query(ge=1, le=2**31, description="Without it, the newest.")
    ] = None,
) -> Response:
    """Read a definition. A version that jobs use can be read also after it was deleted."""
    return respond(await operations.get_definition(name, version=version))


@definition_router.get("/{name}/versions", **answers(d.DefinitionList, 404))
async def list_definition_versions(
    operations: Reader,
    name: str,
    limit: Limit = 50,
    after: Annotated[int, Query(ge=0, le=2**31, description="The last version that was read.")] = 0,
) -> Response:
    """List every version of a definition, from the first, also of a deleted one."""
    return respond(await operations.list_definition_versions(name, limit=limit, after=after))


@definition_router.put("/{name}", **answers(d.DefinitionDocument, body=s.DefinitionRequestDocument))
async def put_definition(operations: Operator, name: str, document: Body) -> Response:
    """Store the next version; the same content again stores nothing. Running jobs keep theirs."""
    if isinstance(document, dict):
        if document.get("name", name) != name:
            raise ApiProblem(422, "invalid", "the name in the body is not the name in the path")
        # What was read can be sent again, and it has a version.
        fields = {field: value for field, value in document.items() if field != "version"}
        document = {**fields, "name": name}
    return respond(await operations.put_definition(document))


@definition_router.delete(
    "/{name}", status_code=204, response_description="Deleted.", responses=problem_responses(404)
)
async def delete_definition(operations: Operator, name: str) -> Response:
    """Delete a definition: new jobs cannot use it, accepted jobs keep their version."""
    await operations.delete_definition(name)
    return Response(status_code=204)


dead_letter_router = APIRouter(prefix="/dead-letters", tags=["dead letters"])


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


@dead_letter_router.get("", **answers(d.DeadLetterPage))
async def list_dead_letters(
    operations: Reader, dead_filter: DeadFilterDep, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """List dead letters, the latest first."""
    return respond(await operations.list_dead_letters(dead_filter, limit=limit, cursor=cursor))


@dead_letter_router.get("/counts", **answers(d.DeadLetterCountsDocument))
async def count_dead_letters(operations: Reader, dead_filter: DeadFilterDep) -> Response:
    """Count dead letters by queue and category: what a replay of all that match would run."""
    return respond(await operations.count_dead_letters(dead_filter))


@dead_letter_router.get("/{letter_id}", **answers(d.PostMortemDocument, 404))
async def read_dead_letter(operations: Reader, letter_id: str) -> Response:
    """Read a dead letter with its attempts and the last lines of its output."""
    return respond(await operations.get_dead_letter(letter_id))


@dead_letter_router.post(
    "/replay", **answers(d.ReplayResultDocument, 404, body=s.ReplayRequestDocument)
)
async def replay_dead_letters(operations: Operator, document: Body) -> Response:
    """Run dead tasks again: the named ones, or all that match.

    `GET …/counts` counts those that match. Messages are not replayed.
    """
    request = parse_model(s.ReplayRequestDocument, document)
    if request.ids is not None and request.matching is None:
        return respond(await operations.replay_dead_letters(request.ids))
    if request.matching is None or request.ids is not None:
        raise ApiProblem(422, "invalid", "give either 'ids' or 'matching'")
    matching = await _dead_letter_filter(**dict(request.matching))
    return respond(await operations.replay_matching_dead_letters(matching))


@dead_letter_router.delete("/{letter_id}", **answers(d.DeadLetterDocument, 404, 409))
async def discard_dead_letter(operations: Operator, letter_id: str) -> Response:
    """Delete a message that leads to no task. A task cannot be discarded."""
    return respond(await operations.discard_dead_letter(letter_id))


queue_router = APIRouter(prefix="/queues", tags=["queues"])
QueueName = Annotated[str, Path(pattern=f"^{NAME_PATTERN.pattern}$")]


@queue_router.get("", **answers(d.PausedQueueList))
async def list_paused_queues(operations: Reader) -> Response:
    """List the queues that are paused or held: by whom, why, since when.

    A pause concerns all tenants, so all may read its reason. An entry with `until` is a hold: the
    model's API asked a worker to wait, and the hold ends by itself.
    """
    return respond(await operations.list_paused_queues())


@queue_router.post(
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


@queue_router.post("/{name}/resume", **answers(d.PausedQueueDocument, 409))
async def resume_queue(operations: OperatorAdmin, name: QueueName) -> Response:
    """Resume a queue. The answer is the pause, or else the hold, that ended.

    Needs the same key as a pause. 409 if the queue is neither paused nor held.
    """
    return respond(await operations.resume_queue(name))


health_router = APIRouter(tags=["health"])


@health_router.get("/health-check", **answers(d.HealthCheckDocument, 404))
async def read_last_health_check(operations: Reader) -> Response:
    """Read the latest health check of the tenant's running tasks.

    Earlier ones are events of `SYSTEM#health-check`.
    """
    return respond(await operations.last_health_check())


@health_router.post("/health-check", **answers(d.HealthCheckDocument))
async def run_health_check(operations: Operator) -> Response:
    """Check all running tasks of the tenant now.

    As in a scheduled check, the result is recorded as an event, and new problems are sent as
    alerts.
    """
    return respond(await operations.run_health_check())


@health_router.get("/jobs/{job_id}/tasks/{task_id}/health", **answers(d.TaskHealthDocument, 404))
async def read_task_health(operations: Reader, task: TaskId) -> Response:
    """Read the health of a task now: how long it has run, and how long it was silent.

    Nothing is recorded and no alert is sent.
    """
    return respond(await operations.task_health(task))


key_router = APIRouter(tags=["keys"])


@key_router.get("/keys", **answers(d.KeyList))
async def list_keys(operations: Admin) -> Response:
    """List all keys, oldest first, revoked ones too, without their secrets."""
    return respond(await operations.list_keys())


@key_router.post("/keys", **answers(d.NewKeyDocument, status=201, body=s.KeyRequestDocument))
async def create_key(operations: Admin, document: Body) -> Response:
    """Create a key. Its secret is in this answer only."""
    request = parse_model(s.KeyRequestDocument, document)
    key = await operations.create_key(request.name, [scope.value for scope in request.scopes])
    return respond(key, 201)


@key_router.delete("/keys/{key_id}", **answers(d.KeyDocument, 404))
async def revoke_key(operations: Admin, key_id: str) -> Response:
    """Revoke a key, at every server at once."""
    return respond(await operations.revoke_key(key_id))


schema_router = APIRouter()


@schema_router.get("/openapi.json", include_in_schema=False)
async def read_openapi(request: Request, operations: Reader) -> Any:
    return openapi_document(request.app)


probe_router = APIRouter(tags=["probes"])


@probe_router.get("/live", **answers(d.ProbeDocument))
async def live() -> Response:
    """Check that the server runs. Needs no key."""
    return respond(d.ProbeDocument())


@probe_router.get("/ready", **answers(d.ProbeDocument))
async def ready(operations: Reader) -> Response:
    """Check that the server can answer requests: its store can be read."""
    return respond(await operations.check_ready())
