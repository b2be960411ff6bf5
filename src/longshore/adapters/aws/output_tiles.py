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

from longshore.adapters.aws.calls import Aws, Refused
from longshore.adapters.shared.output_codec import (
    ENTRY_BYTES,
    Run,
    end_of,
    fitting,
    pack,
    squeeze,
    stretch,
    unpack,
)
from longshore.errors import BackendRejected, BackendUnavailable
from longshore.ports.clock import Clock
from longshore.ports.output import OutputEntry, Place, Stream

Item = dict[str, dict[str, Any]]

LARGEST = 10**19 - 1
"""Sequences have 19 digits in a key."""

_END = Place(LARGEST, LARGEST)
_TILE_BYTES = 352 * 1024  # DynamoDB takes 400 KB
_FIRST_PAGE, _GROWTH = 2, 4  # tiles: a reader who wants little shall not pay for a megabyte
_TAKEN = "ConditionalCheckFailedException"
_CANCELLED = "TransactionCanceledException"
_LOST_A_RACE = {"None", "ConditionalCheckFailed"}
_IF_NEW = {
    "ConditionExpression": "attribute_not_exists(#place)",
    "ExpressionAttributeNames": {"#place": "place"},
}


@dataclass(frozen=True)
class Tile:
    """Sequences ``first`` to ``last`` of an attempt; without ``data`` a gap."""

    attempt: int
    first: int
    last: int
    data: bytes | None = None
    parts: int = 0  # if its one entry lies apart: in how many items
    digest: str = ""

    @property
    def end(self) -> Place:
        """The last place it covers."""
        return Place(self.attempt, self.last)

    @property
    def is_gap(self) -> bool:
        """Whether nothing is kept in it."""
        return self.data is None

    @cached_property
    def entries(self) -> Run:
        """What it holds; an entry that lies apart is without its data."""
        return [] if self.data is None else unpack(self.data, self.attempt, self.first)


class Tiles:
    """The table."""

    def __init__(self, aws: Aws, table: str, clock: Clock, keeps: timedelta | None) -> None:
        self._aws = aws
        self._table = table
        self._clock = clock
        self._keeps = keeps

    # Laying -------------------------------------------------------------------------------------

    async def made_of(self, task_id: str, run: Run) -> Tile:
        """A tile of a run's beginning; what is too large for it is written apart."""
        run = fitting(run, _TILE_BYTES)
        entry, last = run[0], end_of(run[-1])
        if len(entry.data) <= _TILE_BYTES - ENTRY_BYTES:
            return Tile(entry.attempt, entry.sequence, last, pack(run))
        squeezed = await asyncio.to_thread(squeeze, entry.data)
        parts = [squeezed[at : at + _TILE_BYTES] for at in range(0, len(squeezed), _TILE_BYTES)]
        head = pack([replace(entry, data=b"")])
        digest = hashlib.sha256(squeezed).hexdigest()[:32]
        tile = Tile(entry.attempt, entry.sequence, last, head, len(parts), digest)
        partition = _partition_of_parts(task_id, tile)
        for number, part in enumerate(parts):
            item = {
                "task": {"S": partition},
                "place": {"S": f"{number:06d}"},
                "data": {"B": part},
                **self._ttl(),
            }
            await self._dynamo("put_item", alters=True, TableName=self._table, Item=item)
        return tile

    async def lay(self, task_id: str, tile: Tile) -> Tile | None:
        """Lay a tile behind an edge, if there is none; otherwise the one that is there."""
        try:
            await self._dynamo(
                "put_item",
                alters=True,
                expects=(_TAKEN,),
                TableName=self._table,
                Item=self._item_of(task_id, tile),
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **_IF_NEW,
            )
        except Refused as refused:
            return _tile_of(refused.answer["Item"])
        return None

    async def lay_into(self, task_id: str, gap: Tile, tile: Tile) -> bool:
        """Lay a tile into a gap; False if the gap is no longer what it was."""
        left, right = replace(gap, last=tile.first - 1), replace(gap, first=tile.last + 1)
        tiles = [each for each in (left, tile, right) if each.first <= each.last]
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
        except Refused as refused:
            reasons = {each.get("Code") for each in refused.answer.get("CancellationReasons", [])}
            if reasons <= _LOST_A_RACE:
                return False
            message = f"dynamodb.transact_write_items: {', '.join(sorted(map(str, reasons)))}"
            kind = BackendRejected if "ValidationError" in reasons else BackendUnavailable
            raise kind(message) from refused
        return True

    async def _write(self, writes: list[dict[str, Any]]) -> None:
        if len(writes) == 1:
            await self._dynamo("put_item", alters=True, expects=(_TAKEN,), **writes[0])
            return
        items = [{"Put": write} for write in writes]
        await self._dynamo(
            "transact_write_items", alters=True, expects=(_CANCELLED,), TransactItems=items
        )

    def _item_of(self, task_id: str, tile: Tile) -> Item:
        item: Item = {
            "task": {"S": task_id},
            "place": {"S": _key(Place(tile.attempt, tile.first))},
            "last": {"N": str(tile.last)},
            **self._ttl(),
        }
        if tile.data is not None:
            item["data"] = {"B": tile.data}
        if tile.parts:
            item |= {"parts": {"N": str(tile.parts)}, "digest": {"S": tile.digest}}
        return item

    def _ttl(self) -> Item:
        if self._keeps is None:
            return {}
        return {"ttl": {"N": str(int((self._clock.now() + self._keeps).timestamp()))}}

    # Looking ------------------------------------------------------------------------------------

    async def at(self, task_id: str, place: Place) -> Tile | None:
        """The last tile of the attempt that begins at this place or before."""
        found = self._backwards(task_id, Place(place.attempt, 0), place)
        async with aclosing(found) as tiles:
            return await anext(tiles, None)

    async def final(self, task_id: str) -> Tile | None:
        """The last tile of all in which something is."""
        found = self._backwards(task_id, Place(0, 0), _END)
        async with aclosing(found) as tiles:
            async for tile in tiles:
                if not tile.is_gap:
                    return tile
        return None

    async def first_two(self, task_id: str, begin: Place, *, consistent: bool) -> list[Tile]:
        """The first two tiles from this place on."""
        return (await self._page(task_id, begin, 2, consistent=consistent))[0]

    async def onwards(self, task_id: str, begin: Place) -> AsyncGenerator[Tile, None]:
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
                begin = Place(tile.attempt, tile.last + 1)
            if not more:
                return
            count *= _GROWTH

    async def _page(
        self, task_id: str, begin: Place, count: int, *, consistent: bool
    ) -> tuple[list[Tile], bool]:
        asked = self._asked(task_id, begin)
        answer = await self._dynamo("query", **asked, Limit=count, ConsistentRead=consistent)
        return [_tile_of(item) for item in answer["Items"]], "LastEvaluatedKey" in answer

    async def _backwards(self, task_id: str, low: Place, high: Place) -> AsyncGenerator[Tile, None]:
        asked = self._asked(task_id, low, high) | {"ScanIndexForward": False}
        while True:
            answer = await self._dynamo("query", **asked, Limit=1, ConsistentRead=True)
            for item in answer["Items"]:
                yield _tile_of(item)
            if not (last := answer.get("LastEvaluatedKey")):
                return
            asked["ExclusiveStartKey"] = last

    async def joined(self, task_id: str, tile: Tile) -> OutputEntry:
        """The entry of a tile that lies in parts."""
        (entry,) = tile.entries
        asked: dict[str, Any] = {
            "TableName": self._table,
            "KeyConditionExpression": "#task = :task",
            "ExpressionAttributeNames": {"#task": "task"},
            "ExpressionAttributeValues": {":task": {"S": _partition_of_parts(task_id, tile)}},
        }
        parts: list[bytes] = []
        while True:
            answer = await self._dynamo("query", **asked, ConsistentRead=True)
            parts += [item["data"]["B"] for item in answer["Items"]]
            if not (last := answer.get("LastEvaluatedKey")):
                break
            asked["ExclusiveStartKey"] = last
        if len(parts) < tile.parts:
            # All were there before the tile was, so the table has begun to forget them.
            return replace(entry, stream=Stream.LOST, last=tile.last)
        return replace(entry, data=await asyncio.to_thread(stretch, b"".join(parts)))

    def _asked(self, task_id: str, low: Place, high: Place = _END) -> dict[str, Any]:
        return {
            "TableName": self._table,
            "KeyConditionExpression": "#task = :task AND #place BETWEEN :low AND :high",
            "ExpressionAttributeNames": {"#task": "task", "#place": "place"},
            "ExpressionAttributeValues": {
                ":task": {"S": task_id},
                ":low": {"S": _key(low)},
                ":high": {"S": _key(high)},
            },
        }

    async def _dynamo(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return await self._aws.call("dynamodb", operation, **parameters)


def _key(place: Place) -> str:
    """A place as text that is ordered as places are."""
    return f"{min(place.attempt, LARGEST):019d}.{min(place.sequence, LARGEST):019d}"


def _partition_of_parts(task_id: str, tile: Tile) -> str:
    # No id of a task has a "#".
    return f"{task_id}#{tile.attempt}.{tile.first}.{tile.digest}"


def _tile_of(item: Item) -> Tile:
    attempt, _, first = item["place"]["S"].partition(".")
    return Tile(
        attempt=int(attempt),
        first=int(first),
        last=int(item["last"]["N"]),
        data=item["data"]["B"] if "data" in item else None,
        parts=int(item["parts"]["N"]) if "parts" in item else 0,
        digest=item["digest"]["S"] if "digest" in item else "",
    )
