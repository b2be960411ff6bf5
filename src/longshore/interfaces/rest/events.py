"""What was told: of a task, of a job with its tasks, of everything; as pages and as streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from longshore.core.events.codec import to_wire
from longshore.core.events.event import Event
from longshore.core.keys import Scope
from longshore.core.rows import JobRow, TaskRow
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import problems
from longshore.interfaces.rest.callers import Caller, Reader
from longshore.interfaces.rest.desk import AtDesk, Desk
from longshore.interfaces.rest.found import FoundJob, FoundTask
from longshore.interfaces.rest.params import MOST_PIECES, LongLimit, last_event_id
from longshore.interfaces.rest.places import PATTERN, Place, Telling
from longshore.ports.pages import Page
from longshore.services.access import KEYS

router = APIRouter(tags=["events"])
_OF_TASK = "/jobs/{job_id}/tasks/{task_id}/events"
_NUMBER = r"^[0-9]{1,15}$"
_AT_ONCE = 500
_LOOK_EVERY = timedelta(milliseconds=500)
_WHERE = "`cursor` or `end` of a page before; without it: from the beginning."
From = Annotated[str, Query(pattern=PATTERN, description=_WHERE)]
OfTasks = Annotated[bool, Query(description="Those of its tasks too, not the job's own alone.")]


@router.get("/events", response_model=s.EventPage, responses=problems())
async def list_events(
    desk: AtDesk,
    caller: Reader,
    limit: LongLimit = 100,
    cursor: From = "",
    app: Annotated[str | None, Query(max_length=64)] = None,
    event_type: Annotated[
        str | None, Query(alias="eventType", max_length=100, examples=["Task Failed"])
    ] = None,
    entity: Annotated[
        str | None, Query(max_length=400, examples=["TASK#job-…_fetch", "SYSTEM#health-check"])
    ] = None,
    job_id: Annotated[str | None, Query(alias="jobId", max_length=64)] = None,
) -> Any:
    """All events of the tenant that fit, in the order in which they were recorded.

    Whoever wants to miss nothing keeps `end` and asks again with it: a durable cursor. What was
    done to keys is shown to keys with the scope `admin`, so a page may have fewer events than its
    limit although more follow.
    """

    async def ask(most: int, after: str | None) -> Page[Event]:
        return await desk.backend.events.query(
            caller.tenant,
            app=app,
            event_type=event_type,
            entity=entity,
            job_id=job_id,
            limit=most,
            cursor=after,
        )

    telling = Telling(repr((app, event_type, entity, job_id)), ask)
    return await _page(desk, caller, telling, cursor, limit)


@router.get("/jobs/{job_id}/events", response_model=s.EventPage, responses=problems(404))
async def read_job_events(
    desk: AtDesk,
    caller: Reader,
    job: FoundJob,
    limit: LongLimit = 100,
    cursor: From = "",
    tasks: OfTasks = True,  # noqa: FBT002 - a query's parameters have names
) -> Any:
    """What happened to a job and to its tasks, in the order in which it was recorded."""
    return await _page(desk, caller, _of_job(desk, job, tasks=tasks), cursor, limit)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A job's events, and where a reader stands among them."""

    telling: Telling
    place: Place


async def _reading(
    desk: AtDesk,
    job: FoundJob,
    cursor: From = "",
    tasks: OfTasks = True,  # noqa: FBT002
    last_seen: Annotated[str | None, last_event_id(PATTERN)] = None,
) -> _Reading:
    telling = _of_job(desk, job, tasks=tasks)
    place = telling.read(last_seen or cursor)
    # A place that there is not must be told before the stream has begun.
    await telling.ask(1, place.cursor)
    return _Reading(telling, place)


@router.get(
    "/jobs/{job_id}/events/stream", response_class=EventSourceResponse, responses=problems(404)
)
async def stream_job_events(
    desk: AtDesk, job: FoundJob, reading: Annotated[_Reading, Depends(_reading)]
) -> AsyncIterator[ServerSentEvent]:
    """The history of a job and its tasks, then what happens to them, until the job has ended.

    Each event's id is its place; a reader that was cut off sends the last one it saw as
    `Last-Event-ID` and goes on from there, without a gap or a double. Ends with an event `end`.
    """
    telling, place = reading.telling, reading.place
    while True:
        # The row first: a job that has ended has told so before its row said it.
        current = await desk.backend.ledger.job(job.id)
        batch = await telling.behind(place, _AT_ONCE)
        for behind, event in batch.events:
            data = await event_document(desk, event)
            yield ServerSentEvent(event="event", id=telling.written(behind), data=data)
        place = batch.end
        if batch.more:
            continue
        if current is None or current.state.terminal:
            break
        await desk.backend.clock.sleep(_LOOK_EVERY)
    yield ServerSentEvent(event="end", data={"status": current.state.value if current else None})


@router.get(_OF_TASK, response_model=s.TaskEventPage, responses=problems(404))
async def read_task_events(
    desk: AtDesk,
    row: FoundTask,
    limit: LongLimit = 100,
    after: Annotated[
        int, Query(ge=0, le=10**15, description="`sequence` of the last one seen.")
    ] = 0,
) -> Any:
    """The task's history, from its beginning."""
    events = await _history(desk, row, after, limit)
    return {"events": [await event_document(desk, event) for event in events]}


@router.get(f"{_OF_TASK}/stream", response_class=EventSourceResponse, responses=problems(404))
async def stream_task_events(
    desk: AtDesk,
    row: FoundTask,
    after: Annotated[str, Query(pattern=_NUMBER)] = "0",
    last_seen: Annotated[str | None, last_event_id(_NUMBER)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """The task's history, then what happens to it, until it has ended.

    `Last-Event-ID` is the sequence of the last event that the reader saw.
    """
    seen = int(last_seen or after)
    while True:
        # The row first: a task that has ended has told so before its row said it.
        current = await desk.backend.ledger.task(row.id)
        events = await _history(desk, row, seen, MOST_PIECES)
        for event in events:
            seen = event.sequence
            data = await event_document(desk, event)
            yield ServerSentEvent(event="event", id=str(seen), data=data)
        if not events:
            if current is None or current.state.terminal:
                break
            await desk.backend.clock.sleep(_LOOK_EVERY)
    yield ServerSentEvent(event="end", data={"status": current.state.value if current else None})


async def event_document(desk: Desk, event: Event) -> dict[str, Any]:
    """The event as it travels, with what was moved out of it put back."""
    days = desk.events_ttl_days
    ttl_at = event.at + timedelta(days=days) if days else None
    wire = to_wire(event, environment=desk.environment, ttl_at=ttl_at)
    return {**wire, "properties": await desk.documents.whole(wire["properties"])}


async def _page(
    desk: Desk, caller: Caller, telling: Telling, cursor: str, limit: int
) -> dict[str, Any]:
    batch = await telling.behind(telling.read(cursor), limit)
    shown = [event for _, event in batch.events if _may_see(caller, event)]
    end = telling.written(batch.end)
    return {
        "events": [await event_document(desk, event) for event in shown],
        "cursor": end if batch.more else None,
        "end": end,
    }


def _may_see(caller: Caller, event: Event) -> bool:
    return event.entity != f"SYSTEM#{KEYS}" or caller.key.allows(Scope.ADMIN)


def _of_job(desk: Desk, job: JobRow, *, tasks: bool) -> Telling:
    async def ask(most: int, after: str | None) -> Page[Event]:
        return await desk.backend.events.query(
            job.spec.tenant,
            entity=None if tasks else f"JOB#{job.id}",
            job_id=job.id if tasks else None,
            limit=most,
            cursor=after,
        )

    return Telling(f"{job.id} {tasks}", ask)


async def _history(desk: Desk, row: TaskRow, after: int, limit: int) -> list[Event]:
    entity = f"TASK#{row.id}"
    return await desk.backend.events.history(row.spec.tenant, entity, after=after, limit=limit)
