"""Reads events in pages, and waits for more while their job or task runs."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from longshore.core.events.event import Event
from longshore.core.pages import Page
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.errors import UsageError
from longshore.ports.backend import Backend
from longshore.ports.events import EventLog

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


FEED_START = FeedCursor()
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


def job_feed(events: EventLog, job: JobRow, *, tasks: bool) -> EventFeed:
    """The events of a job; with ``tasks`` those of its tasks too."""

    async def fetch(limit: int, cursor: str | None) -> Page[Event]:
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
    after: FeedCursor = FEED_START,
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
        items, after, has_more = await feed.read_after(after, _PAGE)
        for item in items:
            yield item
        if has_more:
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
