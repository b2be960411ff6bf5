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
from longshore.ports.events import EventLog, EventQueryResult

EVENT_CURSOR_PATTERN = r"^[A-Za-z0-9_-]{0,500}(\.[0-9a-f]{8})?$"
"""An event cursor as text; the empty text is the beginning."""

_PAGE = 500
_TAG_BYTES = 4

FeedItem = tuple[str, Event]
"""The cursor after an event, and the event."""


@dataclass(frozen=True, slots=True)
class EventFeed:
    """A growing list of events that a reader can continue later, without gaps or duplicates.

    Events are only added at the end, so a cursor stays valid. It is valid for one feed only, so its
    text has a tag of the feed.
    """

    name: str
    fetch: Callable[[int, str | None], Awaitable[EventQueryResult]]  # limit, cursor

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


def job_feed(events: EventLog, job: JobRow, *, tasks: bool) -> EventFeed:
    """The events of a job; with ``tasks`` those of its tasks too."""

    async def fetch(limit: int, cursor: str | None) -> EventQueryResult:
        return await events.query(
            job.spec.tenant,
            entity=None if tasks else f"JOB#{job.id}",
            job_id=job.id if tasks else None,
            limit=limit,
            cursor=cursor,
        )

    return EventFeed(f"{job.id} {tasks}", fetch)


async def follow_job(
    backend: Backend,
    job_id: str,
    feed: EventFeed,
    cursor: str | None = None,
    *,
    follow: bool,
    poll: timedelta,
) -> AsyncIterator[FeedItem | JobRow | None]:
    """The events of a job, and with ``follow`` new ones until it has ended.

    The last item is the job's row, None if the job was deleted.
    """
    while True:
        # Read before the events: all events of a job are stored before its row is terminal.
        row = await backend.ledger.get_job(job_id)
        page = await feed.fetch(_PAGE, cursor)
        for cursor, event in zip(page.cursors, page.items, strict=True):
            yield cursor, event
        if page.more:
            continue
        if not follow or row is None or row.state.terminal:
            yield row
            return
        await backend.clock.sleep(poll)


async def follow_task(
    backend: Backend, task: TaskRow, after: int, *, poll: timedelta
) -> AsyncIterator[Event | TaskRow | None]:
    """The events of a task, and new ones until it has ended.

    The last item is the task's row, None if the task was deleted.
    """
    while True:
        # Read before the events: all events of a task are stored before its row is terminal.
        row = await backend.ledger.get_task(task.id)
        events = await backend.events.history(
            task.spec.tenant, f"TASK#{task.id}", after=after, limit=_PAGE
        )
        for event in events:
            yield event
            after = event.sequence
        if events:
            continue
        if row is None or row.state.terminal:
            yield row
            return
        await backend.clock.sleep(poll)
