"""Tiles: how output lies in its table.

A task is a partition. An attempt's sequences from 1 on are laid with tiles, each an item
``{attempt}.{first}`` that says its ``last``. A tile holds a run of entries, or nothing: then it is
a gap, laid by somebody who appended further on. Tiles lie edge to edge and never overlap. One that
holds something never changes, and where one ends, one ends for ever. So whoever lays a tile right
behind the edge of another, under the condition that there is none yet, knows that all behind it is
free, and of two who do it at once one is refused and told what is there. What is put into a gap
takes its place in one step. That is why the first write of a place wins, whatever the boundaries of
appends are and however many write: nobody has to compare, and no reader sees a place change.

An entry that is too large for a tile lies in parts, in a partition of its own that is named by
their digest. They are written before the tile that names them, and are the same if written again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

from longshore.adapters.aws.client import AwsClient, CallRefused
from longshore.adapters.shared.output_codec import (
    ENTRY_BYTES,
    Run,
    compress,
    decompress,
    entries_fitting,
    last_sequence_of,
    pack,
    unpack,
)
from longshore.errors import BackendRejected, BackendUnavailable
from longshore.ports.clock import Clock
from longshore.ports.output import OutputChunk, OutputPosition, Stream

Item = dict[str, dict[str, Any]]

MAX_SEQUENCE = 10**19 - 1
"""Sequences have 19 digits in a key."""

_LAST_POSITION = OutputPosition(MAX_SEQUENCE, MAX_SEQUENCE)
_SEGMENT_BYTES = 352 * 1024  # DynamoDB takes 400 KB
_FIRST_PAGE, _GROWTH = 2, 4  # tiles: a reader who wants little shall not pay for a megabyte
_CONDITION_FAILED = "ConditionalCheckFailedException"
_TRANSACTION_CANCELLED = "TransactionCanceledException"
_CONFLICT_REASONS = {"None", "ConditionalCheckFailed"}
_IF_NEW = {
    "ConditionExpression": "attribute_not_exists(#position)",
    "ExpressionAttributeNames": {"#position": "position"},
}


@dataclass(frozen=True)
class Segment:
    """Sequences ``first`` to ``last`` of an attempt; without ``data`` a gap."""

    attempt: int
    first: int
    last: int
    data: bytes | None = None
    parts: int = 0  # if its one entry lies apart: in how many items
    digest: str = ""

    @property
    def end(self) -> OutputPosition:
        """The last place it covers."""
        return OutputPosition(self.attempt, self.last)

    @property
    def is_gap(self) -> bool:
        """Whether nothing is kept in it."""
        return self.data is None

    @cached_property
    def entries(self) -> Run:
        """What it holds; an entry that lies apart is without its data."""
        return [] if self.data is None else unpack(self.data, self.attempt, self.first)


class SegmentTable:
    """The table."""

    def __init__(
        self, aws: AwsClient, table: str, clock: Clock, retention: timedelta | None
    ) -> None:
        self._aws = aws
        self._table = table
        self._clock = clock
        self._retention = retention

    # Laying -------------------------------------------------------------------------------------

    async def build(self, task_id: str, run: Run) -> Segment:
        """A tile of a run's beginning; what is too large for it is written apart."""
        run = entries_fitting(run, _SEGMENT_BYTES)
        entry, last = run[0], last_sequence_of(run[-1])
        if len(entry.data) <= _SEGMENT_BYTES - ENTRY_BYTES:
            return Segment(entry.attempt, entry.sequence, last, pack(run))
        squeezed = await asyncio.to_thread(compress, entry.data)
        parts = [
            squeezed[at : at + _SEGMENT_BYTES] for at in range(0, len(squeezed), _SEGMENT_BYTES)
        ]
        head = pack([replace(entry, data=b"")])
        digest = hashlib.sha256(squeezed).hexdigest()[:32]
        tile = Segment(entry.attempt, entry.sequence, last, head, len(parts), digest)
        partition = _parts_partition(task_id, tile)
        for number, part in enumerate(parts):
            item = {
                "task": {"S": partition},
                "position": {"S": f"{number:06d}"},
                "data": {"B": part},
                **self._ttl(),
            }
            await self._call("put_item", alters=True, TableName=self._table, Item=item)
        return tile

    async def put(self, task_id: str, segment: Segment) -> Segment | None:
        """Lay a tile behind an edge, if there is none; otherwise the one that is there."""
        try:
            await self._call(
                "put_item",
                alters=True,
                expects=(_CONDITION_FAILED,),
                TableName=self._table,
                Item=self._item_of(task_id, segment),
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **_IF_NEW,
            )
        except CallRefused as refused:
            return _segment_of(refused.response["Item"])
        return None

    async def fill_gap(self, task_id: str, gap: Segment, segment: Segment) -> bool:
        """Lay a tile into a gap; False if the gap is no longer what it was."""
        left, right = replace(gap, last=segment.first - 1), replace(gap, first=segment.last + 1)
        tiles = [each for each in (left, segment, right) if each.first <= each.last]
        if_still_there = {
            "ConditionExpression": "attribute_not_exists(#data) AND #last = :last",
            "ExpressionAttributeNames": {"#data": "data", "#last": "last"},
            "ExpressionAttributeValues": {":last": {"N": str(gap.last)}},
        }
        # The first has the key of the gap, and takes its place.
        conditions = [if_still_there, _IF_NEW, _IF_NEW]
        writes = [
            {"TableName": self._table, "Item": self._item_of(task_id, each), **condition}
            for each, condition in zip(tiles, conditions, strict=False)
        ]
        try:
            await self._write(writes)
        except CallRefused as refused:
            reasons = {each.get("Code") for each in refused.response.get("CancellationReasons", [])}
            if reasons <= _CONFLICT_REASONS:
                return False
            message = f"dynamodb.transact_write_items: {', '.join(sorted(map(str, reasons)))}"
            kind = BackendRejected if "ValidationError" in reasons else BackendUnavailable
            raise kind(message) from refused
        return True

    async def _write(self, writes: list[dict[str, Any]]) -> None:
        if len(writes) == 1:
            await self._call("put_item", alters=True, expects=(_CONDITION_FAILED,), **writes[0])
            return
        items = [{"Put": write} for write in writes]
        await self._call(
            "transact_write_items",
            alters=True,
            expects=(_TRANSACTION_CANCELLED,),
            TransactItems=items,
        )

    def _item_of(self, task_id: str, segment: Segment) -> Item:
        item: Item = {
            "task": {"S": task_id},
            "position": {"S": _position_key(OutputPosition(segment.attempt, segment.first))},
            "last": {"N": str(segment.last)},
            **self._ttl(),
        }
        if segment.data is not None:
            item["data"] = {"B": segment.data}
        if segment.parts:
            item |= {"parts": {"N": str(segment.parts)}, "digest": {"S": segment.digest}}
        return item

    def _ttl(self) -> Item:
        if self._retention is None:
            return {}
        return {"ttl": {"N": str(int((self._clock.now() + self._retention).timestamp()))}}

    # Looking ------------------------------------------------------------------------------------

    async def segment_at(self, task_id: str, position: OutputPosition) -> Segment | None:
        """The last tile of the attempt that begins at this place or before."""
        found = self._query_backwards(task_id, OutputPosition(position.attempt, 0), position)
        async with aclosing(found) as tiles:
            return await anext(tiles, None)

    async def last_segment(self, task_id: str) -> Segment | None:
        """The last tile of all in which something is."""
        found = self._query_backwards(task_id, OutputPosition(0, 0), _LAST_POSITION)
        async with aclosing(found) as tiles:
            async for tile in tiles:
                if not tile.is_gap:
                    return tile
        return None

    async def first_two(
        self, task_id: str, begin: OutputPosition, *, consistent: bool
    ) -> list[Segment]:
        """The first two tiles from this place on."""
        return (await self._page(task_id, begin, 2, consistent=consistent))[0]

    async def segments_from(
        self, task_id: str, begin: OutputPosition
    ) -> AsyncGenerator[Segment, None]:
        """All tiles from this edge on, in order.

        A query is no snapshot: it may pass by a place before a tile is laid there, and find the one
        that was laid behind it. That is seen by the hole between them, and read again. If the hole
        is still there, the table has forgotten what was in it.
        """
        count, forgotten = _FIRST_PAGE, None
        while True:
            tiles, more = await self._page(task_id, begin, count, consistent=True)
            for tile in tiles:
                edge = begin.sequence if tile.attempt == begin.attempt else 1
                if tile.first != edge and begin != forgotten:
                    forgotten, more = begin, True
                    break
                yield tile
                begin = OutputPosition(tile.attempt, tile.last + 1)
            if not more:
                return
            count *= _GROWTH

    async def _page(
        self, task_id: str, begin: OutputPosition, count: int, *, consistent: bool
    ) -> tuple[list[Segment], bool]:
        asked = self._query_parameters(task_id, begin)
        answer = await self._call("query", **asked, Limit=count, ConsistentRead=consistent)
        return [_segment_of(item) for item in answer["Items"]], "LastEvaluatedKey" in answer

    async def _query_backwards(
        self, task_id: str, low: OutputPosition, high: OutputPosition
    ) -> AsyncGenerator[Segment, None]:
        asked = self._query_parameters(task_id, low, high) | {"ScanIndexForward": False}
        while True:
            answer = await self._call("query", **asked, Limit=1, ConsistentRead=True)
            for item in answer["Items"]:
                yield _segment_of(item)
            if not (last := answer.get("LastEvaluatedKey")):
                return
            asked["ExclusiveStartKey"] = last

    async def join_parts(self, task_id: str, segment: Segment) -> OutputChunk:
        """The entry of a tile that lies in parts."""
        (entry,) = segment.entries
        asked: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": "#task = :task",
            "ExpressionAttributeNames": {"#task": "task"},
            "ExpressionAttributeValues": {":task": {"S": _parts_partition(task_id, segment)}},
        }
        parts: list[bytes] = []
        while True:
            answer = await self._call("query", **asked, ConsistentRead=True)
            parts += [item["data"]["B"] for item in answer["Items"]]
            if not (last := answer.get("LastEvaluatedKey")):
                break
            asked["ExclusiveStartKey"] = last
        if len(parts) < segment.parts:
            # All were there before the tile was, so the table has begun to forget them.
            return replace(entry, stream=Stream.LOST, last=segment.last)
        return replace(entry, data=await asyncio.to_thread(decompress, b"".join(parts)))

    def _query_parameters(
        self, task_id: str, low: OutputPosition, high: OutputPosition = _LAST_POSITION
    ) -> dict[str, Any]:
        return {
            "TableName": self._table,
            "KeyConditionExpression": "#task = :task AND #position BETWEEN :low AND :high",
            "ExpressionAttributeNames": {"#task": "task", "#position": "position"},
            "ExpressionAttributeValues": {
                ":task": {"S": task_id},
                ":low": {"S": _position_key(low)},
                ":high": {"S": _position_key(high)},
            },
        }

    async def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return await self._aws.call("dynamodb", operation, **parameters)


def _position_key(position: OutputPosition) -> str:
    """A place as text that is ordered as places are."""
    return f"{min(position.attempt, MAX_SEQUENCE):019d}.{min(position.sequence, MAX_SEQUENCE):019d}"


def _parts_partition(task_id: str, segment: Segment) -> str:
    # No id of a task has a "#".
    return f"{task_id}#{segment.attempt}.{segment.first}.{segment.digest}"


def _segment_of(item: Item) -> Segment:
    attempt, _, first = item["position"]["S"].partition(".")
    return Segment(
        attempt=int(attempt),
        first=int(first),
        last=int(item["last"]["N"]),
        data=item["data"]["B"] if "data" in item else None,
        parts=int(item["parts"]["N"]) if "parts" in item else 0,
        digest=item["digest"]["S"] if "digest" in item else "",
    )
