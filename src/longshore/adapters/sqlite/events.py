"""The event log in SQLite, and the bus that reads it by durable cursors.

There is one writing transaction at a time, and positions are assigned inside it. So they become
visible in order, and a reader never sees an earlier position after a later one.

A page of events is found by an index, so that the length of the log does not matter. Without a hint
SQLite would read and sort all events of the tenant, so each statement names its index:

===================  =============================================================================
near the end         along the log itself, which is the case of a client that follows it
of one entity        the events of that entity
of one job           positions of the job's events from the index alone, then the rows of one page
of one type          along the index by type
of a tenant          along the same index, one range for each type, merged
===================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Unpack

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.store_file import Row, rows
from longshore.core.events.codec import EVENT_TYPES, body_from_properties, properties_of
from longshore.core.events.event import Event, EventContext, NewEvent, next_event
from longshore.core.events.types import EntityType
from longshore.core.events.wire import from_ms, to_ms
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.errors import AlreadyExists
from longshore.ports.events import Delivery, EventConditions

INSERT_EVENT = (
    "INSERT INTO events (entity, sequence, tenant, app, type, at_ms, origin, source, worker_id,"
    " properties) VALUES (?,?,?,?,?,?,?,?,?,?)"
)
_FIELDS = "entity, sequence, tenant, app, type, at_ms, origin, source, worker_id, properties"
# Within so many positions of the end, reading along the log is faster than any index.
NEAR_END_POSITIONS = 1_000

_BY_ENTITY = "events INDEXED BY events_by_entity"
_BY_TYPE = "events INDEXED BY events_by_type"
_AFTER_POSITION = "tenant = :tenant AND position > :after"
_PAGE = "ORDER BY position LIMIT :limit"
_CONDITIONS = {
    "app": " AND app = :app",
    "event_type": " AND type = :event_type",
    "entity": " AND entity = :entity",
}
_JOB = "entity = 'JOB#' || :job_id"
# The entities from TASK#job_ to TASK#job` are the job's tasks.
_TASKS = "entity >= 'TASK#' || :job_id || '_' AND entity < 'TASK#' || :job_id || '`'"


def event_values(event: Event) -> tuple[Any, ...]:
    """The values for ``INSERT_EVENT``."""
    context = event.context
    return (
        event.entity,
        event.sequence,
        event.tenant,
        event.app,
        event.body.TYPE,
        to_ms(event.at),
        context.origin,
        context.source,
        context.worker_id,
        codec.to_json(properties_of(event)),
    )


def _event(row: Row) -> Event:
    entity, sequence, tenant, app, event_type, at_ms, origin, source, worker_id, properties = row
    kind, _, entity_id = entity.partition("#")
    body, overflow = body_from_properties(event_type, codec.value_from_json(properties))
    return Event(
        entity_type=EntityType(kind),
        entity_id=entity_id,
        tenant=tenant,
        app=app,
        sequence=sequence,
        at=from_ms(at_ms),
        body=body,
        context=EventContext(origin=origin, source=source, worker_id=worker_id),
        overflow=overflow,
    )


@dataclass(eq=False)
class SqliteEventLog:
    """See ``ports.events.EventLog``."""

    _database: Database

    async def record(self, events: Sequence[Event]) -> None:
        recorded = [event_values(event) for event in events]

        def work(connection: apsw.Connection) -> None:
            for row in recorded:
                existing = rows(
                    connection,
                    f"SELECT {_FIELDS} FROM events"
                    " WHERE entity = ? AND sequence = ? AND tenant = ?",
                    row[:3],
                )
                if not existing:
                    connection.execute(INSERT_EVENT, row)
                elif existing[0] != row:
                    raise AlreadyExists("event", f"{row[0]} {row[1]}")

        await self._database.write(work, topics=(Topic.EVENTS,))

    async def append(self, **new: Unpack[NewEvent]) -> Event:
        entity = f"{new['body'].ENTITY.value}#{new['entity_id']}"

        def work(connection: apsw.Connection) -> Event:
            last = rows(
                connection,
                "SELECT sequence, at_ms FROM events WHERE entity = ? AND tenant = ?"
                " ORDER BY sequence DESC LIMIT 1",
                (entity, new["tenant"]),
            )
            sequence, at_ms = last[0] if last else (0, None)
            event = next_event(new, sequence, None if at_ms is None else from_ms(at_ms))
            connection.execute(INSERT_EVENT, event_values(event))
            return event

        return await self._database.write(work, topics=(Topic.EVENTS,))

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        matches = await self._database.scan(
            f"SELECT {_FIELDS} FROM events WHERE entity = ? AND tenant = ?"
            " AND sequence > ? ORDER BY sequence LIMIT ?",
            (entity, tenant, after, limit),
        )
        return [_event(row) for row in matches]

    async def latest(self, tenant: str, entity: str) -> Event | None:
        matches = self._database.point(
            f"SELECT {_FIELDS} FROM events WHERE entity = ? AND tenant = ?"
            " ORDER BY sequence DESC LIMIT 1",
            (entity, tenant),
        )
        return _event(matches[0]) if matches else None

    async def query(
        self,
        tenant: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        **conditions: Unpack[EventConditions],
    ) -> Page[Event]:
        after = decode_cursor("events", cursor, (int,))[0] if cursor else 0
        near_end = self.last_position() - after <= NEAR_END_POSITIONS
        sql = query_statement(f"position, {_FIELDS}", conditions, near_end=near_end)
        values = {**conditions, "tenant": tenant, "after": after, "limit": limit + 1}
        matches = await self._database.scan(sql, values)
        items = tuple(_event(row[1:]) for row in matches[:limit])
        return Page(
            items, encode_cursor("events", matches[limit - 1][0]) if len(matches) > limit else None
        )

    def last_position(self) -> int:
        """The position of the newest event; 0 if there is none."""
        return self._database.point_value("SELECT max(position) FROM events") or 0


def query_statement(columns: str, conditions: EventConditions, *, near_end: bool) -> str:
    """The statement for the rows after a position that match every condition that is not None.

    ``tenant``, ``after`` and ``limit`` are bound too. Columns are literals of this module.
    """
    used = {name for name, value in conditions.items() if value is not None}
    same = "".join(sql for name, sql in _CONDITIONS.items() if name in used)
    where = f"{_AFTER_POSITION}{same}"
    if near_end:
        job = f" AND ({_JOB} OR ({_TASKS}))" if "job_id" in used else ""
        return f"SELECT {columns} FROM events NOT INDEXED WHERE {where}{job} {_PAGE}"
    if "job_id" in used:
        part = f"SELECT position FROM {_BY_ENTITY} WHERE {where} AND"
        positions = f"SELECT position FROM ({part} {_JOB} UNION ALL {part} {_TASKS}) {_PAGE}"
        return f"SELECT {columns} FROM events WHERE position IN ({positions}) ORDER BY position"
    if "entity" in used:
        return f"SELECT {columns} FROM {_BY_ENTITY} WHERE {where} {_PAGE}"
    if "event_type" in used:
        return f"SELECT {columns} FROM {_BY_TYPE} WHERE {where} {_PAGE}"
    by_type = (
        f"SELECT {columns} FROM {_BY_TYPE} WHERE {where} AND type = '{t}'" for t in EVENT_TYPES
    )
    return f"{' UNION ALL '.join(by_type)} {_PAGE}"


@dataclass(eq=False)
class SqliteEventBus:
    """See ``ports.events.EventBus``: the log is the bus."""

    _database: Database
    _log: SqliteEventLog
    # Positions up to which no event matched, by consumer and types, so they are not read again.
    _skipped_to: dict[tuple[str, ...], int] = field(default_factory=dict)

    async def publish(self, events: Sequence[Event]) -> list[Event]:
        refused = []
        for event in events:
            try:
                await self._log.record([event])
            except AlreadyExists:
                refused.append(event)
        return refused

    async def receive(
        self, consumer: str, *, types: Collection[str], limit: int, wait: timedelta
    ) -> Delivery | None:
        ordered = sorted(types)
        return await self._database.waiters[Topic.EVENTS].wait_until(
            lambda: self._next(consumer, ordered, limit), wait=wait
        )

    def _next(self, consumer: str, types: list[str], limit: int) -> Delivery | None:
        saved = self._database.point("SELECT position FROM cursors WHERE consumer = ?", (consumer,))
        key = (consumer, *types)
        after = max(saved[0][0] if saved else 0, self._skipped_to.get(key, 0))
        last = self._log.last_position()
        placeholders = ",".join("?" * len(types))
        sql = (
            f"SELECT position, {_FIELDS} FROM events WHERE position > ? AND position <= ?"
            f" AND type IN ({placeholders}) ORDER BY position LIMIT ?"
        )
        matches = self._database.point(sql, (after, last, *types, limit))
        if not matches:
            self._skipped_to[key] = last
            return None
        receipt = matches[-1][0] if len(matches) == limit else last
        return Delivery(events=tuple(_event(row[1:]) for row in matches), receipt=str(receipt))

    async def acknowledge(self, consumer: str, receipt: str) -> None:
        position = int(receipt)

        def work(connection: apsw.Connection) -> None:
            connection.execute(
                "INSERT INTO cursors (consumer, position) VALUES (?, ?) ON CONFLICT (consumer)"
                " DO UPDATE SET position = max(position, excluded.position)",
                (consumer, position),
            )

        # Not durable: after a power loss the consumer receives some events again.
        await self._database.write(work, durable=False)
