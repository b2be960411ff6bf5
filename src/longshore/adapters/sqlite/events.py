"""The event log in SQLite, and the bus that reads it by durable cursors.

Positions are given out inside the one writing transaction there can be at a time, so they appear in
order and a reader never finds an earlier one after a later one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite import event_queries
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.statements import Row, rows
from longshore.core.events.codec import body_from_properties, properties_of
from longshore.core.events.event import Event, EventContext, next_moment
from longshore.core.events.types import EntityType, EventBody
from longshore.core.events.wire import from_ms, to_ms
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.errors import AlreadyExists
from longshore.ports.events import Delivery

INSERT_EVENT = (
    "INSERT INTO events (entity, sequence, tenant, app, type, at_ms, origin, source, worker_id,"
    " properties) VALUES (?,?,?,?,?,?,?,?,?,?)"
)
_FIELDS = "entity, sequence, tenant, app, type, at_ms, origin, source, worker_id, properties"


def event_values(event: Event) -> tuple[Any, ...]:
    """The values for ``INSERT_EVENT``."""
    context = event.context
    return (
        event.entity,
        event.sequence,
        event.tenant,
        event.app,
        event.type,
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


class SqliteEventLog:
    """See ``ports.events.EventLog``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, events: Sequence[Event]) -> None:
        recorded = [event_values(event) for event in events]

        def work(connection: apsw.Connection) -> None:
            for row in recorded:
                there = rows(
                    connection,
                    f"SELECT {_FIELDS} FROM events"
                    " WHERE entity = ? AND sequence = ? AND tenant = ?",
                    row[:3],
                )
                if not there:
                    connection.execute(INSERT_EVENT, row)
                elif there[0] != row:
                    raise AlreadyExists("event", f"{row[0]} {row[1]}")

        await self._database.write(work, topics=(Topic.EVENTS,))

    async def append(
        self,
        *,
        tenant: str,
        app: str,
        entity_id: str,
        body: EventBody,
        context: EventContext,
        now: datetime,
    ) -> Event:
        entity = f"{body.ENTITY.value}#{entity_id}"

        def work(connection: apsw.Connection) -> Event:
            last = rows(
                connection,
                "SELECT sequence, at_ms FROM events WHERE entity = ? AND tenant = ?"
                " ORDER BY sequence DESC LIMIT 1",
                (entity, tenant),
            )
            sequence, at_ms = last[0] if last else (0, None)
            event = Event(
                entity_type=body.ENTITY,
                entity_id=entity_id,
                tenant=tenant,
                app=app,
                sequence=sequence + 1,
                at=next_moment(now, None if at_ms is None else from_ms(at_ms)),
                body=body,
                context=context,
            )
            connection.execute(INSERT_EVENT, event_values(event))
            return event

        event: Event = await self._database.write(work, topics=(Topic.EVENTS,))
        return event

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        found = await self._database.scan(
            f"SELECT {_FIELDS} FROM events WHERE entity = ? AND tenant = ?"
            " AND sequence > ? ORDER BY sequence LIMIT ?",
            (entity, tenant, after, limit),
        )
        return [_event(row) for row in found]

    async def latest(self, tenant: str, entity: str) -> Event | None:
        found = self._database.point(
            f"SELECT {_FIELDS} FROM events WHERE entity = ? AND tenant = ?"
            " ORDER BY sequence DESC LIMIT 1",
            (entity, tenant),
        )
        return _event(found[0]) if found else None

    async def query(
        self,
        tenant: str,
        *,
        app: str | None = None,
        event_type: str | None = None,
        entity: str | None = None,
        job_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Event]:
        after = decode_cursor("events", cursor, (int,))[0] if cursor else 0
        asked = {"app": app, "type": event_type, "entity": entity, "job": job_id}
        near_end = self.last_position() - after <= event_queries.NEAR_END_POSITIONS
        sql = event_queries.statement(f"position, {_FIELDS}", asked, near_end=near_end)
        values = {**asked, "tenant": tenant, "after": after, "limit": limit + 1}
        found = await self._database.scan(sql, values)
        items = tuple(_event(row[1:]) for row in found[:limit])
        return Page(
            items, encode_cursor("events", found[limit - 1][0]) if len(found) > limit else None
        )

    def last_position(self) -> int:
        """Where the log ends now."""
        found = self._database.point("SELECT coalesce(max(position), 0) FROM events")
        last: int = found[0][0]
        return last


class SqliteEventBus:
    """See ``ports.events.EventBus``: the log is the bus."""

    def __init__(self, database: Database, log: SqliteEventLog) -> None:
        self._database = database
        self._log = log
        # Looked at and not wanted, by consumer and types; saves looking again.
        self._skipped_to: dict[tuple[str, ...], int] = {}

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
        wanted = sorted(types)
        return await self._database.wait_for(
            Topic.EVENTS, lambda: self._next(consumer, wanted, limit), wait=wait
        )

    def _next(self, consumer: str, types: list[str], limit: int) -> Delivery | None:
        saved = self._database.point("SELECT position FROM cursors WHERE consumer = ?", (consumer,))
        asked = (consumer, *types)
        after = max(saved[0][0] if saved else 0, self._skipped_to.get(asked, 0))
        last = self._log.last_position()
        places = ",".join("?" * len(types))
        # Only the number of question marks varies.
        sql = (
            f"SELECT position, {_FIELDS} FROM events WHERE position > ? AND position <= ?"
            f" AND type IN ({places}) ORDER BY position LIMIT ?"
        )
        found = self._database.point(sql, (after, last, *types, limit))
        if not found:
            self._skipped_to[asked] = last
            return None
        receipt = found[-1][0] if len(found) == limit else last
        return Delivery(events=tuple(_event(row[1:]) for row in found), receipt=str(receipt))

    async def acknowledge(self, consumer: str, receipt: str) -> None:
        position = int(receipt)

        def work(connection: apsw.Connection) -> None:
            connection.execute(
                "INSERT INTO cursors (consumer, position) VALUES (?, ?) ON CONFLICT (consumer)"
                " DO UPDATE SET position = max(position, excluded.position)",
                (consumer, position),
            )

        # Not promised: after a power loss the consumer hears a little twice.
        await self._database.write(work, durable=False)
