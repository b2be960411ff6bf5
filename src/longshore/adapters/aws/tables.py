"""Access to DynamoDB tables: consistent reads, queries, and conditional writes to the config table.

The config table stores definitions, API keys, queue pauses and budgets: an item's ``kind`` is its
partition key, its ``name`` the sort key. A write is one call with a condition. If its answer is
lost, the call is repeated, so a condition that fails may have been met by an earlier attempt: a
writer that must know stores a token in the item and looks for it.

A read costs one unit for each 4 KB that it reads, a write one for each KB, and both at least one.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from longshore.adapters.aws.attributes import Item, string_attribute
from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused
from longshore.adapters.aws.names import Names
from longshore.errors import BackendUnavailable, OutcomeUnknown
from longshore.ports.clock import Clock

T = TypeVar("T")

CONDITION_FAILED = "ConditionalCheckFailedException"
NOT_EXISTS = "attribute_not_exists(#kind)"
"""The condition under which an item of the config table is new."""

_BATCH_GET_LIMIT = 100
_BATCH_GET_ATTEMPTS = 8
_FIRST_BACKOFF = timedelta(milliseconds=50)
_UNKNOWN_OUTCOME_ATTEMPTS = 3  # the client library retries each of them
_TOKEN_BYTES = 8
_KIND_LIMIT_BYTES, _NAME_LIMIT_BYTES = 2048, 1024  # DynamoDB's
_PLACEHOLDER = re.compile(r"#\w+")


# Retries ----------------------------------------------------------------------------------------


async def attempts(clock: Clock, number: int, first_backoff: timedelta) -> AsyncIterator[int]:
    """Count attempts from 1, with an exponential backoff before each but the first."""
    for attempt in range(1, number + 1):
        if attempt > 1:
            await clock.sleep(first_backoff * 2 ** (attempt - 2))
        yield attempt


async def retry_unknown_outcome(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat an idempotent call while its outcome is unknown.

    Raises:
        OutcomeUnknown: all answers were lost, or one was lost and then AWS was unavailable.
    """
    for attempt in range(1, _UNKNOWN_OUTCOME_ATTEMPTS + 1):
        try:
            return await call()
        except OutcomeUnknown:
            if attempt == _UNKNOWN_OUTCOME_ATTEMPTS:
                raise
        except BackendUnavailable as error:
            if attempt > 1:  # an earlier attempt may have succeeded
                raise OutcomeUnknown(str(error)) from error
            raise
    raise AssertionError  # the last attempt returns or raises


# Reads ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query of one partition of a table or index.

    Attributes in ``where`` are written ``#name``, because many plain words are reserved.
    """

    table: str
    partition: tuple[str, str]  # the attribute and its value
    sort: str = ""  # the attribute that ``low``, ``high`` (both inclusive) and ``prefix`` limit
    index: str | None = None
    low: str | None = None
    high: str | None = None
    prefix: str | None = None
    where: str = ""  # a filter; items that it drops are paid for
    values: Mapping[str, Any] = field(default_factory=dict)  # of ``where``
    descending: bool = False
    page_size: int | None = None

    def parameters(self) -> dict[str, Any]:
        """The parameters of the request. A query of a table is consistent."""
        attribute, value = self.partition
        bounds = {
            name: string_attribute(bound)
            for name, bound in ((":low", self.prefix or self.low), (":high", self.high))
            if bound is not None
        }
        condition = f"#{attribute} = :partition{self._range_condition()}"
        parameters: dict[str, Any] = {
            "TableName": self.table,
            "KeyConditionExpression": condition,
            "ExpressionAttributeNames": attribute_names(condition, self.where),
            "ExpressionAttributeValues": {
                ":partition": string_attribute(value),
                **bounds,
                **self.values,
            },
            "ScanIndexForward": not self.descending,
        }
        if self.where:
            parameters["FilterExpression"] = self.where
        if self.index is None:
            parameters["ConsistentRead"] = True
        else:
            parameters["IndexName"] = self.index
        if self.page_size is not None:
            parameters["Limit"] = self.page_size
        return parameters

    def _range_condition(self) -> str:
        match self:
            case Query(prefix=str(prefix)) if prefix:
                return f" AND begins_with(#{self.sort}, :low)"
            case Query(low=str(), high=str()):
                return f" AND #{self.sort} BETWEEN :low AND :high"
            case Query(low=str()):
                return f" AND #{self.sort} >= :low"
            case Query(high=str()):
                return f" AND #{self.sort} <= :high"
        return ""


def attribute_names(*expressions: str) -> dict[str, str]:
    """The names of all placeholders ``#name`` in the expressions."""
    return {name: name[1:] for name in _PLACEHOLDER.findall(" ".join(expressions))}


class TableReader:
    """Consistent reads and queries."""

    def __init__(self, aws: AwsClient, clock: Clock) -> None:
        self._aws = aws
        self._clock = clock

    async def get(self, table: str, key: Item) -> Item | None:
        return await _get_item(self._aws, table, key)

    async def batch_get(self, table: str, keys: Sequence[Item]) -> list[Item]:
        """The items that exist, without order or duplicates.

        Raises:
            BackendUnavailable: DynamoDB has not returned all of them after all attempts.
        """
        # DynamoDB refuses duplicates, and an index may contain a row twice while it changes.
        keys = list({tuple(part["S"] for part in key.values()): key for key in keys}.values())
        batches = [keys[at : at + _BATCH_GET_LIMIT] for at in range(0, len(keys), _BATCH_GET_LIMIT)]
        results = await asyncio.gather(*(self._get_batch(table, batch) for batch in batches))
        return [item for batch in results for item in batch]

    async def _get_batch(self, table: str, keys: Sequence[Item]) -> list[Item]:
        items: list[Item] = []
        request: dict[str, Any] = {table: {"Keys": list(keys), "ConsistentRead": True}}
        async for _ in attempts(self._clock, _BATCH_GET_ATTEMPTS, _FIRST_BACKOFF):
            answer = await self._aws.call("dynamodb", "batch_get_item", RequestItems=request)
            items += answer["Responses"].get(table, [])
            # An answer is cut at 16 MB, and where the table is throttled.
            request = answer.get("UnprocessedKeys") or {}
            if not request:
                return items
        message = f"dynamodb.batch_get_item: {len(request[table]['Keys'])} keys left over"
        raise BackendUnavailable(message)

    async def query(self, query: Query) -> AsyncIterator[Item]:
        """The items of a query, in order."""
        async for item in _query_items(self._aws, query):
            yield item


async def merge_sorted(
    queries: Iterable[AsyncIterator[Item]],
    sort_key: Callable[[Item], str],
    *,
    descending: bool = False,
) -> AsyncIterator[Item]:
    """Merge the items of several ordered queries into one order."""
    iterators = list(queries)
    firsts = await asyncio.gather(*(anext(iterator, None) for iterator in iterators))
    heads = {number: item for number, item in enumerate(firsts) if item is not None}
    choose = max if descending else min
    while heads:
        number = choose(heads, key=lambda head: sort_key(heads[head]))
        yield heads[number]
        following = await anext(iterators[number], None)
        if following is None:
            del heads[number]
        else:
            heads[number] = following


async def _get_item(aws: AwsClient, table: str, key: Item) -> Item | None:
    answer = await aws.call("dynamodb", "get_item", TableName=table, Key=key, ConsistentRead=True)
    item: Item | None = answer.get("Item")
    return item


async def _query_items(aws: AwsClient, query: Query) -> AsyncIterator[Item]:
    parameters = query.parameters()
    while True:
        answer = await aws.call("dynamodb", "query", **parameters)
        for item in answer["Items"]:
            yield item
        if not (last := answer.get("LastEvaluatedKey")):
            return
        parameters["ExclusiveStartKey"] = last


# The config table -------------------------------------------------------------------------------


class ConfigTable:
    """The config table of one installation."""

    def __init__(self, aws: AwsClient, names: Names) -> None:
        self._aws = aws
        self._table = names.config

    async def get(self, kind: str, name: str) -> Item | None:
        if not _is_valid_key(kind, name):
            return None
        return await _get_item(self._aws, self._table, config_key(kind, name))

    async def list_kind(self, kind: str) -> list[Item]:
        """All items of a kind, by name."""
        query = Query(table=self._table, partition=("kind", kind))
        return [item async for item in _query_items(self._aws, query)]

    async def put(
        self, item: Item, *, condition: str = NOT_EXISTS, values: Item | None = None
    ) -> Item | None:
        """Write a whole item. Returns None, or the existing item if the condition fails.

        Attributes are written ``#name`` in expressions, because many plain words are reserved.
        """
        return await self._write("put_item", {"Item": item}, condition, values or {})

    async def update(
        self, kind: str, name: str, update_expression: str, *, condition: str, values: Item
    ) -> Item | None:
        """Update an item. Returns None, or the existing item (perhaps empty) if refused.

        Attributes are written ``#name`` in expressions.
        """
        parameters = {"Key": config_key(kind, name), "UpdateExpression": update_expression}
        return await self._write("update_item", parameters, condition, values)

    async def _write(
        self, operation: str, parameters: Mapping[str, Any], condition: str, values: Item
    ) -> Item | None:
        request: dict[str, Any] = {
            **parameters,
            "TableName": self._table,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": attribute_names(
                condition, parameters.get("UpdateExpression", "")
            ),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        if values:
            request["ExpressionAttributeValues"] = values

        async def call() -> AwsResponse:
            return await self._aws.call(
                "dynamodb", operation, alters=True, expects=(CONDITION_FAILED,), **request
            )

        try:
            await retry_unknown_outcome(call)
        except CallRefused as refused:
            existing: Item = refused.response.get("Item", {})
            return existing
        return None


def config_key(kind: str, name: str) -> Item:
    """The key of an item of the config table."""
    return {"kind": string_attribute(kind), "name": string_attribute(name)}


def kind_of(*parts: str) -> str:
    """A kind made of parts; two lists of parts never give the same kind."""
    return "#".join(part.replace("%", "%25").replace("#", "%23") for part in parts)


def new_token() -> str:
    """A token by which a writer recognises its own write."""
    return secrets.token_hex(_TOKEN_BYTES)


def _is_valid_key(kind: str, name: str) -> bool:
    # DynamoDB refuses other keys. For a reader such an item does not exist.
    kind_bytes, name_bytes = (len(part.encode(errors="replace")) for part in (kind, name))
    return kind_bytes <= _KIND_LIMIT_BYTES and 0 < name_bytes <= _NAME_LIMIT_BYTES
