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
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, Unpack

from longshore.adapters.aws.attributes import Item, decode_document, encode_document
from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused
from longshore.adapters.aws.ledger.items import id_of, key_of, tasks_query
from longshore.adapters.aws.names import EVENT_INDEXES, Names
from longshore.adapters.aws.tables import (
    CONDITION_FAILED,
    Query,
    TableReader,
    config_key,
    retry_unknown_outcome,
)
from longshore.core.events.codec import from_wire, to_wire
from longshore.core.events.event import Event, NewEvent, next_event
from longshore.core.events.types import EntityType
from longshore.core.events.wire import from_ms, to_ms
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.errors import AlreadyExists, BackendUnavailable
from longshore.ports.clock import Clock
from longshore.ports.events import EventBus

logger = logging.getLogger(__name__)

ALL_INDEXES: Final = frozenset(range(1, 8))
DEFAULT_INDEXES: Final = frozenset({1})
"""The numbers of the indexes in use: those of seed 001, or only the one by entity."""

_ENTITIES_WITH_ROWS = {f"{EntityType.TASK}#", f"{EntityType.JOB}#"}
_ATTEMPTS = 30
_POLL_S = 0.05
_LISTING = "events"
_TIMESTAMP = "TIMESTAMP#"
_MAX_KEY = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRange:
    """A range of one partition of an index."""

    index: str | None  # None: the table itself
    partition: tuple[str, str]
    sort: str
    prefix: str  # before the time
    start: str = ""

    @property
    def low(self) -> str:
        return f"{self.prefix}{_TIMESTAMP}{self.start}"

    @property
    def high(self) -> str:
        return f"{self.prefix}{_TIMESTAMP}{_MAX_KEY}"

    def since(self, at_ms: int) -> IndexRange:
        """The part of the range from a time on."""
        return replace(self, start=str(at_ms))


def index_range_for(
    tenant: str,
    *,
    app: str | None = None,
    event_type: str | None = None,
    entity: str | None = None,
    indexes: Set[int] = ALL_INDEXES,
) -> IndexRange:
    """The narrowest range that contains all matching events."""
    tenant_prefix = f"TENANT#{tenant}#"
    event_key, app_key = f"EVENT#{event_type}", f"APP#{app}"
    present = (event_type is not None, app is not None, entity is not None)
    ranges = {
        (True, True, True): _index_range(7, event_key, f"{tenant_prefix}{app_key}#{entity}#"),
        (True, True, False): _index_range(6, event_key, f"{tenant_prefix}{app_key}#"),
        (True, False, True): _index_range(5, event_key, f"{tenant_prefix}{entity}#"),
        (True, False, False): _index_range(4, event_key, tenant_prefix),
        (False, True, False): _index_range(2, app_key, ""),
    }
    number, index_range = ranges.get(present, (0, None))
    if index_range is not None and number in indexes:
        return index_range
    if entity is not None:
        return _index_range(1, entity, f"{entity.partition('#')[0]}#")[1]
    return IndexRange(index=None, partition=("PK", f"TENANT#{tenant}"), sort="SK", prefix="")


def _index_range(number: int, partition: str, prefix: str) -> tuple[int, IndexRange]:
    return number, IndexRange(
        index=EVENT_INDEXES[number - 1],
        partition=(f"GSI{number}PK", partition),
        sort=f"GSI{number}SK",
        prefix=prefix,
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
        environment: str = "",
        retention: timedelta | None = None,
        history_timeout: timedelta = timedelta(seconds=5),
        indexes: Set[int] = DEFAULT_INDEXES,
    ) -> None:
        """Create the event log.

        Args:
            bus: Publishes events of entities without a row; the stream publishes the others.
            environment: The environment that events name; by default the stage.
            retention: How long DynamoDB keeps an event; None: forever.
            history_timeout: How long a history waits for events that are on their way.
            indexes: The numbers of the indexes in use; may grow, never shrink.
        """
        self._aws = aws
        self._names = names
        self._clock = clock
        self._bus = bus
        self._tables = TableReader(aws, clock)
        self._environment = environment or names.stage
        self._retention = retention
        self._history_timeout = history_timeout
        self._indexes = indexes

    async def record(self, events: Sequence[Event]) -> None:
        for event in events:
            await self._check_sequence(event)
        await self.save(events)
        await self._publish(events)

    async def _publish(self, events: Sequence[Event]) -> None:
        if self._bus is not None and (refused := await self._bus.publish(events)):
            logger.warning(
                "events.not_published", extra={"events": [event.id for event in refused]}
            )

    async def _check_sequence(self, event: Event) -> None:
        async for existing in self._entity_events(
            event.tenant, event.entity, after=event.sequence - 1
        ):
            if existing.sequence == event.sequence and _comparable(existing) != _comparable(event):
                raise AlreadyExists("event", event.id)
            if existing.sequence >= event.sequence:
                return

    async def save(self, events: Sequence[Event]) -> None:
        """Write events whose sequence no other event has.

        An event that exists already, because it was published twice, stays unchanged.
        """
        for event in events:
            with contextlib.suppress(CallRefused):
                await self._aws.call(
                    "dynamodb",
                    "put_item",
                    alters=True,
                    expects=(CONDITION_FAILED,),
                    TableName=self._names.events,
                    Item=self._item(event),
                    ConditionExpression="attribute_not_exists(PK)",
                )

    def _item(self, event: Event) -> Item:
        now = self._clock.now()
        document = to_wire(
            event,
            environment=self._environment,
            ttl_at=event.at + self._retention if self._retention else None,
        )
        document["receivedAt"] = to_ms(now)
        for number in ALL_INDEXES - self._indexes:
            del document[f"GSI{number}PK"], document[f"GSI{number}SK"]
        properties = document.pop("properties")
        item: Item = encode_document(document)["M"]
        return item | {"properties": encode_document(properties)}

    async def append(self, **new: Unpack[NewEvent]) -> Event:
        entity = f"{new['body'].ENTITY}#{new['entity_id']}"
        key = config_key(f"sequence#{new['tenant']}", entity)
        for attempt in range(_ATTEMPTS):
            last = await self._tables.get(self._names.config, key)
            count = int(last["count"]["N"]) if last else 0
            last_at = from_ms(int(last["at"]["N"])) if last else None
            event = next_event(new, count, last_at)
            if await self._try_append(key, count, event):
                await self._publish([event])
                return event
            await asyncio.sleep(_POLL_S * secrets.randbelow(1 + attempt))
        message = f"dynamodb.transact_write_items: too many concurrent appends to {entity}"
        raise BackendUnavailable(message)

    async def _try_append(self, key: Item, count: int, event: Event) -> bool:
        """Append the event. Returns False if a concurrent append took its sequence."""
        update: dict[str, Any] = {
            "TableName": self._names.config,
            "Key": key,
            "UpdateExpression": "SET #n = :new, #a = :at",
            "ConditionExpression": "#n = :old" if count else "attribute_not_exists(#n)",
            "ExpressionAttributeNames": {"#n": "count", "#a": "at"},
            "ExpressionAttributeValues": {
                ":new": {"N": str(event.sequence)},
                ":at": {"N": str(to_ms(event.at))},
                **({":old": {"N": str(count)}} if count else {}),
            },
        }
        put = {"TableName": self._names.events, "Item": self._item(event)}
        token = secrets.token_hex(16)  # makes a repeated transaction idempotent

        async def write() -> AwsResponse:
            return await self._aws.call(
                "dynamodb",
                "transact_write_items",
                alters=True,
                expects=("TransactionCanceledException",),
                TransactItems=[{"Update": update}, {"Put": put}],
                ClientRequestToken=token,
            )

        try:
            await retry_unknown_outcome(write)
        except CallRefused:
            return False
        return True

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        end = self._clock.elapsed() + self._history_timeout
        polls = 0
        last = await self._last_sequence(entity)
        while True:
            events = await self._read_history(tenant, entity, after, limit)
            if last == 0 or _is_complete(events, after, min(last, after + limit)):
                return events
            polls += 1
            slept_s = polls * _POLL_S
            if self._clock.elapsed() >= end or slept_s > self._history_timeout.total_seconds():
                return _until_gap(events, after)
            await asyncio.sleep(_POLL_S)

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
        if f"{kind}#" not in _ENTITIES_WITH_ROWS or not entity_id:
            return 0
        item = await self._tables.get(self._names.ledger, key_of(entity_id))
        return int(item["last"]["N"]) if item else 0

    async def latest(self, tenant: str, entity: str) -> Event | None:
        last = await self._last_sequence(entity)
        if last:
            events = await self.history(tenant, entity, after=last - 1, limit=1)
            if events:
                return events[-1]
        newest: Event | None = None
        async for event in self._entity_events(tenant, entity):
            newest = event
        return newest

    def _entity_events(self, tenant: str, entity: str, *, after: int = 0) -> AsyncIterator[Event]:
        return self._query_events(index_range_for(tenant, entity=entity), tenant, after=after)

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
        after: tuple[int, str, int] | None = None
        if cursor is not None:
            at, name, sequence = decode_cursor(_LISTING, cursor, (int, str, int))
            after = at, name, sequence
        range_for = partial(index_range_for, app=app, event_type=event_type, indexes=self._indexes)
        ranges = [range_for(tenant, entity=entity)]
        if job_id is not None and entity is None:
            ranges = [range_for(tenant, entity=name) for name in await self._job_entities(job_id)]
        events: list[Event] = []
        for index_range in ranges:
            since = index_range if after is None else index_range.since(after[0])
            count = 0
            async for event in self._query_events(since, tenant):
                if after is not None and _sort_key(event) <= after:
                    continue
                if _matches(event, app, event_type, entity, job_id):
                    events.append(event)
                    count += 1
                    # Events of the same time have no order, so all of them are read.
                    if count > limit and event.at > events[-2].at:
                        break
        events.sort(key=_sort_key)
        page = tuple(events[:limit])
        return Page(
            page, encode_cursor(_LISTING, *_sort_key(page[-1])) if len(events) > limit else None
        )

    async def _job_entities(self, job_id: str) -> list[str]:
        """The entities of the job and of its tasks that have rows."""
        rows = self._tables.query(tasks_query(self._names.ledger, job_id))
        tasks = [f"{EntityType.TASK}#{id_of(item)}" async for item in rows]
        return [f"{EntityType.JOB}#{job_id}", *tasks]

    async def _query_events(
        self, index_range: IndexRange, tenant: str, *, after: int | None = None
    ) -> AsyncIterator[Event]:
        where, values = "#tenantId = :tenant", {":tenant": {"S": tenant}}
        if after is not None:
            where += " AND #sequence > :after"
            values[":after"] = {"N": str(after)}
        query = Query(
            table=self._names.events,
            partition=index_range.partition,
            sort=index_range.sort,
            index=index_range.index,
            low=index_range.low,
            high=index_range.high,
            where=where,
            values=values,
        )
        async for item in self._tables.query(query):
            yield _decode(item)


def _decode(item: Item) -> Event:
    properties = decode_document(item["properties"])
    envelope = decode_document(
        {"M": {name: value for name, value in item.items() if name != "properties"}}
    )
    return from_wire(envelope | {"properties": properties})


def _comparable(event: Event) -> dict[str, Any]:
    return to_wire(event, environment="")


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


def _is_complete(events: Sequence[Event], after: int, last: int) -> bool:
    return [event.sequence for event in events][: last - after] == list(range(after + 1, last + 1))


def _until_gap(events: Sequence[Event], after: int) -> list[Event]:
    complete: list[Event] = []
    for event in events:
        if event.sequence != after + 1 + len(complete):
            break
        complete.append(event)
    return complete
