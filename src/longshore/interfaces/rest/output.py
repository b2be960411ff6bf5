"""What tasks print: of one task, of a whole job; what there is, and as it comes."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from longshore.interfaces import views
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import problems
from longshore.interfaces.rest.desk import AtDesk
from longshore.interfaces.rest.found import FoundJob, FoundTask
from longshore.interfaces.rest.params import LongLimit, last_event_id
from longshore.ports.output import OutputEntry, Place
from longshore.services import following

router = APIRouter(tags=["output"])
_OF_TASK = "/jobs/{job_id}/tasks/{task_id}/output"
# Readers are woken when something is printed; this is how soon they see that the task has ended.
_LOOK_EVERY = timedelta(milliseconds=500)
_PLACE = r"^[0-9]{1,9}\.[0-9]{1,15}$"
_START = "0.0"
After = Annotated[str, Query(pattern=_PLACE, description="`id` of the last piece seen.")]
Attempt = Annotated[int | None, Query(ge=1, le=10**9, description="Only what this one printed.")]
Follow = Annotated[bool, Query(description="Go on until the job has ended.")]


@router.get(_OF_TASK, response_model=s.OutputPage, responses=problems(404))
async def read_output(
    desk: AtDesk,
    row: FoundTask,
    limit: LongLimit = 100,
    after: After = _START,
    attempt: Attempt = None,
) -> Any:
    """What a task has printed so far, of all attempts in order, or of one."""
    place = max(_place(after), Place(attempt or 0, 0))
    entries = await desk.backend.output.read(row.id, after=place, limit=limit)
    return {
        "output": [
            _piece(row.spec.job_id, row.spec.key, entry)
            for entry in entries
            if attempt in (None, entry.attempt)
        ]
    }


@router.get(f"{_OF_TASK}/stream", response_class=EventSourceResponse, responses=problems(404))
async def stream_output(
    desk: AtDesk,
    row: FoundTask,
    after: After = _START,
    attempt: Attempt = None,
    last_seen: Annotated[str | None, last_event_id(_PLACE)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """What the task printed and prints: history, then live, without a gap or a double between.

    Each event's id is its place; a reader that was cut off sends the last one it saw as
    `Last-Event-ID` and goes on from there. Ends with an event `end` when the task, or the attempt
    that was asked for, has ended.
    """
    place = max(_place(last_seen or after), Place(attempt or 0, 0))
    last = row
    async for current, entries in following.updates(
        desk.backend, row.id, after=place, look_every=_LOOK_EVERY
    ):
        last = current
        for entry in entries:
            if attempt in (None, entry.attempt):
                piece = _piece(row.spec.job_id, row.spec.key, entry)
                yield ServerSentEvent(event="output", id=piece["id"], data=piece)
        if attempt is not None and current.attempt > attempt and not entries:
            break
    yield ServerSentEvent(event="end", data={"status": last.state.value})


@router.get(
    "/jobs/{job_id}/output/stream", response_class=EventSourceResponse, responses=problems(404)
)
async def stream_job_output(
    desk: AtDesk,
    job: FoundJob,
    follow: Follow = True,  # noqa: FBT002 - a query's parameters have names
    attempt: Attempt = None,
) -> AsyncIterator[ServerSentEvent]:
    """What all tasks of a job printed, by time, and print while it runs.

    Each piece names its task and its place there. Many tasks print at once, so a whole job has no
    place to take up again from: a reader that was cut off begins anew and drops what it has, or
    reads the streams of single tasks. Ends with an event `end`.
    """
    pieces = following.of_job(desk.backend, job.id, follow=follow, attempt=attempt)
    async for piece in pieces:
        yield ServerSentEvent(event="output", data=_piece(job.id, piece.key, piece.entry))
    last = await desk.backend.ledger.job(job.id)
    yield ServerSentEvent(event="end", data={"status": last.state.value if last else None})


def _place(text: str) -> Place:
    attempt, _, sequence = text.partition(".")
    return Place(int(attempt), int(sequence))


def _piece(job_id: str, key: str, entry: OutputEntry) -> dict[str, Any]:
    piece: dict[str, Any] = {
        "id": f"{entry.attempt}.{entry.end}",
        "jobId": job_id,
        "taskId": key,
        "attempt": entry.attempt,
        "sequence": entry.sequence,
        "at": views.moment(entry.at),
        "stream": entry.stream.value,
        "text": entry.data.decode(errors="replace"),
    }
    if piece["text"].encode() != entry.data:
        piece["base64"] = base64.b64encode(entry.data).decode()
    if entry.last is not None:
        piece["lastSequence"] = entry.last
    return piece
