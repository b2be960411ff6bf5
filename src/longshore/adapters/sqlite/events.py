"""The event log in SQLite.

What an event says is in the history beside its row; the feed has the order of all events. There is
one writing transaction at a time, and positions are assigned inside it. So they become visible in
order, and a reader never sees an earlier position after a later one. A cursor is a position with
its epoch, and the number of events at that position that were read. A position that a restore or
a power loss has undone is after the end of its epoch: such a cursor is refused, because its reader
has seen events that this store does not have.

A page of events is found by an index, so that the length of the feed does not matter:

===================  =============================================================================
of one entity        its history
of one job           along the feed near its end, otherwise the rows of the feed that the
                     histories of the job and its tasks name
of a type or app     along ``feed_types``, one range for each type and app, merged
of a tenant          the same, all types
===================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, Unpack

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.blobs import read_blob
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.history import (
    EVENT_NAMES,
    EVENT_NUMBERS,
    HistoryReader,
    unpack_records,
)
from longshore.adapters.sqlite.rows import (
    NUMBER_BITS,
    StoreReader,
)
from longshore.adapters.sqlite.store_file import Row
from longshore.adapters.sqlite.transaction import (
    FEED_BLOCK_BITS,
    FeedEntry,
    StoreTransaction,
    feed_entries,
)
from longshore.core.events.codec import body_from_properties, from_ms, properties_of, to_ms
from longshore.core.events.event import Event, EventContext, NewEvent, next_event
from longshore.core.events.types import EntityType
from longshore.core.ids import split_task_id
from longshore.core.pages import decode_cursor, encode_cursor
from longshore.errors import CursorLost
from longshore.ports.events import EventConditions, EventQueryResult

NEAR_END_POSITIONS = 1_000
"""Within so many positions of the end, reading along the feed is faster than a job's histories."""
_FEED_ROWS = 200  # that one read of the feed returns
_ALL_EVENTS = 2**31  # more than a position has

_OTHER_FIELDS = (
    "position, entity, sequence, tenant, app, type, at_ms, origin, source, worker_id, properties"
)
_INSERT_OTHER = f"INSERT INTO other_events ({_OTHER_FIELDS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)"

ResultT = TypeVar("ResultT")

Numbered = tuple[int, int, Event]
"""An event with its position, and its number among the events at that position."""
FeedRow = tuple[int, Iterable[FeedEntry]]
"""A position, and the events there."""


@dataclass(frozen=True, slots=True)
class EventQuery:
    """What events to find: those after a cursor, up to one more than the limit."""

    tenant: str
    conditions: EventConditions
    after: tuple[int, int]
    limit: int

    def matches(self, event: Event) -> bool:
        """Whether an event of the tenant matches every condition."""
        condition, job_id = self.conditions.get, self.conditions.get("job_id")
        return (
            condition("event_type") in (None, event.type)
            and condition("app") in (None, event.app)
            and condition("entity") in (None, event.entity)
            and (job_id is None or job_id == split_task_id(event.entity_id)[0])
        )


class FeedReader:
    """Reads events through one connection."""

    def __init__(self, reader: StoreReader, folder: Path) -> None:
        self._reader = reader
        self._select = reader.select
        self._history = HistoryReader(reader, lambda key: read_blob(reader, folder, key))

    def query(self, query: EventQuery) -> list[Numbered]:
        """The events of a query."""
        entity, job_id = query.conditions.get("entity"), query.conditions.get("job_id")
        if entity is not None:
            events = _numbered(self.of_entity(query.tenant, entity), query.after)
            return [numbered for numbered in events if query.matches(numbered[2])]
        if job_id is None:
            return self.along_feed(query, partial(self.rows_of_types, query))
        near_end = self.last_position() - query.after[0] <= NEAR_END_POSITIONS
        return self.along_feed(
            query, self.rows_after if near_end else partial(self.rows_of_job, job_id)
        )

    def last_position(self) -> int:
        """The position of the last event; 0: there is none."""
        position: int = self._reader.value("SELECT coalesce(max(position), 0) FROM feed")
        return position

    def of_entity(self, tenant: str, entity: str) -> list[tuple[int, Event]]:
        """All events of an entity with their positions, by sequence."""
        kind, _, entity_id = entity.partition("#")
        if kind == EntityType.TASK:
            events = self._history.of_number(self._reader.task_no(entity_id))
        elif kind == EntityType.JOB:
            events = self._history.of_number(-self._reader.job_no(entity_id))
        else:
            owner = self._reader.find_name(tenant)
            sql = (
                f"SELECT {_OTHER_FIELDS} FROM other_events WHERE entity = ? AND tenant = ?"
                " ORDER BY sequence"
            )
            events = [(row[0], self._other(row)) for row in self._select(sql, (entity, owner))]
        return [numbered for numbered in events if numbered[1].tenant == tenant]

    def _other(self, row: Row) -> Event:
        _, entity, sequence, tenant, app, type_, at_ms, origin, source, worker_id, text = row
        kind, _, entity_id = entity.partition("#")
        body, _ = body_from_properties(EVENT_NAMES[type_], codec.value_from_json(text))
        return Event(
            entity_type=EntityType(kind),
            entity_id=entity_id,
            tenant=self._reader.name(tenant),
            app=self._reader.name(app),
            sequence=sequence,
            at=from_ms(at_ms),
            body=body,
            context=EventContext(origin=origin, source=source, worker_id=worker_id),
        )

    def along_feed(
        self, query: EventQuery, rows_after: Callable[[int], list[FeedRow]]
    ) -> list[Numbered]:
        """Events that match, from the rows of the feed that ``rows_after`` a position returns."""
        owner = self._reader.find_name(query.tenant)
        type_, job_id = query.conditions.get("event_type"), query.conditions.get("job_id")
        type_number = None if type_ is None else EVENT_NUMBERS.get(type_, -1)
        job = None if job_id is None else self._reader.job_no(job_id)
        matches: list[Numbered] = []
        after = query.after
        position = after[0] - 1 if after[1] else after[0]
        while page := rows_after(position):
            for position, entries in page:
                skip = after[1] if position == after[0] else 0
                for number, entry in enumerate(entries, 1):
                    if (
                        number <= skip
                        or entry.tenant != owner
                        or type_number not in (None, entry.type)
                        or (job is not None and entry.job not in (None, job))
                    ):
                        continue
                    matches += [
                        (position, number, event)
                        for event in self.event_of(entry)
                        if query.matches(event)
                    ]
                    if len(matches) > query.limit:
                        return matches
        return matches

    def event_of(self, entry: FeedEntry) -> list[Event]:
        """The event of an entry; none if its row is gone."""
        if entry.entity is None:
            sql = f"SELECT {_OTHER_FIELDS} FROM other_events WHERE no = ?"
            return [self._other(row) for row in self._select(sql, (entry.sequence,))]
        return [event for _, event in self._history.of_number(entry.entity, entry.sequence)]

    def rows_after(self, position: int) -> list[FeedRow]:
        """Some rows of the feed after a position."""
        sql = "SELECT position, entries FROM feed WHERE position > ? ORDER BY position LIMIT ?"
        return [(row[0], feed_entries(row[1])) for row in self._select(sql, (position, _FEED_ROWS))]

    def rows_of_job(self, job_id: str, position: int) -> list[FeedRow]:
        """Some rows of the feed after a position that have events of a job or its tasks."""
        positions = positions_of_job(self._reader, self._reader.job_no(job_id))
        later = {item for item in positions if item > position}
        sql = "SELECT entries FROM feed WHERE position = ?"
        page: list[FeedRow] = []
        for item in sorted(later)[:_FEED_ROWS]:
            existing = self._select(sql, (item,))
            page.append((item, feed_entries(existing[0][0]) if existing else ()))
        return page

    def rows_of_types(self, query: EventQuery, position: int) -> list[FeedRow]:
        """Some rows of the feed after a position, with all events of a tenant, type and app."""
        owner = self._reader.find_name(query.tenant)
        type_, app = query.conditions.get("event_type"), query.conditions.get("app")
        type_number = None if type_ is None else EVENT_NUMBERS.get(type_, -1)
        app_number = None if app is None else self._reader.find_name(app) or -1
        pairs = [
            (of_type, of_app)
            for of_type, of_app in self._types_and_apps(owner)
            if type_number in (None, of_type) and app_number in (None, of_app)
        ]
        if not pairs:
            return []
        bits = FEED_BLOCK_BITS
        ranges = " UNION ".join(
            f"SELECT block FROM feed_types WHERE tenant = ?1 AND type = {of_type}"
            f" AND app = {of_app} AND block >= ?2 >> {bits}"
            for of_type, of_app in pairs
        )
        # SQLite merges the ranges as it reads them, because the ORDER BY is that of the UNION.
        sql = (
            f"SELECT f.position, f.entries FROM ({ranges} ORDER BY block) AS b"
            f" CROSS JOIN feed AS f ON f.position >= max(b.block << {bits}, ?2 + 1)"
            f" AND f.position < b.block + 1 << {bits} ORDER BY b.block, f.position LIMIT ?3"
        )
        matches = self._select(sql, (owner, position, _FEED_ROWS))
        return [(row[0], feed_entries(row[1])) for row in matches]

    def _types_and_apps(self, tenant: int | None) -> list[tuple[int, int]]:
        """The types and apps of a tenant's events, each found by one jump along the index."""
        pairs: list[tuple[int, int]] = []
        # A comparison of both columns at once would read every row of the pair before.
        sql = (
            "SELECT * FROM (SELECT type, app FROM feed_types WHERE tenant = ?1 AND type = ?2"
            " AND app > ?3 ORDER BY app LIMIT 1) UNION ALL"
            " SELECT * FROM (SELECT type, app FROM feed_types WHERE tenant = ?1 AND type > ?2"
            " ORDER BY type, app LIMIT 1) LIMIT 1"
        )
        while following := self._select(sql, (tenant, *(pairs[-1] if pairs else (-1, -1)))):
            pairs.append((following[0][0], following[0][1]))
        return pairs


def positions_of_job(reader: StoreReader, job: int) -> Iterator[int]:
    """The positions of the events of a job and its tasks, in any order."""
    first, end = job << NUMBER_BITS, job + 1 << NUMBER_BITS
    for sql, values in (
        ("SELECT history FROM jobs WHERE no = ?", (job,)),
        ("SELECT history FROM tasks WHERE no >= ? AND no < ?", (first, end)),
        ("SELECT body FROM history_segments WHERE entity = ?", (-job,)),
        ("SELECT body FROM history_segments WHERE entity >= ? AND entity < ?", (first, end)),
    ):
        for (history,) in reader.select(sql, values):
            for record in unpack_records(history):
                yield record.position


def _numbered(events: list[tuple[int, Event]], after: tuple[int, int]) -> list[Numbered]:
    """The events after a cursor, numbered at their positions."""
    result: list[Numbered] = []
    last = count = 0
    for position, event in events:
        count = count + 1 if position == last else 1
        last = position
        if (position, count) > after:
            result.append((position, count, event))
    return result


@dataclass(eq=False)
class SqliteEventLog:
    """See ``ports.events.EventLog``."""

    _database: Database

    async def append(self, **new: Unpack[NewEvent]) -> Event:
        entity = f"{new['body'].ENTITY.value}#{new['entity_id']}"

        def work(transaction: StoreTransaction) -> Event:
            tenant, app = transaction.number_of(new["tenant"]), transaction.number_of(new["app"])
            last = transaction.select(
                "SELECT sequence, at_ms FROM other_events WHERE entity = ? AND tenant = ?"
                " ORDER BY sequence DESC LIMIT 1",
                (entity, tenant),
            )
            sequence, at_ms = last[0] if last else (0, None)
            event = next_event(new, sequence, None if at_ms is None else from_ms(at_ms))
            type_, context = EVENT_NUMBERS[event.type], event.context
            values = (
                *(transaction.position, entity, event.sequence, tenant, app, type_),
                *(to_ms(event.at), context.origin, context.source, context.worker_id),
                codec.to_json(properties_of(event)),
            )
            transaction.execute(_INSERT_OTHER, values)
            no = transaction.connection.last_insert_rowid()
            transaction.record_events(type_, tenant, app, no, (0,))
            return event

        return await self._database.write(work)

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        events = await self._read(lambda feed: feed.of_entity(tenant, entity))
        return [event for _, event in events if event.sequence > after][:limit]

    async def latest(self, tenant: str, entity: str) -> Event | None:
        events = await self.history(tenant, entity, limit=2**62)
        return events[-1] if events else None

    async def query(
        self,
        tenant: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        **conditions: Unpack[EventConditions],
    ) -> EventQueryResult:
        epoch, position, number = (None, 0, 0)
        if cursor is not None:
            epoch, position, number = decode_cursor("events", cursor, (int, int, int))
        query = EventQuery(tenant, conditions, (position, number), limit)

        def read(feed: FeedReader) -> list[Numbered]:
            if epoch is not None:
                self._check_exists(feed.last_position(), epoch, position)
            return feed.query(query)

        matches = await self._read(read)
        page = matches[:limit]
        cursors = tuple(self._cursor(position, number) for position, number, _ in page)
        return EventQueryResult(tuple(event for *_, event in page), cursors, len(matches) > limit)

    def _cursor(self, position: int, number: int) -> str:
        ended = [epoch for epoch, end in self._database.epoch_ends.items() if position <= end]
        return encode_cursor("events", min(ended, default=self._database.epoch), position, number)

    def _check_exists(self, last_position: int, epoch: int, position: int) -> None:
        """Check that this store has, or had, the position of a cursor.

        Raises:
            CursorLost: it has not.
        """
        ends = self._database.epoch_ends | {self._database.epoch: last_position}
        if epoch not in ends:
            # Of a store from the same backup: where the two parted is not known.
            raise CursorLost
        if position > ends[epoch]:
            raise CursorLost(encode_cursor("events", epoch, ends[epoch], _ALL_EVENTS))

    async def _read(self, read: Callable[[FeedReader], ResultT]) -> ResultT:
        folder = self._database.folder
        return await self._database.scan_with(lambda reader: read(FeedReader(reader, folder)))
