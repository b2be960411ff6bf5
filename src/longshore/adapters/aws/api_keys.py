"""API keys in DynamoDB: hashes only.

A record lies under its hash, so that the keys of an installation are spread over the table and
each is found by one consistent read: a revocation is seen by every process at once, because nobody
keeps a copy. Beside it are two items that never change: one under its id, which makes ids unique
and leads from an id to the record, and one among its tenant's, by age. All three are written in one
transaction.

==========  ======================================  ======================================
call        requests                                units
==========  ======================================  ======================================
``find``    1                                       1 read
``add``     1                                       6 writes: 3 items, in a transaction
``list``    1, and 1 for each key of the tenant     1 read for each key, and for each 4 KB
``revoke``  2                                       1 read, 1 write
==========  ======================================  ======================================

If the answer to an ``add`` is lost, it is made again with its token, by which DynamoDB knows for
ten minutes that it has carried it out; a ``revoke`` knows by its mark that it was the one.
"""

from __future__ import annotations

import asyncio

# The port has a method of this name, and inside its class the name means the method.
from builtins import list as List  # noqa: N812
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from longshore.adapters.aws.client import AwsClient, CallRefused
from longshore.adapters.aws.config_table import (
    NOT_EXISTS,
    ConfigTable,
    Item,
    kind_of,
    new_token,
    number_attribute,
    retry_unknown_outcome,
    string_attribute,
)
from longshore.adapters.aws.names import Names
from longshore.adapters.shared import codec
from longshore.core.api_keys import KeyRecord
from longshore.errors import AlreadyExists, BackendUnavailable

_SOLE_NAME = "."  # the name of what is alone of its kind
_TRANSACTION_CANCELLED = "TransactionCanceledException"
_CONDITION_FAILED, _TRANSACTION_CONFLICT, _NO_REASON = (
    "ConditionalCheckFailed",
    "TransactionConflict",
    "None",
)
_CONFLICT_ATTEMPTS = 10
_READ_BATCH = 16


class DynamoApiKeys:
    """See ``ports.keys.Keys``."""

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
        return _decode(item) if item else None

    async def list(self, tenant: str) -> List[KeyRecord]:
        places = await self._config_table.list_kind(_tenant_kind(tenant))
        hashes = [item["hash"]["S"] for item in places]
        found: List[KeyRecord | None] = []
        for some in _batches(hashes):
            found += await asyncio.gather(*(self.find(each) for each in some))
        return [record for record in found if record is not None]

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        known = await self._config_table.get(kind_of("key-id", key_id), _SOLE_NAME)
        if known is None or known["tenant"] != string_attribute(tenant):
            return False
        mark = new_token()
        there = await self._config_table.update(
            kind_of("key", known["hash"]["S"]),
            _SOLE_NAME,
            "SET #revoked_us = :now, #revoke_token = :token",
            condition="attribute_exists(#kind) AND attribute_not_exists(#revoked_us)",
            values={":now": number_attribute(codec.to_us(now)), ":token": string_attribute(mark)},
        )
        return there is None or there.get("revoke_token") == string_attribute(mark)

    async def _add(self, record: KeyRecord, token: str) -> bool:
        """Write all that is kept of a record, or nothing if its id or hash is taken."""
        reasons: set[str] = set()
        for _ in range(_CONFLICT_ATTEMPTS):
            try:
                await self._aws.call(
                    "dynamodb",
                    "transact_write_items",
                    alters=True,
                    expects=(_TRANSACTION_CANCELLED,),
                    TransactItems=[{"Put": self._put_if_new(item)} for item in _items(record)],
                    ClientRequestToken=token,
                )
            except CallRefused as refused:
                reasons = {each["Code"] for each in refused.response["CancellationReasons"]}
            else:
                return True
            if _CONDITION_FAILED in reasons:
                return False
            # Others are at the same items: they are soon through, and then it is clear who won.
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


def _items(record: KeyRecord) -> Iterator[Item]:
    leads_to = {"hash": string_attribute(record.hash), "tenant": string_attribute(record.tenant)}
    created = f"{codec.to_us(record.created_at):020}"
    kept = {"body": string_attribute(codec.to_json(replace(record, revoked_at=None)))}
    if record.revoked_at is not None:
        kept["revoked_us"] = number_attribute(codec.to_us(record.revoked_at))
    yield _item(kind_of("key", record.hash), _SOLE_NAME) | kept
    yield _item(kind_of("key-id", record.id), _SOLE_NAME) | leads_to
    yield _item(_tenant_kind(record.tenant), f"{created}#{record.id}") | leads_to


def _item(kind: str, name: str) -> Item:
    return {"kind": string_attribute(kind), "name": string_attribute(name)}


def _tenant_kind(tenant: str) -> str:
    return kind_of("keys", tenant)


def _decode(item: Item) -> KeyRecord:
    record = codec.key_from_json(item["body"]["S"])
    if revoked := item.get("revoked_us"):
        return replace(record, revoked_at=codec.from_us(int(revoked["N"])))
    return record


def _batches(hashes: List[str]) -> Iterator[List[str]]:
    for at in range(0, len(hashes), _READ_BATCH):
        yield hashes[at : at + _READ_BATCH]
