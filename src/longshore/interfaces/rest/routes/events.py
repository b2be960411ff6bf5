"""Events and output of tasks, jobs and the whole tenant: pages, and streams that follow them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from longshore.interfaces.rest.auth import Reader
from longshore.interfaces.rest.openapi import operation_route
from longshore.interfaces.rest.requests import JobId, LongLimit, TaskId, last_event_id
from longshore.services.app import Application
from longshore.services.followers import EVENT_CURSOR_PATTERN

router = APIRouter(tags=["events"])
_SEQUENCE_PATTERN = r"^[0-9]{1,15}$"
EventCursorParam = Annotated[
    str,
    Query(
        pattern=EVENT_CURSOR_PATTERN,
        description="`cursor` or `end` of an earlier page; without it, from the beginning.",
    ),
]
IncludeTasks = Annotated[bool, Query(description="Include the events of its tasks.")]


@operation_route(router, Application.list_events)
def list_events(
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
) -> None:
    """List the events of the tenant that match all conditions, in the order of recording.

    To miss nothing, store `end` and ask again with it: it is a durable cursor. Events about keys
    are shown to keys with the scope `admin` only, so a page may have fewer events than its limit
    although more follow.
    """


@operation_route(router, Application.list_job_events, 404)
def read_job_events(
    operations: Reader,
    job_id: JobId,
    limit: LongLimit = 100,
    cursor: EventCursorParam = "",
    tasks: IncludeTasks = True,  # noqa: FBT002 - query parameters have names
) -> None:
    """List the events of a job and of its tasks, in the order of recording."""


@operation_route(router, Application.follow_job_events, 404)
def stream_job_events(
    operations: Reader,
    job_id: JobId,
    cursor: EventCursorParam = "",
    tasks: IncludeTasks = True,  # noqa: FBT002
    last_seen: Annotated[str | None, last_event_id(EVENT_CURSOR_PATTERN)] = None,
) -> None:
    """Follow the events of a job and its tasks, from the first, until the job has ended.

    Each event's id is its position; a client that was disconnected sends the last id as
    `Last-Event-ID` and continues after it, without gaps or duplicates. Ends with an event `end`.
    """


@operation_route(router, Application.list_task_events, 404)
def read_task_events(
    operations: Reader,
    task_id: TaskId,
    limit: LongLimit = 100,
    after: Annotated[
        int, Query(ge=0, le=10**15, description="`sequence` of the last event that was read.")
    ] = 0,
) -> None:
    """List the events of a task, from the first."""


@operation_route(router, Application.follow_task_events, 404)
def stream_task_events(
    operations: Reader,
    task_id: TaskId,
    after: Annotated[str, Query(pattern=_SEQUENCE_PATTERN)] = "0",
    last_seen: Annotated[str | None, last_event_id(_SEQUENCE_PATTERN)] = None,
) -> None:
    """Follow the events of a task, from the first, until the task has ended.

    `Last-Event-ID` is the sequence of the last event that the client has.
    """


# Output

output_router = APIRouter(tags=["output"])
_POSITION_PATTERN = r"^[0-9]{1,9}\.[0-9]{1,15}$"
_START_POSITION = "0.0"
AfterParam = Annotated[
    str, Query(pattern=_POSITION_PATTERN, description="`id` of the last chunk that was read.")
]
AttemptParam = Annotated[
    int | None, Query(ge=1, le=10**9, description="Only the output of this attempt.")
]
FollowParam = Annotated[bool, Query(description="Continue until the job has ended.")]


@operation_route(output_router, Application.read_output, 404)
def read_output(
    operations: Reader,
    task_id: TaskId,
    limit: LongLimit = 100,
    after: AfterParam = _START_POSITION,
    attempt: AttemptParam = None,
) -> None:
    """Read the output of a task so far: of all attempts in order, or of one."""


@operation_route(output_router, Application.follow_task_output, 404)
def stream_output(
    operations: Reader,
    task_id: TaskId,
    after: AfterParam = _START_POSITION,
    attempt: AttemptParam = None,
    last_seen: Annotated[str | None, last_event_id(_POSITION_PATTERN)] = None,
) -> None:
    """Follow the output of a task: stored chunks, then new ones, without gaps or duplicates.

    Each event's id is its position; a client that was disconnected sends the last id as
    `Last-Event-ID` and continues after it. The stream ends with an event `end` when the task, or
    the requested attempt, has ended.
    """


@operation_route(output_router, Application.follow_job_output, 404)
def stream_job_output(
    operations: Reader,
    job_id: JobId,
    follow: FollowParam = True,  # noqa: FBT002 - query parameters have names
    attempt: AttemptParam = None,
) -> None:
    """Follow the output of all tasks of a job, by time, until the job has ended.

    Each chunk names its task and its position there. The stream of a whole job has no position to
    continue from: a client that was disconnected starts again and drops what it has, or follows
    single tasks. Ends with an event `end`.
    """
