"""Output of a task or of a whole job: stored chunks, and streams that follow it."""

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

router = APIRouter(tags=["output"])
_TASK_OUTPUT_PATH = "/jobs/{job_id}/tasks/{task_id}/output"
_POSITION_PATTERN = r"^[0-9]{1,9}\.[0-9]{1,15}$"
_START_POSITION = "0.0"
AfterParam = Annotated[
    str, Query(pattern=_POSITION_PATTERN, description="`id` of the last chunk that was read.")
]
AttemptParam = Annotated[
    int | None, Query(ge=1, le=10**9, description="Only the output of this attempt.")
]
FollowParam = Annotated[bool, Query(description="Continue until the job has ended.")]


@router.get(_TASK_OUTPUT_PATH, **answers(d.OutputPage, 404))
async def read_output(
    operations: Reader,
    job_id: str,
    task_id: str,
    limit: LongLimit = 100,
    after: AfterParam = _START_POSITION,
    attempt: AttemptParam = None,
) -> Response:
    """Read the output of a task so far: of all attempts in order, or of one."""
    page = await operations.read_output(
        task_id_of(job_id, task_id), attempt=attempt, after=after, limit=limit
    )
    return respond(page)


async def _task_output(
    operations: Reader,
    job_id: str,
    task_id: str,
    after: AfterParam = _START_POSITION,
    attempt: AttemptParam = None,
    last_seen: Annotated[str | None, last_event_id(_POSITION_PATTERN)] = None,
) -> AsyncIterator[d.StreamItem]:
    return await operations.follow_task_output(
        task_id_of(job_id, task_id), attempt=attempt, after=last_seen or after
    )


@router.get(
    f"{_TASK_OUTPUT_PATH}/stream",
    response_description="A stream of server-sent events.",
    response_class=EventSourceResponse,
    responses=problem_responses(404),
)
async def stream_output(
    stream: Annotated[AsyncIterator[d.StreamItem], Depends(_task_output)],
) -> AsyncIterator[ServerSentEvent]:
    """Follow the output of a task: stored chunks, then new ones, without gaps or duplicates.

    Each event's id is its position; a client that was disconnected sends the last id as
    `Last-Event-ID` and continues after it. The stream ends with an event `end` when the task, or
    the requested attempt, has ended.
    """
    async for message in server_sent_events(stream):
        yield message


async def _job_output(
    operations: Reader,
    job_id: str,
    follow: FollowParam = True,  # noqa: FBT002 - query parameters have names
    attempt: AttemptParam = None,
) -> AsyncIterator[d.StreamItem]:
    return await operations.follow_job_output(job_id, follow=follow, attempt=attempt)


@router.get(
    "/jobs/{job_id}/output/stream",
    response_description="A stream of server-sent events.",
    response_class=EventSourceResponse,
    responses=problem_responses(404),
)
async def stream_job_output(
    stream: Annotated[AsyncIterator[d.StreamItem], Depends(_job_output)],
) -> AsyncIterator[ServerSentEvent]:
    """Follow the output of all tasks of a job, by time, until the job has ended.

    Each chunk names its task and its position there. The stream of a whole job has no position to
    continue from: a client that was disconnected starts again and drops what it has, or follows
    single tasks. Ends with an event `end`.
    """
    async for message in server_sent_events(stream):
        yield message
