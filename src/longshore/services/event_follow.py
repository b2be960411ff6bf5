"""Reads events in pages, and waits for more while their job or task runs."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from longshore.core.events.event import Event
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.errors import UsageError
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.ports.events import EventQueryResult

EVENT_CURSOR_PATTERN = r"^[A-Za-z0-9_-]{0,500}(\.[0-9a-f]{8})?$"
"""An event cursor as text; the empty text is the beginning."""

_PAGE = 500
_TAG_BYTES = 4

FeedItem = tuple[str, Event]
"""The cursor after an event, and the event."""


async def _no_row() -> None:
    return None


@dataclass(frozen=True, slots=True)
class EventFeed:
    """A growing list of events that a reader can continue later, without gaps or duplicates.

    Events are only added at the end, so a cursor stays valid. It is valid for one feed only, so its
    text has a tag of the feed.
    """

    name: str
    fetch: Callable[[int, str | None], Awaitable[EventQueryResult]]  # limit, cursor
    # Of the job or task whose events these are: no more are added when it has ended.
    read_row: Callable[[], Awaitable[JobRow | TaskRow | None]] = _no_row

    def encode(self, cursor: str | None) -> str:
        """The cursor as text; None: the beginning."""
        return f"{cursor or ''}.{self._tag}"

    def decode(self, text: str) -> str | None:
        """The cursor that a text encodes.

        Raises:
            UsageError: the text encodes no cursor of this feed.
        """
        cursor, _, tag = text.partition(".")
        if tag not in ("", self._tag):
            message = "the cursor belongs to a list of other events; leave it out to begin"
            raise UsageError(message)
        return cursor or None

    @property
    def _tag(self) -> str:
        return hashlib.blake2b(self.name.encode(), digest_size=_TAG_BYTES).hexdigest()


def job_feed(backend: Backend, job: JobRow, *, tasks: bool) -> EventFeed:
    """The events of a job; with ``tasks`` those of its tasks too."""

    async def fetch(limit: int, cursor: str | None) -> EventQueryResult:
        return await backend.events.query(
            job.spec.tenant,
            entity=None if tasks else f"JOB#{job.id}",
            job_id=job.id if tasks else None,
            limit=limit,
            cursor=cursor,
        )

    return EventFeed(f"{job.id} {tasks}", fetch, lambda: backend.ledger.get_job(job.id))


def task_feed(backend: Backend, task: TaskRow) -> EventFeed:
    """The events of a task; their sequences are the cursors."""

    async def fetch(limit: int, cursor: str | None) -> EventQueryResult:
        items = await backend.events.history(
            task.spec.tenant, f"TASK#{task.id}", after=int(cursor or 0), limit=limit
        )
        cursors = tuple(str(event.sequence) for event in items)
        return EventQueryResult(tuple(items), cursors, more=bool(items))

    return EventFeed(task.id, fetch, lambda: backend.ledger.get_task(task.id))


async def follow_events(
    feed: EventFeed,
    cursor: str | None = None,
    *,
    follow: bool = True,
    clock: Clock,
    poll: timedelta,
) -> AsyncIterator[FeedItem | JobRow | TaskRow | None]:
    """The events of a job or task, and with ``follow`` new ones until it has ended.

    The last item is its row, None if it was deleted.
    """
    while True:
        # Read before the events: all events of a row are stored before it is terminal.
        row = await feed.read_row()
        page = await feed.fetch(_PAGE, cursor)
        for cursor, event in zip(page.cursors, page.items, strict=True):
            yield cursor, event
        if page.more:
            continue
        if not follow or row is None or row.state.terminal:
            yield row
            return
        await clock.sleep(poll)
