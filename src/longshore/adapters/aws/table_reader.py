"""Reading tables: queries page by page, several of them in one order, and rows by the hundred."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from longshore.adapters.aws.client import AwsClient
from longshore.errors import BackendUnavailable
from longshore.ports.clock import Clock

Item = dict[str, dict[str, Any]]

_BATCH_GET_LIMIT = 100  # of BatchGetItem
_ATTEMPTS = 8
_FIRST_BACKOFF = timedelta(milliseconds=50)


class TableReader:
    """How the adapters read DynamoDB."""

    def __init__(self, aws: AwsClient, clock: Clock) -> None:
        self._aws = aws
        self._clock = clock

    async def get(self, table: str, key: Item) -> Item | None:
        """An item as it is now."""
        found = await self._aws.call(
            "dynamodb", "get_item", TableName=table, Key=key, ConsistentRead=True
        )
        item: Item | None = found.get("Item")
        return item

    async def batch_get(self, table: str, keys: Sequence[Item]) -> list[Item]:
        """Those of the items that exist, as they are now, in no order, each once.

        Raises:
            BackendUnavailable: DynamoDB has not handed out all of them, however often asked.
        """
        # It refuses to be asked for one twice, and an index may show one twice while it moves.
        keys = list({tuple(part["S"] for part in key.values()): key for key in keys}.values())
        parts = [keys[at : at + _BATCH_GET_LIMIT] for at in range(0, len(keys), _BATCH_GET_LIMIT)]
        found = await asyncio.gather(*(self._get_batch(table, part) for part in parts))
        return [item for part in found for item in part]

    async def _get_batch(self, table: str, keys: Sequence[Item]) -> list[Item]:
        found: list[Item] = []
        asked: dict[str, Any] = {table: {"Keys": list(keys), "ConsistentRead": True}}
        pause = _FIRST_BACKOFF
        for _ in range(_ATTEMPTS):
            answer = await self._aws.call("dynamodb", "batch_get_item", RequestItems=asked)
            found += answer["Responses"].get(table, [])
            # An answer is cut at 16 MB, and where the table is throttled.
            asked = answer.get("UnprocessedKeys") or {}
            if not asked:
                return found
            await self._clock.sleep(pause)
            pause *= 2
        message = f"dynamodb.batch_get_item: {len(asked[table]['Keys'])} keys left over"
        raise BackendUnavailable(message)

    async def query(
        self,
        table: str,
        partition: tuple[str, str],
        sort: str,
        *,
        index: str | None = None,
        low: str | None = None,
        high: str | None = None,
        prefix: str | None = None,
        descending: bool = False,
        page_size: int | None = None,
        filters: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> AsyncIterator[Item]:
        """The items of a partition, in order; of a table as they are now, of an index as it knows.

        Args:
            partition: The name of the key, and its value.
            sort: The name of the sort key, for ``low`` and ``high`` (both included) or ``prefix``.
            page: How many to ask for at a time.
            filters: A condition that items must meet, with its ``names`` and ``values``; those that
                do not are paid for as well.
        """
        condition, bounds = _condition(low, high, prefix)
        parameters: dict[str, Any] = {
            "TableName": table,
            "KeyConditionExpression": f"#p = :p{condition}",
            "ExpressionAttributeNames": {
                "#p": partition[0],
                **({"#s": sort} if condition else {}),
                **(names or {}),
            },
            "ExpressionAttributeValues": {":p": {"S": partition[1]}, **bounds, **(values or {})},
            "ScanIndexForward": not descending,
            **more,
        }
        if index is not None:
            parameters["IndexName"] = index
        else:
            parameters["ConsistentRead"] = True
        if filters is not None:
            parameters["FilterExpression"] = filters
        if page_size is not None:
            parameters["Limit"] = page_size
        while True:
            answer = await self._aws.call("dynamodb", "query", **parameters)
            for item in answer["Items"]:
                yield item
            if not (last := answer.get("LastEvaluatedKey")):
                return
            parameters["ExclusiveStartKey"] = last


def _condition(low: str | None, high: str | None, prefix: str | None) -> tuple[str, dict[str, Any]]:
    if prefix:
        return " AND begins_with(#s, :a)", {":a": {"S": prefix}}
    if low is not None and high is not None:
        return " AND #s BETWEEN :a AND :b", {":a": {"S": low}, ":b": {"S": high}}
    if low is not None:
        return " AND #s >= :a", {":a": {"S": low}}
    if high is not None:
        return " AND #s <= :b", {":b": {"S": high}}
    return "", {}


async def merge_sorted(
    queries: Iterable[AsyncIterator[Item]],
    sort_key: Callable[[Item], str],
    *,
    descending: bool = False,
) -> AsyncIterator[Item]:
    """The items of several walks, each in order, as one walk in that order."""
    open_walks = list(queries)
    firsts = await asyncio.gather(*(anext(walk, None) for walk in open_walks))
    heads = {number: item for number, item in enumerate(firsts) if item is not None}
    choose = max if descending else min
    while heads:
        number = choose(heads, key=lambda each: sort_key(heads[each]))
        yield heads[number]
        following = await anext(open_walks[number], None)
        if following is None:
            del heads[number]
        else:
            heads[number] = following
