"""Definitions, API keys and shared budgets in the config table.

If the answer to a write is lost, the write is repeated. A store recognises its own earlier write by
its content, a token or a change id.
"""

from __future__ import annotations

import asyncio

# The ports have a method ``list``, which hides the type inside their classes.
from builtins import list as List  # noqa: N812
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from weakref import WeakValueDictionary

from longshore.adapters.aws.attributes import (
    Item,
    compress_text,
    decompress_text,
    number_attribute,
    string_attribute,
)
from longshore.adapters.aws.client import AwsClient, CallRefused
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.tables import (
    NOT_EXISTS,
    ConfigTable,
    config_key,
    kind_of,
    new_token,
    retry_unknown_outcome,
)
from longshore.adapters.shared import codec
from longshore.core.api_keys import KeyRecord
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition
from longshore.errors import AlreadyExists, BackendUnavailable, UsageError, VersionConflict

DEFINITION_LIMIT_BYTES = 390_000
"""Of a definition as JSON. An item has at most 400 KB, with its names and numbers."""

_SOLE_NAME = "."  # the name of an item that is alone of its kind
_STORE_LABEL = "the config table"
_TRANSACTION_CANCELLED = "TransactionCanceledException"
_CONDITION_FAILED, _TRANSACTION_CONFLICT, _NO_REASON = (
    "ConditionalCheckFailed",
    "TransactionConflict",
    "None",
)
_CONFLICT_ATTEMPTS = 10
_READ_BATCH = 16


class DynamoDefinitions:
    """Definitions and their versions. See ``ports.configuration.Definitions``.

    A version is an item that is written once, under the first free number. The head of a definition
    says which version is the newest and up to which version it is deleted, and has a copy of the
    newest, so that a read needs one call. Both numbers only grow, so concurrent writers may move
    the head in any order. A writer that dies in between leaves a version that no head refers to:
    the next writer takes the number after it, or shares it if its content is the same.

    Requests: ``get`` 1; ``list`` 1 for each MB; ``put`` 1 if it is the newest already, else 3,
    and 1 for each concurrent writer; ``delete`` 2.
    """

    def __init__(self, aws: AwsClient, names: Names) -> None:
        self._config_table = ConfigTable(aws, names)
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def put(self, tenant: str, definition: Definition) -> Definition:
        # Through JSON, as it will be read, so that both sides of a comparison are alike.
        stored = codec.definition_from_json(_encode_definition(replace(definition, version=0)))
        # Concurrent writers of one process would only conflict.
        async with self._locks.setdefault((tenant, stored.name), asyncio.Lock()):
            return await self._put(tenant, stored)

    async def _put(self, tenant: str, definition: Definition) -> Definition:
        head = await self._head(tenant, definition.name)
        if (
            head is not None
            and _is_active(head)
            and _same_content(newest := _decode_definition(head), definition)
        ):
            return newest
        stored = await self._write_version(
            tenant, definition, after=_newest_version(head) if head else 0
        )
        await self._move_head(tenant, stored)
        return stored

    async def get(self, tenant: str, name: str, *, version: int | None = None) -> Definition | None:
        if version is not None:
            item = await self._config_table.get(*_version_key(tenant, name, version))
            return _decode_definition(item) if item else None
        head = await self._head(tenant, name)
        return _decode_definition(head) if head and _is_active(head) else None

    async def list(self, tenant: str) -> List[Definition]:
        heads = await self._config_table.list_kind(_heads_kind(tenant))
        return [_decode_definition(head) for head in heads if _is_active(head)]

    async def delete(self, tenant: str, name: str) -> bool:
        head = await self._head(tenant, name)
        if head is None or not _is_active(head):
            return False
        token = string_attribute(new_token())
        # Up to the version that was read: a newer one was put after this delete.
        refused_by = await self._config_table.update(
            _heads_kind(tenant),
            name,
            "SET #deleted = :this, #delete_token = :token",
            condition="#deleted < :this",
            values={":this": head["newest"], ":token": token},
        )
        return refused_by is None or refused_by.get("delete_token") == token

    async def _head(self, tenant: str, name: str) -> Item | None:
        return await self._config_table.get(_heads_kind(tenant), name)

    async def _write_version(
        self, tenant: str, definition: Definition, *, after: int
    ) -> Definition:
        """Write under the first free number, or return the same content found on the way to it."""
        version = after
        while True:
            version += 1
            stored = replace(definition, version=version)
            key = config_key(*_version_key(tenant, stored.name, version))
            body = string_attribute(_encode_definition(stored))
            existing = await self._config_table.put(key | {"body": body})
            if existing is None:
                return stored
            if _same_content(other := _decode_definition(existing), definition):
                return other

    async def _move_head(self, tenant: str, stored: Definition) -> None:
        # If the head is there or further already, there is nothing to do.
        await self._config_table.update(
            _heads_kind(tenant),
            stored.name,
            "SET #newest = :this, #body = :body, #deleted = if_not_exists(#deleted, :none)",
            condition="attribute_not_exists(#newest) OR #newest < :this",
            values={
                ":this": number_attribute(stored.version),
                ":body": string_attribute(_encode_definition(stored)),
                ":none": number_attribute(0),
            },
        )


def _heads_kind(tenant: str) -> str:
    return kind_of("definitions", tenant)


def _version_key(tenant: str, name: str, version: int) -> tuple[str, str]:
    return kind_of("definition", tenant, name), f"{version:010}"


def _encode_definition(definition: Definition) -> str:
    body = codec.to_json(definition)
    if (size := len(body.encode())) > DEFINITION_LIMIT_BYTES:
        message = (
            f"the definition {definition.name!r} has {size:,} bytes; AWS stores at most"
            f" {DEFINITION_LIMIT_BYTES:,}: move large parts into the tasks' input or into a file"
        )
        raise UsageError(message)
    return body


def _decode_definition(item: Item) -> Definition:
    return codec.definition_from_json(item["body"]["S"])


def _newest_version(head: Item) -> int:
    return int(head["newest"]["N"])


def _is_active(head: Item) -> bool:
    return _newest_version(head) > int(head["deleted"]["N"])


def _same_content(definition: Definition, other: Definition) -> bool:
    return replace(definition, version=0) == replace(other, version=0)


class DynamoApiKeys:
    """API keys, hashes only. See ``ports.configuration.Keys``.

    A record is stored under its hash, so that keys are spread over the table and each is found by
    one consistent read: every process sees a revocation at once, because none caches. Two more
    items never change: one under the id, which makes ids unique and refers to the record, and one
    among the tenant's keys, by age. All three are written in one transaction.

    Requests and units: ``find`` 1 read; ``add`` 1 request, 6 writes; ``list`` 1 read for each key
    and for each 4 KB; ``revoke`` 1 read, 1 write.
    """

    def __init__(self, aws: AwsClient, names: Names) -> None:
        self._aws = aws
        self._table_name = names.config
        self._config_table = ConfigTable(aws, names)

    async def add(self, record: KeyRecord) -> None:
        token = new_token()
        if not await retry_unknown_outcome(lambda: self._add(record, token)):
            raise AlreadyExists("key", record.id)

    async def find(self, key_hash: str) -> KeyRecord | None:
        item = await self._config_table.get(kind_of("key", key_hash), _SOLE_NAME)
        return _decode_key(item) if item else None

    async def list(self, tenant: str) -> List[KeyRecord]:
        items = await self._config_table.list_kind(_tenant_keys_kind(tenant))
        hashes = [item["hash"]["S"] for item in items]
        records: List[KeyRecord | None] = []
        for at in range(0, len(hashes), _READ_BATCH):
            batch = hashes[at : at + _READ_BATCH]
            records += await asyncio.gather(*(self.find(key_hash) for key_hash in batch))
        return [record for record in records if record is not None]

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        existing = await self._config_table.get(kind_of("key-id", key_id), _SOLE_NAME)
        if existing is None or existing["tenant"] != string_attribute(tenant):
            return False
        token = string_attribute(new_token())
        refused_by = await self._config_table.update(
            kind_of("key", existing["hash"]["S"]),
            _SOLE_NAME,
            "SET #revoked_us = :now, #revoke_token = :token",
            condition="attribute_exists(#kind) AND attribute_not_exists(#revoked_us)",
            values={":now": number_attribute(codec.to_us(now)), ":token": token},
        )
        return refused_by is None or refused_by.get("revoke_token") == token

    async def _add(self, record: KeyRecord, token: str) -> bool:
        """Write all items of a record. Returns False if its id or hash is taken."""
        reasons: set[str] = set()
        for _ in range(_CONFLICT_ATTEMPTS):
            try:
                await self._aws.call(
                    "dynamodb",
                    "transact_write_items",
                    alters=True,
                    expects=(_TRANSACTION_CANCELLED,),
                    TransactItems=[{"Put": self._put_if_new(item)} for item in _key_items(record)],
                    ClientRequestToken=token,
                )
            except CallRefused as refused:
                reasons = {reason["Code"] for reason in refused.response["CancellationReasons"]}
            else:
                return True
            if _CONDITION_FAILED in reasons:
                return False
            # Retry a conflict with a concurrent transaction, until it is decided.
            if reasons - {_NO_REASON, _TRANSACTION_CONFLICT}:
                break
        message = f"dynamodb.transact_write_items: {', '.join(sorted(reasons - {_NO_REASON}))}"
        raise BackendUnavailable(message)

    def _put_if_new(self, item: Item) -> dict[str, object]:
        return {
            "TableName": self._table_name,
            "Item": item,
            "ConditionExpression": NOT_EXISTS,
            "ExpressionAttributeNames": {"#kind": "kind"},
        }


def _key_items(record: KeyRecord) -> Iterator[Item]:
    reference = {"hash": string_attribute(record.hash), "tenant": string_attribute(record.tenant)}
    created = f"{codec.to_us(record.created_at):020}"
    stored = {"body": string_attribute(codec.to_json(replace(record, revoked_at=None)))}
    if record.revoked_at is not None:
        stored["revoked_us"] = number_attribute(codec.to_us(record.revoked_at))
    yield config_key(kind_of("key", record.hash), _SOLE_NAME) | stored
    yield config_key(kind_of("key-id", record.id), _SOLE_NAME) | reference
    yield config_key(_tenant_keys_kind(record.tenant), f"{created}#{record.id}") | reference


def _tenant_keys_kind(tenant: str) -> str:
    return kind_of("keys", tenant)


def _decode_key(item: Item) -> KeyRecord:
    record = codec.key_from_json(item["body"]["S"])
    if revoked := item.get("revoked_us"):
        return replace(record, revoked_at=codec.from_us(int(revoked["N"])))
    return record


class DynamoBudgets:
    """Shared budgets, one item each. See ``ports.configuration.Budgets``.

    Each budget is a kind of its own, so that those of a tenant are spread over the table. Its body
    is compressed; its version and the id of its last change are attributes. A commit costs one
    write, and one for each KB more: the first has room for about 8 attempts with open spending,
    each more for about 10. An item takes 1,000 units a second and 400 KB, which limits the commits
    of one budget and the attempts that use it (about 4,000 at once).

    A repeated commit is refused by its own write, which its change id reveals. If others have
    changed the budget in between, that is a conflict although it was written: the caller reads
    again and must come to the same result, as spending does, which sets sums.
    """

    def __init__(self, aws: AwsClient, names: Names) -> None:
        self._config_table = ConfigTable(aws, names)

    async def get(self, tenant: str, name: str) -> SharedBudget | None:
        item = await self._config_table.get(_budget_kind(tenant, name), _SOLE_NAME)
        return (
            codec.shared_budget_from_json(decompress_text(item["body"]["B"], _STORE_LABEL))
            if item
            else None
        )

    async def commit(self, budget: SharedBudget) -> None:
        expected = budget.version - 1
        values: Item = {
            ":version": number_attribute(budget.version),
            ":change": string_attribute(budget.change_id),
            ":body": {"B": compress_text(codec.to_json(budget))},
        }
        condition = "attribute_not_exists(#version)"
        if expected:
            condition = "#version = :expected AND #change <> :change"
            values[":expected"] = number_attribute(expected)
        existing = await self._config_table.update(
            _budget_kind(budget.tenant, budget.name),
            _SOLE_NAME,
            "SET #version = :version, #change = :change, #body = :body",
            condition=condition,
            values=values,
        )
        if existing is not None and existing.get("change") != string_attribute(budget.change_id):
            raise VersionConflict(budget.name, expected)


def _budget_kind(tenant: str, name: str) -> str:
    return kind_of("budget", tenant, name)
