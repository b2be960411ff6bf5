"""One task: what it is, what came of it, what it printed, what was told of it, what it left."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from longshore.core.blob_keys import attempt_file, checked_key
from longshore.core.events.codec import to_wire
from longshore.core.events.event import Event
from longshore.core.rows import TaskRow
from longshore.errors import NotFound
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import problems
from longshore.interfaces.rest.callers import Reader
from longshore.interfaces.rest.desk import AtDesk, Desk
from longshore.interfaces.rest.jobs import task_document
from longshore.interfaces.rest.problems import Refused
from longshore.ports.output import OutputEntry, Place
from longshore.services.following import updates

router = APIRouter(prefix="/jobs/{job_id}/tasks/{task_id}", tags=["tasks"])
_MOST_A_PAGE = 1_000
# Readers are woken when something is printed; this is how soon they see that the task has ended.
_LOOK_EVERY = timedelta(milliseconds=500)
_MS = timedelta(milliseconds=1)
_PLACE = r"^[0-9]{1,9}\.[0-9]{1,15}$"
_NUMBER = r"^[0-9]{1,15}$"
_OF_TASK = ("eventId", "sequence", "eventType", "entityId", "entityType", "timestamp", "context")
Limit = Annotated[int, Query(ge=1, le=_MOST_A_PAGE, description="How many at most.")]


async def _found(desk: AtDesk, caller: Reader, job_id: str, task_id: str) -> TaskRow:
    return await desk.task(caller.tenant, job_id, task_id)


Found = Annotated[TaskRow, Depends(_found)]


@router.get("", response_model=s.TaskDocument, responses=problems(404))
async def read_task(desk: AtDesk, row: Found) -> Any:
    """The task as it is now."""
    return await task_document(desk, row)


@router.get("/result", response_model=s.ResultDocument, responses=problems(404, 409))
async def read_result(desk: AtDesk, row: Found) -> Any:
    """What the task hands to those that depend on it."""
    if row.result is None:
        detail = f"the task is {row.state.value} and has no result"
        raise Refused(409, "no-result", detail)
    return {"result": await desk.documents.load(row.result)}


@router.get("/health", response_model=s.TaskHealthDocument, responses=problems(404))
async def read_health(desk: AtDesk, row: Found) -> Any:
    """Whether a running task beats its heart, and for how long it has run; nobody else is told."""
    found = await desk.health_check.check_one(row.spec.tenant, row.id)
    return {
        "status": row.state.value,
        "health": found.health.value if found else None,
        "elapsedMs": found.elapsed // _MS if found else None,
        "silentMs": found.silence // _MS if found else None,
        "lastEventType": found.last_event_type if found else None,
        "workerId": found.worker_id if found else None,
    }


@router.get("/output", response_model=s.OutputPage, responses=problems(404))
async def read_output(
    desk: AtDesk,
    row: Found,
    limit: Limit = 100,
    after: Annotated[
        str, Query(pattern=_PLACE, description="`id` of the last piece seen.")
    ] = "0.0",
) -> Any:
    """What all attempts have printed so far, in order."""
    entries = await desk.backend.output.read(row.id, after=_place(after), limit=limit)
    return {"output": [_piece(entry) for entry in entries]}


@router.get(
    "/output/stream",
    response_class=EventSourceResponse,
    responses=problems(404),
)
async def stream_output(
    desk: AtDesk,
    row: Found,
    after: Annotated[str, Query(pattern=_PLACE)] = "0.0",
    last_event_id: Annotated[str | None, Header(pattern=_PLACE)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """What the task printed and prints: history, then live, without a gap or a double between.

    Each event's id is its place; a reader that was cut off sends the last one it saw as
    `Last-Event-ID` and goes on from there. Ends with an event `end` when the task has ended.
    """
    place = _place(last_event_id or after)
    last = row
    async for current, entries in updates(
        desk.backend, row.id, after=place, look_every=_LOOK_EVERY
    ):
        last = current
        for entry in entries:
            piece = _piece(entry)
            yield ServerSentEvent(event="output", id=piece["id"], data=piece)
    yield ServerSentEvent(event="end", data={"status": last.state.value})


@router.get("/events", response_model=s.EventPage, responses=problems(404))
async def read_events(
    desk: AtDesk,
    row: Found,
    limit: Limit = 100,
    after: Annotated[int, Query(ge=0, description="`sequence` of the last one seen.")] = 0,
) -> Any:
    """The task's history, from its beginning."""
    events = await _history(desk, row, after, limit)
    return {"events": [await _event(desk, event) for event in events]}


@router.get("/events/stream", response_class=EventSourceResponse, responses=problems(404))
async def stream_events(
    desk: AtDesk,
    row: Found,
    after: Annotated[str, Query(pattern=_NUMBER)] = "0",
    last_event_id: Annotated[str | None, Header(pattern=_NUMBER)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """The task's history, then what happens to it, until it has ended.

    `Last-Event-ID` is the sequence of the last event that the reader saw.
    """
    seen = int(last_event_id or after)
    while True:
        # The row first: a task that has ended has told so before its row said it.
        current = await desk.backend.ledger.task(row.id)
        events = await _history(desk, row, seen, _MOST_A_PAGE)
        for event in events:
            seen = event.sequence
            data = await _event(desk, event)
            yield ServerSentEvent(event="event", id=str(seen), data=data)
        if not events:
            if current is None or current.state.terminal:
                break
            await desk.backend.clock.sleep(_LOOK_EVERY)
    status = current.state.value if current else None
    yield ServerSentEvent(event="end", data={"status": status})


@router.get("/artifacts", response_model=s.ArtifactList, responses=problems(404))
async def list_artifacts(
    desk: AtDesk,
    row: Found,
    limit: Limit = 100,
    after: Annotated[str, Query(max_length=1_024, description="`name` of the last one seen.")] = "",
) -> Any:
    """Files that attempts have left."""
    prefix = attempt_file(row.id, 0, "").removesuffix("attempt-0/")
    keys = await desk.backend.blobs.keys(prefix, after=prefix + after, limit=limit)
    found = []
    for key in keys:
        size = await desk.backend.blobs.size(key)
        if size is not None:
            found.append({"name": key.removeprefix(prefix), "bytes": size})
    return {"artifacts": found}


@router.get(
    "/artifacts/{name:path}",
    response_class=StreamingResponse,
    responses={
        **problems(404),
        200: {
            "description": "The file.",
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
        },
    },
)
async def read_artifact(desk: AtDesk, row: Found, name: str) -> Any:
    """One of these files."""
    key = checked_key(attempt_file(row.id, 0, "").removesuffix("attempt-0/") + name)
    size = await desk.backend.blobs.size(key)
    if size is None:
        raise NotFound("artifact", name[:300])
    # Whatever it is, a browser must not run it here.
    headers = {"Content-Length": str(size), "Content-Disposition": "attachment"}
    return StreamingResponse(
        desk.backend.blobs.stream(key), headers=headers, media_type="application/octet-stream"
    )


def _place(text: str) -> Place:
    attempt, _, sequence = text.partition(".")
    return Place(int(attempt), int(sequence))


def _piece(entry: OutputEntry) -> dict[str, Any]:
    piece: dict[str, Any] = {
        "id": f"{entry.attempt}.{entry.end}",
        "attempt": entry.attempt,
        "sequence": entry.sequence,
        "at": entry.at,
        "stream": entry.stream.value,
        "text": entry.data.decode(errors="replace"),
    }
    if piece["text"].encode() != entry.data:
        piece["base64"] = base64.b64encode(entry.data).decode()
    if entry.last is not None:
        piece["last"] = entry.last
    return piece


async def _history(desk: Desk, row: TaskRow, after: int, limit: int) -> list[Event]:
    entity = f"TASK#{row.id}"
    return await desk.backend.events.history(row.spec.tenant, entity, after=after, limit=limit)


async def _event(desk: Desk, event: Event) -> dict[str, Any]:
    wire = to_wire(event, environment=desk.environment)
    properties = await desk.documents.whole(wire["properties"])
    return {**{name: wire[name] for name in _OF_TASK}, "properties": properties}
