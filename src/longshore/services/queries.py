"""Tenant-checked reads, and documents of what was read.

Each method takes the tenant first. A job or task of another tenant is reported as not found, as if
it did not exist.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from longshore.core.events.codec import properties_of
from longshore.core.events.event import Event
from longshore.core.ids import task_id_of
from longshore.core.jobs.graph import Graph
from longshore.core.pages import Page
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.errors import UsageError
from longshore.ports.backend import Backend
from longshore.services import documents as d
from longshore.services.reads import get_job_of, get_task_of
from longshore.services.spill import DocumentStore

EVENT_CURSOR_PATTERN = r"^[A-Za-z0-9_-]{0,500}(\.[0-9]{1,4}\.[0-9a-f]{8})?$"
"""An event cursor as text; the empty text is the beginning."""

_PAGE = 500
_TAG_BYTES = 4
_MAX_OFFSET = 5_000
# The last page is read again on each poll, so it should be a short one.
_SHORT_PAGE = 20


@dataclass(frozen=True, slots=True)
class FeedCursor:
    """A position in a feed: an event-log cursor and the number of events read after it."""

    cursor: str | None = None
    offset: int = 0


FeedItem = tuple[FeedCursor, Event]
"""An event, and the position after it."""


@dataclass(frozen=True, slots=True)
class EventFeed:
    """A growing list of events that a reader can continue later, without gaps or duplicates.

    The event log's cursors lead from page to page, and its last page has none. A reader that waits
    for more events, or stops in the middle of a page, needs its own position: a cursor, and how
    many events after it were read. Events are only added at the end, so a position stays valid. It
    is valid for one feed only, so the encoded position has a tag of the feed.
    """

    name: str
    fetch: Callable[[int, str | None], Awaitable[Page[Event]]]  # limit, cursor

    def encode(self, cursor: FeedCursor) -> str:
        """The position as text."""
        return f"{cursor.cursor or ''}.{cursor.offset}.{self._tag}"

    def decode(self, text: str) -> FeedCursor:
        """The position that a text encodes.

        Raises:
            UsageError: the text encodes no position of this feed.
        """
        cursor, _, rest = text.partition(".")
        offset, _, tag = rest.partition(".")
        if int(offset or 0) > _MAX_OFFSET:
            message = "the cursor is not valid; leave it out to begin at the first page"
            raise UsageError(message)
        if tag not in ("", self._tag):
            message = "the cursor belongs to a list of other events; leave it out to begin"
            raise UsageError(message)
        return FeedCursor(cursor or None, int(offset or 0))

    @property
    def _tag(self) -> str:
        return hashlib.blake2b(self.name.encode(), digest_size=_TAG_BYTES).hexdigest()

    async def read_after(
        self, after: FeedCursor, limit: int
    ) -> tuple[list[FeedItem], FeedCursor, bool]:
        """The next events, the position after them, and whether more are already recorded.

        Raises:
            UsageError: there is no such position.
        """
        page = await self.fetch(after.offset + limit, after.cursor)
        fresh = enumerate(page.items[after.offset :], start=after.offset + 1)
        events = [(FeedCursor(after.cursor, number), event) for number, event in fresh]
        if page.cursor is not None:
            return events, FeedCursor(page.cursor), True
        end = FeedCursor(after.cursor, len(page.items))
        if end.offset > _SHORT_PAGE:
            # All events but the last are followed by one, so there is a cursor to that.
            shorter = await self.fetch(end.offset - 1, after.cursor)
            end = FeedCursor(shorter.cursor, 1) if shorter.cursor is not None else end
        return events, end, False


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Reads rows and events of a tenant.

    Args:
        environment: The deployment environment, part of every event document.
        events_ttl_days: How long the event store keeps events; 0: forever.
    """

    backend: Backend
    documents: DocumentStore
    environment: str
    events_ttl_days: int

    async def job(self, tenant: str, job_id: str) -> JobRow:
        """The row of a job.

        Raises:
            NotFound: the tenant has no such job.
        """
        return await get_job_of(self.backend.ledger, tenant, job_id)

    async def task(self, tenant: str, task_id: str) -> TaskRow:
        """The row of a task.

        Raises:
            NotFound: the tenant has no such task.
        """
        return await get_task_of(self.backend.ledger, tenant, task_id)

    async def graph(self, job: JobRow) -> Graph:
        """The dependencies of a job's tasks."""
        return await self.documents.load_graph(job)

    async def tasks_of(self, job: JobRow) -> list[TaskRow]:
        """The rows of all tasks of a job, in the job's order."""
        keys = (await self.graph(job)).keys
        return await self.backend.ledger.get_tasks([task_id_of(job.id, key) for key in keys])

    async def job_document(self, job: JobRow) -> d.JobDocument:
        """A job in a listing."""
        tasks: Sequence[TaskRow] = ()
        if job.total == 1 and job.state.terminal:
            page = await self.backend.ledger.list_tasks(job.spec.tenant, job_id=job.id, limit=1)
            tasks = page.items
        return d.job_document(d.JobDocument, job, tasks)

    async def task_documents(self, rows: Sequence[TaskRow]) -> list[d.TaskDocument]:
        """Tasks with their latest events."""
        events = await self.latest_events(rows)
        return [
            d.task_document(d.TaskDocument, row, event)
            for row, event in zip(rows, events, strict=True)
        ]

    async def latest_events(self, rows: Sequence[TaskRow]) -> list[Event | None]:
        """The latest event of each task."""
        return await asyncio.gather(
            *(self.backend.events.latest(row.spec.tenant, f"TASK#{row.id}") for row in rows)
        )

    # Events -------------------------------------------------------------------------------------

    async def event_document(self, event: Event) -> d.EventDocument:
        """An event, with large properties that were moved out of it put back."""
        properties = await self.documents.restore(properties_of(event))
        return d.event_document(
            event, properties, environment=self.environment, ttl_days=self.events_ttl_days
        )

    def job_feed(self, job: JobRow, *, tasks: bool) -> EventFeed:
        """The events of a job; with ``tasks`` those of its tasks too."""

        async def fetch(limit: int, cursor: str | None) -> Page[Event]:
            return await self.backend.events.query(
                job.spec.tenant,
                entity=None if tasks else f"JOB#{job.id}",
                job_id=job.id if tasks else None,
                limit=limit,
                cursor=cursor,
            )

        return EventFeed(f"{job.id} {tasks}", fetch)

    async def follow_job(
        self, job: JobRow, feed: EventFeed, after: FeedCursor, *, follow: bool, poll: timedelta
    ) -> AsyncIterator[FeedItem | JobRow | None]:
        """The events of a job, and with ``follow`` new ones until it has ended.

        The last item is the job's row, None if the job was deleted.
        """
        while True:
            # Read before the events: all events of a job are stored before its row is terminal.
            row = await self.backend.ledger.get_job(job.id)
            items, after, has_more = await feed.read_after(after, _PAGE)
            for item in items:
                yield item
            if has_more:
                continue
            if not follow or row is None or row.state.terminal:
                yield row
                return
            await self.backend.clock.sleep(poll)

    async def follow_task(
        self, task: TaskRow, after: int, *, poll: timedelta
    ) -> AsyncIterator[Event | TaskRow | None]:
        """The events of a task, and new ones until it has ended.

        The last item is the task's row, None if the task was deleted.
        """
        while True:
            # Read before the events: all events of a task are stored before its row is terminal.
            row = await self.backend.ledger.get_task(task.id)
            events = await self.backend.events.history(
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
            await self.backend.clock.sleep(poll)
