"""The event log in DynamoDB: one item an event, found by its own key and seven indexes.

Events of tasks and jobs come here on their way through the ledger's stream and the bus, so they are
here a moment after their row. A history is told whole all the same: the row says which sequence was
its last, and a reader waits for it a little; what is behind a gap after that is held back.

Events of what has no row are appended under a count a name, in one transaction with it.

The indexes cost eight writes an event, as seed 001 wants them: see docs/explain/aws.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Sequence, Set
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from longshore.adapters.aws.client import AwsClient, CallRefused
from longshore.adapters.aws.events.attributes import decode_document, encode_document
from longshore.adapters.aws.events.index_ranges import (
    ALL_INDEXES,
    DEFAULT_INDEXES,
    IndexRange,
    index_range_for,
)
from longshore.adapters.aws.ledger.items import id_of, key_of, task_key_range
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.table_reader import Item, TableReader
from longshore.core.events.codec import from_wire, to_wire
from longshore.core.events.event import Event, EventContext, next_moment
from longshore.core.events.types import EntityType, EventBody
from longshore.core.events.wire import from_ms, to_ms
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.errors import AlreadyExists, BackendUnavailable, OutcomeUnknown
from longshore.ports.clock import Clock
from longshore.ports.events import EventBus

logger = logging.getLogger(__name__)

_ENTITIES_WITH_ROWS = {f"{EntityType.TASK}#", f"{EntityType.JOB}#"}
_ATTEMPTS = 30
_POLL_S = 0.05
_LISTING = "events"


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
        """See the class.

        Args:
            bus: Where events are told that come to no row; those of rows get there with the stream.
            environment: What events say of where they come from; the stage.
            keeps: How long DynamoDB keeps an event; None: for ever.
            patience: How long a history waits for events that are on their way.
            indexes: The numbers of those that are filled; may grow and must never shrink.
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
        async for there in self._entity_events(
            event.tenant, event.entity, after=event.sequence - 1
        ):
            if there.sequence == event.sequence and _comparable(there) != _comparable(event):
                raise AlreadyExists("event", event.id)
            if there.sequence >= event.sequence:
                return

    async def save(self, events: Sequence[Event]) -> None:
        """Write events of which it is known that nothing else is in their place.

        One that is there already, because it was told twice, stays as it first came.
        """
        for event in events:
            with contextlib.suppress(CallRefused):
                await self._aws.call(
                    "dynamodb",
                    "put_item",
                    alters=True,
                    expects=("ConditionalCheckFailedException",),
                    TableName=self._names.events,
                    Item=self._item(event),
                    ConditionExpression="attribute_not_exists(PK)",
                )

    def _item(self, event: Event) -> Item:
        now = self._clock.now()
        wire = to_wire(
            event,
            environment=self._environment,
            ttl_at=event.at + self._retention if self._retention else None,
        )
        wire["receivedAt"] = to_ms(now)
        for number in ALL_INDEXES - self._indexes:
            del wire[f"GSI{number}PK"], wire[f"GSI{number}SK"]
        properties = wire.pop("properties")
        item: Item = encode_document(wire)["M"]
        return item | {"properties": encode_document(properties)}

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
        entity = f"{body.ENTITY}#{entity_id}"
        place = {"kind": {"S": f"sequence#{tenant}"}, "name": {"S": entity}}
        for turn in range(_ATTEMPTS):
            last = await self._tables.get(self._names.config, place)
            count = int(last["count"]["N"]) if last else 0
            last_at = from_ms(int(last["at"]["N"])) if last else None
            event = Event(
                entity_type=body.ENTITY,
                entity_id=entity_id,
                tenant=tenant,
                app=app,
                sequence=count + 1,
                at=next_moment(now, last_at),
                body=body,
                context=context,
            )
            if await self._try_append(place, count, event):
                await self._publish([event])
                return event
            await asyncio.sleep(_POLL_S * secrets.randbelow(1 + turn))
        message = f"dynamodb.transact_write_items: others always came first to {entity}"
        raise BackendUnavailable(message)

    async def _try_append(self, key: Item, count: int, event: Event) -> bool:
        """Whether the event is the next of its entity; not if somebody else's is."""
        counted: dict[str, Any] = {
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
        token = secrets.token_hex(16)  # the same transaction again is one
        for last_try in (False, False, True):
            try:
                await self._aws.call(
                    "dynamodb",
                    "transact_write_items",
                    alters=True,
                    expects=("TransactionCanceledException",),
                    TransactItems=[{"Update": counted}, {"Put": put}],
                    ClientRequestToken=token,
                )
            except CallRefused:
                return False
            except OutcomeUnknown:
                if last_try:
                    raise
            else:
                break
        return True

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        ends = self._clock.elapsed() + self._history_timeout
        turns = 0
        last = await self._last_sequence(entity)
        while True:
            found = await self._read_history(tenant, entity, after, limit)
            wanted = min(last, after + limit)
            if last == 0 or _is_complete(found, after, wanted):
                return found
            turns += 1
            if (
                self._clock.elapsed() >= ends
                or turns * _POLL_S > self._history_timeout.total_seconds()
            ):
                return _until_gap(found, after)
            await asyncio.sleep(_POLL_S)

    async def _read_history(self, tenant: str, entity: str, after: int, limit: int) -> list[Event]:
        found: dict[int, Event] = {}
        async for event in self._entity_events(tenant, entity, after=after):
            found.setdefault(event.sequence, event)
            if len(found) == limit:
                break
        return [found[sequence] for sequence in sorted(found)]

    async def _last_sequence(self, entity: str) -> int:
        """Of an entity that has a row, the last event that was told of it; else 0."""
        kind, _, entity_id = entity.partition("#")
        if f"{kind}#" not in _ENTITIES_WITH_ROWS or not entity_id:
            return 0
        item = await self._tables.get(self._names.ledger, key_of(entity_id))
        return int(item["last"]["N"]) if item else 0

    async def latest(self, tenant: str, entity: str) -> Event | None:
        last = await self._last_sequence(entity)
        if last:
            found = await self.history(tenant, entity, after=last - 1, limit=1)
            if found:
                return found[-1]
        newest: Event | None = None
        async for event in self._entity_events(tenant, entity):
            newest = event
        return newest

    def _entity_events(self, tenant: str, entity: str, *, after: int = 0) -> AsyncIterator[Event]:
        walk = index_range_for(tenant, entity=entity)
        return self._query_events(
            walk, tenant, "#q > :q", {"#q": "sequence"}, {":q": {"N": str(after)}}
        )

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
        begins: tuple[int, str, int] | None = None
        if cursor is not None:
            at, name, sequence = decode_cursor(_LISTING, cursor, (int, str, int))
            begins = at, name, sequence
        walk_of = partial(index_range_for, app=app, event_type=event_type, indexes=self._indexes)
        walks = [walk_of(tenant, entity=entity)]
        if job_id is not None and entity is None:
            entities = await self._job_entities(job_id)
            walks = [walk_of(tenant, entity=one) for one in entities]
        found: list[Event] = []
        for walk in walks:
            since = walk if begins is None else walk.since(begins[0])
            count = 0
            async for event in self._query_events(since, tenant):
                if begins is not None and _sort_key(event) <= begins:
                    continue
                if _matches(event, app, event_type, entity, job_id):
                    found.append(event)
                    count += 1
                    # Those of one moment come in no order: they are all looked at.
                    if count > limit and event.at > found[-2].at:
                        break
        found.sort(key=_sort_key)
        page = tuple(found[:limit])
        return Page(
            page, encode_cursor(_LISTING, *_sort_key(page[-1])) if len(found) > limit else None
        )

    async def _job_entities(self, job_id: str) -> list[str]:
        """The job and its tasks, as far as there are rows of them."""
        found = [f"{EntityType.JOB}#{job_id}"]
        walk = self._tables.query(self._names.ledger, **task_key_range(job_id))
        return [*found, *[f"{EntityType.TASK}#{id_of(item)}" async for item in walk]]

    async def _query_events(
        self,
        index_range: IndexRange,
        tenant: str,
        condition: str = "",
        names: dict[str, str] | None = None,
        values: dict[str, Any] | None = None,
    ) -> AsyncIterator[Event]:
        found = self._tables.query(
            self._names.events,
            index_range.partition,
            index_range.sort,
            index=index_range.index,
            low=index_range.low,
            high=index_range.high,
            filters=(f"#t = :t{' AND ' + condition if condition else ''}"),
            names={"#t": "tenantId", **(names or {})},
            values={":t": {"S": tenant}, **(values or {})},
        )
        async for item in found:
            yield _decode(item)


def _decode(item: Item) -> Event:
    properties = decode_document(item["properties"])
    envelope = decode_document(
        {"M": {name: each for name, each in item.items() if name != "properties"}}
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
    told: list[Event] = []
    for event in events:
        if event.sequence != after + 1 + len(told):
            break
        told.append(event)
    return told
