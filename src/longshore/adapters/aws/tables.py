"""Access to DynamoDB tables: consistent reads, queries, and conditional writes.

A write is one call with a condition. If its answer is lost, ``put`` and ``update`` repeat the call,
so a condition that fails may have been met by an earlier attempt: a writer that must know stores a
token in the item and looks for it.

A read costs one unit for each 4 KB that it reads, a write one for each KB, and both at least one.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from longshore.adapters.aws.attributes import Item, decode_item, encode_item
from longshore.adapters.aws.client import AwsClient, CallRefused, retry_unknown_outcome

NOT_EXISTS = "attribute_not_exists(#kind)"
"""The condition under which an item of the config table is new."""
FIRST_KEY, LAST_KEY = " ", "\U0010ffff"
"""Texts before and after every sort key."""

_TOKEN_BYTES = 8
_KEY_LIMITS_BYTES = 2048, 1024  # DynamoDB's, of the partition key and the sort key
_PLACEHOLDER = re.compile(r"#\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query of one partition of a table or index.

    Attributes in ``where`` are written ``#name``, because many plain words are reserved.
    """

    partition: tuple[str, str]  # the attribute and its value
    sort: str = ""  # the attribute that ``low`` and ``high`` limit
    low: str = FIRST_KEY
    high: str = LAST_KEY
    index: str | None = None
    where: str = ""  # a filter; items that it drops are paid for
    values: Mapping[str, Any] = field(default_factory=dict)  # of ``where``
    descending: bool = False
    consistent: bool = True  # only of a table; an index never is
    page_size: int | None = None
    fields: tuple[str, ...] = ()  # the attributes to return; none: all

    def parameters(self) -> dict[str, Any]:
        """The parameters of the request."""
        attribute, partition = self.partition
        condition, values = f"#{attribute} = :partition", {":partition": partition}
        if self.sort:
            condition += f" AND #{self.sort} BETWEEN :low AND :high"
            values |= {":low": self.low, ":high": self.high}
        fields = ", ".join(f"#{name}" for name in self.fields)
        optional = {
            "ProjectionExpression": fields,
            "FilterExpression": self.where,
            "IndexName": self.index,
            "Limit": self.page_size,
        }
        return {
            "KeyConditionExpression": condition,
            "ExpressionAttributeNames": _attribute_names(condition, self.where, fields),
            "ExpressionAttributeValues": encode_item({**values, **self.values}),
            "ScanIndexForward": not self.descending,
            "ConsistentRead": self.consistent and self.index is None,
            **{name: value for name, value in optional.items() if value},
        }


def _attribute_names(*expressions: str) -> dict[str, str]:
    """The names of all placeholders ``#name`` in the expressions."""
    return {name: name[1:] for name in _PLACEHOLDER.findall(" ".join(expressions))}


class WriteOptions(TypedDict, total=False):
    """Conditions of a write, in which attributes are written ``#name``."""

    condition: str  # may use the new values of an update, as ``:name``
    values: Item  # other values
    then: str  # the rest of an update's expression, after the attributes that it sets


@dataclass(frozen=True, slots=True)
class Table:
    """A table of DynamoDB. Attributes are written ``#name`` in expressions."""

    aws: AwsClient
    name: str

    async def get(self, key: Item) -> Item | None:
        """The item with this key. A key that DynamoDB refuses is the key of no item."""
        sizes = (len(part.encode(errors="replace")) for part in key.values())
        if not all(0 < size <= limit for size, limit in zip(sizes, _KEY_LIMITS_BYTES, strict=True)):
            return None
        answer = await self.aws.call(
            "dynamodb", "get_item", TableName=self.name, Key=encode_item(key), ConsistentRead=True
        )
        return decode_item(answer["Item"]) if "Item" in answer else None

    async def query(self, query: Query) -> AsyncIterator[Item]:
        """The items of a query, in order."""
        pages = self.aws.pages(
            "dynamodb",
            "query",
            token=("LastEvaluatedKey", "ExclusiveStartKey"),
            TableName=self.name,
            **query.parameters(),
        )
        async for page in pages:
            for item in page["Items"]:
                yield decode_item(item)

    async def page(self, query: Query) -> tuple[list[Item], bool]:
        """The first items of a query. Returns True if there may be more."""
        answer = await self.aws.call("dynamodb", "query", TableName=self.name, **query.parameters())
        return [decode_item(item) for item in answer["Items"]], "LastEvaluatedKey" in answer

    async def put(self, item: Item, **options: Unpack[WriteOptions]) -> Item | None:
        """Write a whole item. Returns None, or the existing item if the condition fails."""
        return await self._repeat("put_item", self.put_request(item, **options))

    async def update(
        self, key: Item, attributes: Item, **options: Unpack[WriteOptions]
    ) -> Item | None:
        """Set attributes. Returns None, or the existing item (perhaps empty) if refused."""
        return await self._repeat("update_item", self.update_request(key, attributes, **options))

    async def delete(self, key: Item, **options: Unpack[WriteOptions]) -> Item | None:
        """Delete an item. Returns None, or the existing item (perhaps empty) if refused."""
        request = self._request(options, {}, Key=encode_item(key))
        return await self._repeat("delete_item", request)

    async def _repeat(self, operation: str, request: dict[str, Any]) -> Item | None:
        try:
            await retry_unknown_outcome(lambda: self.write(operation, request))
        except CallRefused as refused:
            return existing_item(refused)
        return None

    async def write(self, operation: str, request: dict[str, Any]) -> None:
        """Write an item, once.

        Raises:
            CallRefused: the condition fails; see ``existing_item``.
        """
        expects = ("ConditionalCheckFailedException",)
        await self.aws.call("dynamodb", operation, alters=True, expects=expects, **request)

    async def transact(self, *writes: dict[str, Any]) -> set[str]:
        """Write several items or none.

        Args:
            writes: By their kind: ``{"Put": table.put_request(…)}``.

        Returns:
            Nothing, or the codes of the reasons why DynamoDB cancelled the transaction.
        """
        token = secrets.token_hex(16)  # makes a repeated transaction idempotent
        try:
            await retry_unknown_outcome(
                lambda: self.aws.call(
                    "dynamodb",
                    "transact_write_items",
                    alters=True,
                    expects=("TransactionCanceledException",),
                    TransactItems=writes,
                    ClientRequestToken=token,
                )
            )
        except CallRefused as refused:
            reasons = refused.response["CancellationReasons"]
            return {reason["Code"] for reason in reasons} - {"None"}
        return set()

    def put_request(self, item: Item, **options: Unpack[WriteOptions]) -> dict[str, Any]:
        """The parameters of ``put``, or of a part of a transaction."""
        return self._request(options, {}, Item=encode_item(item))

    def update_request(
        self, key: Item, attributes: Item, **options: Unpack[WriteOptions]
    ) -> dict[str, Any]:
        """The parameters of ``update``, or of a part of a transaction."""
        changes = ", ".join(f"#{name} = :{name}" for name in attributes)
        expression = f"SET {changes}" if changes else ""
        return self._request(
            options,
            {f":{name}": value for name, value in attributes.items()},
            Key=encode_item(key),
            UpdateExpression=expression + options.get("then", ""),
        )

    def _request(self, options: WriteOptions, values: Item, **parameters: Any) -> dict[str, Any]:
        request = {"TableName": self.name, **parameters}
        condition = options.get("condition", "")
        if condition:
            request["ConditionExpression"] = condition
            request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        if names := _attribute_names(condition, parameters.get("UpdateExpression", "")):
            request["ExpressionAttributeNames"] = names
        if values := values | options.get("values", {}):
            request["ExpressionAttributeValues"] = encode_item(values)
        return request


def existing_item(refused: CallRefused) -> Item:
    """The item with which a condition failed; empty if there is none."""
    return decode_item(refused.response.get("Item", {}))


async def merge_sorted(
    queries: Iterable[AsyncIterator[Item]],
    sort_key: Callable[[Item], Any],
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


def config_key(kind: str, name: str = ".") -> Item:
    """The key of an item of the config table; the name may be left out if it is alone of its kind.

    The table stores definitions, API keys, queue pauses, budgets and counters.
    """
    return {"kind": kind, "name": name}


def kind_of(*parts: str) -> str:
    """A kind made of parts; two lists of parts never give the same kind."""
    return "#".join(part.replace("%", "%25").replace("#", "%23") for part in parts)


def new_token() -> str:
    """A token by which a writer recognises its own write."""
    return secrets.token_hex(_TOKEN_BYTES)
