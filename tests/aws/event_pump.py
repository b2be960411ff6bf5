"""Does what the stream's mapping, the relay and the save-event function do, without a function."""

import asyncio
from typing import Any

from longshore.adapters.aws.attributes import decode_item
from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.events.event_log import DynamoEventLog
from longshore.adapters.aws.ledger.items import events_of
from longshore.adapters.aws.names import Names
from longshore.core.events.event import Event
from longshore.ports.events import EventBus

_PAUSE_S = 0.05
_AT_ONCE = 100
# How far each table's stream was read: an installation that is opened again continues there.
_positions: dict[str, dict[str, str]] = {}
_locks: dict[str, "EventPump"] = {}


class EventPump:
    """Delivers committed events to the event log and, if there is one, to the bus."""

    def __init__(
        self, aws: AwsClient, names: Names, log: DynamoEventLog, bus: EventBus | None
    ) -> None:
        self._aws = aws
        self._names = names
        self._log = log
        self._bus = bus
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> "EventPump":
        table = self._names.ledger
        self._running: asyncio.Future[None] | None = None
        if table not in _locks:  # else another process of the installation does it
            _locks[table] = self
            if table not in _positions:
                _positions[table] = await self._shards()
            self._iterators = _positions[table]
            self._running = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            del _locks[self._names.ledger]

    async def begin(self) -> None:
        """Prepare for `catch_up` without delivering in the background."""
        self._iterators = await self._shards()

    async def catch_up(self) -> None:
        """Deliver everything that was committed before the call."""
        async with self._lock:
            while await self._deliver_batch():
                pass

    async def caught_up(self) -> None:
        """The same, by the pump that delivers for this installation."""
        await _locks[self._names.ledger].catch_up()

    async def _run(self) -> None:
        while True:
            await self.catch_up()
            await asyncio.sleep(_PAUSE_S)

    async def _deliver_batch(self) -> bool:
        """Deliver the available records; return whether there may be more."""
        more = False
        for shard, iterator in list(self._iterators.items()):
            answer = await self._aws.call(
                "dynamodbstreams", "get_records", ShardIterator=iterator, Limit=_AT_ONCE
            )
            images = [record["dynamodb"].get("NewImage", {}) for record in answer["Records"]]
            more = more or len(images) == _AT_ONCE
            await self._deliver(
                [
                    event
                    for image in images
                    if "row" in image  # else the item was deleted, or its row removed
                    for event in events_of(decode_item(image))
                ]
            )
            self._iterators[shard] = answer["NextShardIterator"]
        return more

    async def _deliver(self, events: list[Event]) -> None:
        await self._log.save(events)
        if self._bus is not None:
            assert await self._bus.publish(events) == []

    async def _shards(self) -> dict[str, str]:
        result = await self._aws.call(
            "dynamodbstreams", "list_streams", TableName=self._names.ledger
        )
        arn = result["Streams"][0]["StreamArn"]
        stream = await self._aws.call("dynamodbstreams", "describe_stream", StreamArn=arn)
        shards: list[dict[str, Any]] = stream["StreamDescription"]["Shards"]
        iterators = {}
        for shard in shards:
            answer = await self._aws.call(
                "dynamodbstreams",
                "get_shard_iterator",
                StreamArn=arn,
                ShardId=shard["ShardId"],
                ShardIteratorType="TRIM_HORIZON",
            )
            iterators[shard["ShardId"]] = answer["ShardIterator"]
        return iterators
