"""Events of a task, of a job with its tasks, and of the whole tenant: pages and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from longshore.core.ids import task_id_of
from longshore.interfaces.rest.auth import Reader
from longshore.interfaces.rest.openapi import answers, problem_responses, respond
from longshore.interfaces.rest.params import LongLimit, last_event_id, server_sent_events
from longshore.services import documents as d
from longshore.services.queries import EVENT_CURSOR_PATTERN

router = APIRouter(tags=["events"])
_TASK_EVENTS_PATH = "/jobs/{job_id}/tasks/{task_id}/events"
_SEQUENCE_PATTERN = r"^[0-9]{1,15}$"
EventCursorParam = Annotated[
    str,
    Query(
        pattern=EVENT_CURSOR_PATTERN,
        description="`cursor` or `end` of an earlier page; without it, from the beginning.",
    ),
]
IncludeTasks = Annotated[bool, Query(description="Include the events of its tasks.")]


@router.get("/events", **answers(d.EventPage))
async def list_events(
    operations: Reader,
    limit: LongLimit = 100,
    cursor: EventCursorParam = "",
    app: Annotated[str | None, Query(max_length=64)] = None,
    event_type: Annotated[
        str | None, Query(alias="eventType", max_length=100, examples=["Task Failed"])
    ] = None,
    entity: Annotated[
        str | None, Query(max_length=400, examples=["TASK#job-…_fetch", "SYSTEM#health-check"])
    ] = None,
    job_id: Annotated[str | None, Query(alias="jobId", max_length=64)] = None,
) -> Response:
    """List the events of the tenant that match all conditions, in the order of recording.

    To miss nothing, store `end` and ask again with it: it is a durable cursor. Events about keys
    are shown to keys with the scope `admin` only, so a page may have fewer events than its limit
    although more follow.
    """
    page = await operations.list_events(
        app=app, event_type=event_type, entity=entity, job_id=job_id, limit=limit, cursor=cursor
    )
    return respond(page)


@router.get("/jobs/{job_id}/events", **answers(d.EventPage, 404))
async def read_job_events(
    operations: Reader,
    job_id: str,
    limit: LongLimit = 100,
    cursor: EventCursorParam = "",
    tasks: IncludeTasks = True,  # noqa: FBT002 - query parameters have names
) -> Response:
    """List the events of a job and of its tasks, in the order of recording."""
    page = await operations.list_job_events(job_id, tasks=tasks, limit=limit, cursor=cursor)
    return respond(page)


async def _job_events(
    operations: Reader,
    job_id: str,
    cursor: EventCursorParam = "",
    tasks: IncludeTasks = True,  # noqa: FBT002
    last_seen: Annotated[str | None, last_event_id(EVENT_CURSOR_PATTERN)] = None,
) -> AsyncIterator[d.StreamItem]:
    return await operations.follow_job_events(job_id, tasks=tasks, cursor=last_seen or cursor)


@router.get(
    "/jobs/{job_id}/events/stream",
    response_description="A stream of server-sent events.",
    response_class=EventSourceResponse,
    responses=problem_responses(404),
)
async def stream_job_events(
    stream: Annotated[AsyncIterator[d.StreamItem], Depends(_job_events)],
) -> AsyncIterator[ServerSentEvent]:
    """Follow the events of a job and its tasks, from the first, until the job has ended.

    Each event's id is its position; a client that was disconnected sends the last id as
    `Last-Event-ID` and continues after it, without gaps or duplicates. Ends with an event `end`.
    """
    async for message in server_sent_events(stream):
        yield message


@router.get(_TASK_EVENTS_PATH, **answers(d.TaskEventPage, 404))
async def read_task_events(
    operations: Reader,
    job_id: str,
    task_id: str,
    limit: LongLimit = 100,
    after: Annotated[
        int, Query(ge=0, le=10**15, description="`sequence` of the last event that was read.")
    ] = 0,
) -> Response:
    """List the events of a task, from the first."""
    full_id = task_id_of(job_id, task_id)
    return respond(await operations.list_task_events(full_id, after=after, limit=limit))


async def _task_events(
    operations: Reader,
    job_id: str,
    task_id: str,
    after: Annotated[str, Query(pattern=_SEQUENCE_PATTERN)] = "0",
    last_seen: Annotated[str | None, last_event_id(_SEQUENCE_PATTERN)] = None,
) -> AsyncIterator[d.StreamItem]:
    full_id = task_id_of(job_id, task_id)
    return await operations.follow_task_events(full_id, after=int(last_seen or after))


@router.get(
    f"{_TASK_EVENTS_PATH}/stream",
    response_description="A stream of server-sent events.",
    response_class=EventSourceResponse,
    responses=problem_responses(404),
)
async def stream_task_events(
    stream: Annotated[AsyncIterator[d.StreamItem], Depends(_task_events)],
) -> AsyncIterator[ServerSentEvent]:
    """Follow the events of a task, from the first, until the task has ended.

    `Last-Event-ID` is the sequence of the last event that the client has.
    """
    async for message in server_sent_events(stream):
        yield message
