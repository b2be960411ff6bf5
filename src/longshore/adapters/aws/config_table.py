"""The table of what is few: how definitions, keys, pauses and accounts are read and written there.

An item's ``kind`` is its partition, its ``name`` its place in it. Reads are consistent. A write is
one call with a condition. If its answer is lost it is made again, so a condition that fails may
have been met by an earlier try: who must know leaves a mark in what it writes, and looks for it.

A read costs a unit for each 4 KB that it looks at, a write one for each KB, and both at least one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused
from longshore.adapters.aws.names import Names
from longshore.errors import BackendUnavailable, OutcomeUnknown

T = TypeVar("T")
Item = dict[str, dict[str, Any]]

NOT_EXISTS = "attribute_not_exists(#kind)"
"""The condition under which an item is new."""

_CONDITION_FAILED = "ConditionalCheckFailedException"
_ATTEMPTS = 3  # each of them several of the client library's
_TOKEN_BYTES = 8
_KIND_LIMIT_BYTES, _NAME_LIMIT_BYTES = 2048, 1024  # DynamoDB's
_PLACEHOLDER = re.compile(r"#\w+")


class ConfigTable:
    """The items of one installation."""

    def __init__(self, aws: AwsClient, names: Names) -> None:
        self._aws = aws
        self._table = names.config

    async def get(self, kind: str, name: str) -> Item | None:
        """An item as it is now."""
        if not _is_valid_key(kind, name):
            return None
        found = await self._aws.call(
            "dynamodb",
            "get_item",
            TableName=self._table,
            Key={"kind": string_attribute(kind), "name": string_attribute(name)},
            ConsistentRead=True,
        )
        item: Item | None = found.get("Item")
        return item

    async def list_kind(self, kind: str) -> list[Item]:
        """Every item of a kind as it is now, by name."""
        found: list[Item] = []
        start: dict[str, Any] = {}
        while True:
            answer = await self._aws.call(
                "dynamodb",
                "query",
                TableName=self._table,
                ConsistentRead=True,
                KeyConditionExpression="#kind = :kind",
                ExpressionAttributeNames={"#kind": "kind"},
                ExpressionAttributeValues={":kind": string_attribute(kind)},
                **start,
            )
            found += answer["Items"]
            if not (last := answer.get("LastEvaluatedKey")):
                return found
            start = {"ExclusiveStartKey": last}

    async def put(
        self, item: Item, *, condition: str = NOT_EXISTS, values: Item | None = None
    ) -> Item | None:
        """Write an item whole; None, or what is there if the condition does not hold of it.

        Attributes are written ``#so`` in expressions, because many plain words are reserved.
        """
        return await self._write("put_item", {"Item": item}, condition, values or {})

    async def update(
        self, kind: str, name: str, update_expression: str, *, condition: str, values: Item
    ) -> Item | None:
        """Change an item; None, or what is there (perhaps nothing) if the condition does not hold.

        The expressions are written as those of ``put``.
        """
        key = {"kind": string_attribute(kind), "name": string_attribute(name)}
        parameters = {"Key": key, "UpdateExpression": update_expression}
        return await self._write("update_item", parameters, condition, values)

    async def _write(
        self, operation: str, parameters: Mapping[str, Any], condition: str, values: Item
    ) -> Item | None:
        expressions = f"{condition} {parameters.get('UpdateExpression', '')}"
        written: dict[str, Any] = {
            **parameters,
            "TableName": self._table,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {w: w[1:] for w in _PLACEHOLDER.findall(expressions)},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        if values:
            written["ExpressionAttributeValues"] = values

        async def call() -> AwsResponse:
            return await self._aws.call(
                "dynamodb", operation, alters=True, expects=(_CONDITION_FAILED,), **written
            )

        try:
            await retry_unknown_outcome(call)
        except CallRefused as refused:
            there: Item = refused.response.get("Item", {})
            return there
        return None


async def retry_unknown_outcome(call: Callable[[], Awaitable[T]]) -> T:
    """The outcome of a call that does the same when it is made twice: made again if it is lost.

    Raises:
        OutcomeUnknown: all answers were lost, or one was and then AWS could not be asked.
    """
    tries = 0
    while True:
        tries += 1
        try:
            return await call()
        except OutcomeUnknown:
            if tries == _ATTEMPTS:
                raise
        except BackendUnavailable as error:
            if tries > 1:  # an earlier one may have happened
                raise OutcomeUnknown(str(error)) from error
            raise


def kind_of(*parts: str) -> str:
    """Parts as one kind; no two lists of parts make the same."""
    return "#".join(part.replace("%", "%25").replace("#", "%23") for part in parts)


def new_token() -> str:
    """By which a writer knows what it has written itself."""
    return secrets.token_hex(_TOKEN_BYTES)


def string_attribute(value: str) -> dict[str, str]:
    """A text as an attribute."""
    return {"S": value}


def number_attribute(value: int) -> dict[str, str]:
    """A whole number as an attribute."""
    return {"N": str(value)}


def _is_valid_key(kind: str, name: str) -> bool:
    # DynamoDB refuses any other key, but whoever asks for one should hear that it is not there.
    kind_bytes, name_bytes = (len(part.encode(errors="replace")) for part in (kind, name))
    return kind_bytes <= _KIND_LIMIT_BYTES and 0 < name_bytes <= _NAME_LIMIT_BYTES
