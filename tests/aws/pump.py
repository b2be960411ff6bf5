"""Does what the stream's mapping, the relay and the save-event function do, without a function."""

import asyncio
from typing import Any

from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.events import DynamoEventLog
from longshore.adapters.aws.items import events_in
from longshore.adapters.aws.names import Names
from longshore.core.events.event import Event
from longshore.ports.events import EventBus

_PAUSE_S = 0.02
# How far each table's stream was read: an installation that is opened again goes on from there.
_read_up_to: dict[str, dict[str, str]] = {}
_pumping: dict[str, "Pump"] = {}


class Pump:
    """Brings what was committed to the event log and, if there is one, to the bus."""

    def __init__(self, aws: Aws, names: Names, log: DynamoEventLog, bus: EventBus | None) -> None:
        self._aws = aws
        self._names = names
        self._log = log
        self._bus = bus
        self.turns = self.idle_turn = 0

    async def __aenter__(self) -> "Pump":
        table = self._names.ledger
        self._running: asyncio.Future[None] | None = None
        if table not in _pumping:  # else another process of the installation does it
            _pumping[table] = self
            if table not in _read_up_to:
                _read_up_to[table] = await self._shards()
            self._iterators = _read_up_to[table]
            self._running = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            del _pumping[self._names.ledger]

    async def begin(self) -> None:
        """Instead of running beside: tell when it is asked for."""
        self._iterators = await self._shards()
        self._turning = asyncio.Lock()

    async def catch_up(self) -> None:
        """Tell all that was committed before the call."""
        async with self._turning:
            while await self._turn():
                pass

    async def caught_up(self) -> None:
        """Return when all is told that was committed before the call."""
        pump = _pumping[self._names.ledger]
        begun = pump.turns
        # The turn that is under way may have looked before it.
        while pump.idle_turn < begun + 2:
            await asyncio.sleep(_PAUSE_S)

    async def _run(self) -> None:
        while True:
            self.turns += 1
            if not await self._turn():
                self.idle_turn = self.turns
                await asyncio.sleep(_PAUSE_S)

    async def _turn(self) -> bool:
        came = False
        for shard, iterator in list(self._iterators.items()):
            answer = await self._aws.call(
                "dynamodbstreams", "get_records", ShardIterator=iterator, Limit=100
            )
            images = [record["dynamodb"]["NewImage"] for record in answer["Records"]]
            came = came or bool(images)
            await self._tell([event for image in images for event in events_in(image)])
            self._iterators[shard] = answer["NextShardIterator"]
        return came

    async def _tell(self, events: list[Event]) -> None:
        await self._log.save(events)
        if self._bus is not None:
            assert await self._bus.publish(events) == []

    async def _shards(self) -> dict[str, str]:
        found = await self._aws.call(
            "dynamodbstreams", "list_streams", TableName=self._names.ledger
        )
        arn = found["Streams"][0]["StreamArn"]
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
