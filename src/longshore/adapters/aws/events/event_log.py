"""The event log in DynamoDB: one item per event, found by its key and up to seven indexes.

Events of tasks and jobs come through the ledger's stream and the bus, a moment after their row. A
history is complete all the same: the row says which sequence was its last, and a reader waits for
it a little; after that, events behind a gap are left out.

Events of entities without a row are appended under a counter, in one transaction with it.

The sort key of every index contains the time of its event, so that a query is in the order of time
and can start at any time. Each index in use costs one more write of the event, and the indexes by
type put all events of a type into one partition. So an installation may leave most indexes empty:
then the index by entity and the table itself, by tenant, answer every query, with a filter. See
docs/explain/aws.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Sequence, Set
from dataclasses import replace
from datetime import timedelta
from typing import Final, Unpack

from longshore.adapters.aws.attributes import Item
from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.ledger.items import id_of, is_tombstone, key_of, tasks_query
from longshore.adapters.aws.names import EVENT_INDEXES, Names
from longshore.adapters.aws.tables import LAST_KEY, Query, Table, config_key
from longshore.core.events.codec import from_ms, from_wire, to_ms, to_wire
from longshore.core.events.event import Event, NewEvent, next_event
from longshore.core.events.types import EntityType
from longshore.core.pages import decode_cursor, encode_cursor
from longshore.errors import BackendUnavailable
from longshore.ports.clock import Clock
from longshore.ports.events import EventBus, EventQueryResult

logger = logging.getLogger(__name__)

ALL_INDEXES: Final = frozenset(range(1, 8))
DEFAULT_INDEXES: Final = frozenset({1})
"""The numbers of the indexes in use: those of the earlier interface, or only the one by entity."""

_ATTEMPTS = 30
_POLL_INTERVAL = timedelta(milliseconds=50)
_LISTING = "events"
_WITH_ROWS = (EntityType.TASK, EntityType.JOB)


def query_for(
    tenant: str,
    *,
    app: str | None = None,
    event_type: str | None = None,
    entity: str | None = None,
    since_ms: int | None = None,
    after: int = 0,
    indexes: Set[int] = ALL_INDEXES,
) -> Query:
    """The query of the narrowest range that contains all matching events.

    Args:
        since_ms: Only events from this time on.
        after: Only events with a higher sequence.
        indexes: The numbers of the indexes in use.
    """
    tenant_key, by_type, by_app = f"TENANT#{tenant}", f"EVENT#{event_type}", f"APP#{app}"
    # By the presence of a type, an app and an entity: the index, its partition, and the prefix of
    # its sort keys before the time.
    ranges = {
        (True, True, True): (7, by_type, f"{tenant_key}#{by_app}#{entity}#"),
        (True, True, False): (6, by_type, f"{tenant_key}#{by_app}#"),
        (True, False, True): (5, by_type, f"{tenant_key}#{entity}#"),
        (True, False, False): (4, by_type, f"{tenant_key}#"),
        (False, True, False): (2, by_app, ""),
    }
    present = (event_type is not None, app is not None, entity is not None)
    number, partition, prefix = ranges.get(present, (0, "", ""))
    if number not in indexes:
        number, partition, prefix = 0, tenant_key, ""
        if entity is not None:
            number, partition, prefix = 1, entity, f"{entity.partition('#')[0]}#"
    attributes = f"GSI{number}" if number else ""
    return Query(
        index=EVENT_INDEXES[number - 1] if number else None,
        partition=(f"{attributes}PK", partition),
        sort=f"{attributes}SK",
        low=f"{prefix}TIMESTAMP#{'' if since_ms is None else since_ms}",
        high=f"{prefix}TIMESTAMP#{LAST_KEY}",
        where="#tenantId = :tenant AND #sequence > :after",
        values={":tenant": tenant, ":after": after},
    )


class DynamoEventLog:
    """See ``ports.events.EventLog``."""

    def __init__(
        self,
        aws: AwsClient,
        names: Names,
        clock: Clock,
        bus: EventBus | None = None,
        *,
        retention: timedelta | None = None,
        history_timeout: timedelta = timedelta(seconds=5),
        indexes: Set[int] = DEFAULT_INDEXES,
    ) -> None:
        """Create the event log.

        Args:
            bus: Publishes events of entities without a row; the stream publishes the others.
            retention: How long events of entities without a row are kept; None: forever. Those of
                tasks and jobs are removed with their job.
            history_timeout: How long a history waits for events that are on their way.
            indexes: The numbers of the indexes in use; may grow, never shrink.
        """
        self._clock = clock
        self._bus = bus
        self._events_table = Table(aws, names.events)
        self._ledger_table = Table(aws, names.ledger)
        self._config_table = Table(aws, names.config)
        self._environment = names.stage
        self._retention = retention
        self._history_timeout = history_timeout
        self._indexes = indexes

    async def save(self, events: Sequence[Event]) -> None:
        """Write events that the bus has delivered.

        An event that exists already, because it was published twice, stays unchanged.
        """
        for event in events:
            item = self._item(event)
            await self._events_table.put(item, condition="attribute_not_exists(#PK)")

    def _item(self, event: Event) -> Item:
        ttl_at = None
        if self._retention is not None and event.entity_type not in _WITH_ROWS:
            ttl_at = event.at + self._retention
        document = to_wire(event, environment=self._environment, ttl_at=ttl_at)
        document["receivedAt"] = to_ms(self._clock.now())
        for number in ALL_INDEXES - self._indexes:
            del document[f"GSI{number}PK"], document[f"GSI{number}SK"]
        return document

    async def append(self, **new: Unpack[NewEvent]) -> Event:
        entity = f"{new['body'].ENTITY}#{new['entity_id']}"
        key = config_key(f"sequence#{new['tenant']}", entity)
        for attempt in range(_ATTEMPTS):
            last = await self._config_table.get(key)
            last_at = from_ms(last["at"]) if last else None
            event = next_event(new, last["count"] if last else 0, last_at)
            count = self._config_table.update_request(
                key,
                {"count": event.sequence, "at": to_ms(event.at)},
                condition="#count = :old" if last else "attribute_not_exists(#count)",
                values={":old": last["count"]} if last else {},
            )
            put = self._events_table.put_request(self._item(event))
            if not await self._config_table.transact({"Update": count}, {"Put": put}):
                if self._bus is not None and await self._bus.publish([event]):
                    logger.warning("events.not_published", extra={"events": [event.id]})
                return event
            # A concurrent append has taken the sequence.
            await asyncio.sleep(_POLL_INTERVAL.total_seconds() * secrets.randbelow(1 + attempt))
        message = f"dynamodb.transact_write_items: too many concurrent appends to {entity}"
        raise BackendUnavailable(message)

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        end = self._clock.elapsed() + self._history_timeout
        polls_left = self._history_timeout // _POLL_INTERVAL  # also if our clock stops
        last = await self._last_sequence(entity)
        while True:
            events = await self._read_history(tenant, entity, after, limit)
            if not last:
                return events
            numbered = enumerate(events, after + 1)
            until_gap = [event for number, event in numbered if event.sequence == number]
            is_complete = len(until_gap) >= min(last - after, limit)
            if is_complete or not polls_left or self._clock.elapsed() >= end:
                return until_gap
            polls_left -= 1
            await asyncio.sleep(_POLL_INTERVAL.total_seconds())

    async def _read_history(self, tenant: str, entity: str, after: int, limit: int) -> list[Event]:
        events: dict[int, Event] = {}
        async for event in self._entity_events(tenant, entity, after=after):
            events.setdefault(event.sequence, event)
            if len(events) == limit:
                break
        return [events[sequence] for sequence in sorted(events)]

    async def _last_sequence(self, entity: str) -> int:
        """The last sequence of an entity that has a row, else 0."""
        kind, _, entity_id = entity.partition("#")
        if kind not in _WITH_ROWS:
            return 0
        item = await self._ledger_table.get(key_of(entity_id))
        return int(item["last"]) if item and not is_tombstone(item) else 0

    async def latest(self, tenant: str, entity: str) -> Event | None:
        last = await self._last_sequence(entity)
        if last and (events := await self.history(tenant, entity, after=last - 1, limit=1)):
            return events[-1]
        newest_first = replace(query_for(tenant, entity=entity), descending=True, page_size=1)
        return await anext(self._read(newest_first), None)

    def _entity_events(self, tenant: str, entity: str, *, after: int = 0) -> AsyncIterator[Event]:
        return self._read(query_for(tenant, entity=entity, after=after))

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
    ) -> EventQueryResult:
        start = tuple(decode_cursor(_LISTING, cursor, (int, str, int))) if cursor else None
        entities = [entity]
        if job_id is not None and entity is None:
            entities = await self._job_entities(job_id)
        events: list[Event] = []
        for name in entities:
            query = query_for(
                tenant,
                app=app,
                event_type=event_type,
                entity=name,
                since_ms=start[0] if start else None,
                indexes=self._indexes,
            )
            count = 0
            async for event in self._read(query):
                if start is not None and _sort_key(event) <= start:
                    continue
                if _matches(event, app, event_type, entity, job_id):
                    events.append(event)
                    count += 1
                    # Events of the same time have no order, so all of them are read.
                    if count > limit and event.at > events[-2].at:
                        break
        events.sort(key=_sort_key)
        page = tuple(events[:limit])
        cursors = tuple(encode_cursor(_LISTING, *_sort_key(event)) for event in page)
        return EventQueryResult(page, cursors, len(events) > limit)

    async def _job_entities(self, job_id: str) -> list[str | None]:
        """The entities of the job and of its tasks that have rows."""
        rows = self._ledger_table.query(tasks_query(job_id))
        tasks = [f"{EntityType.TASK}#{id_of(item)}" async for item in rows]
        return [f"{EntityType.JOB}#{job_id}", *tasks]

    async def _read(self, query: Query) -> AsyncIterator[Event]:
        now_s = self._clock.now().timestamp()
        async for item in self._events_table.query(query):
            if item.get("ttl", now_s) < now_s:
                continue  # DynamoDB deletes it within days
            if isinstance(properties := item["properties"], str):  # see ``encode_item``
                item["properties"] = json.loads(properties)
            yield from_wire(item)


def _sort_key(event: Event) -> tuple[int, str, int]:
    return to_ms(event.at), event.entity, event.sequence


def _matches(
    event: Event, app: str | None, event_type: str | None, entity: str | None, job_id: str | None
) -> bool:
    if job_id is not None:
        of_job = event.entity == f"{EntityType.JOB}#{job_id}"
        if not of_job and not event.entity.startswith(f"{EntityType.TASK}#{job_id}_"):
            return False
    return (
        app in (None, event.app)
        and event_type in (None, event.type)
        and entity in (None, event.entity)
    )
