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

from longshore.adapters.aws.calls import Aws, Refused
from longshore.adapters.aws.house import (
    NOT_THERE,
    House,
    Item,
    kind_of,
    new_mark,
    number,
    text,
    until_known,
)
from longshore.adapters.aws.names import Names
from longshore.adapters.shared import codec
from longshore.core.keys import KeyRecord
from longshore.errors import AlreadyExists, BackendUnavailable

_ITSELF = "."  # the name of what is alone of its kind
_CANCELLED = "TransactionCanceledException"
_TAKEN, _BUSY, _FINE = "ConditionalCheckFailed", "TransactionConflict", "None"
_ASKED_WHILE_BUSY = 10
_READ_AT_ONCE = 16


class DynamoKeys:
    """See ``ports.keys.Keys``."""

    def __init__(self, aws: Aws, names: Names) -> None:
        self._aws = aws
        self._table = names.house
        self._house = House(aws, names)

    async def add(self, record: KeyRecord) -> None:
        token = new_mark()
        if not await until_known(lambda: self._add(record, token)):
            raise AlreadyExists("key", record.id)

    async def find(self, key_hash: str) -> KeyRecord | None:
        item = await self._house.get(kind_of("key", key_hash), _ITSELF)
        return _record(item) if item else None

    async def list(self, tenant: str) -> List[KeyRecord]:
        places = await self._house.all_of(_of_tenant(tenant))
        hashes = [item["hash"]["S"] for item in places]
        found: List[KeyRecord | None] = []
        for some in _some_at_a_time(hashes):
            found += await asyncio.gather(*(self.find(each) for each in some))
        return [record for record in found if record is not None]

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        known = await self._house.get(kind_of("key-id", key_id), _ITSELF)
        if known is None or known["tenant"] != text(tenant):
            return False
        mark = new_mark()
        there = await self._house.update(
            kind_of("key", known["hash"]["S"]),
            _ITSELF,
            "SET #revoked_us = :now, #revoker = :mark",
            condition="attribute_exists(#kind) AND attribute_not_exists(#revoked_us)",
            values={":now": number(codec.to_us(now)), ":mark": text(mark)},
        )
        return there is None or there.get("revoker") == text(mark)

    async def _add(self, record: KeyRecord, token: str) -> bool:
        """Write all that is kept of a record, or nothing if its id or hash is taken."""
        reasons: set[str] = set()
        for _ in range(_ASKED_WHILE_BUSY):
            try:
                await self._aws.call(
                    "dynamodb",
                    "transact_write_items",
                    alters=True,
                    expects=(_CANCELLED,),
                    TransactItems=[{"Put": self._new(item)} for item in _items(record)],
                    ClientRequestToken=token,
                )
            except Refused as refused:
                reasons = {each["Code"] for each in refused.answer["CancellationReasons"]}
            else:
                return True
            if _TAKEN in reasons:
                return False
            # Others are at the same items: they are soon through, and then it is clear who won.
            if reasons - {_FINE, _BUSY}:
                break
        message = f"dynamodb.transact_write_items: {', '.join(sorted(reasons - {_FINE}))}"
        raise BackendUnavailable(message)

    def _new(self, item: Item) -> dict[str, object]:
        return {
            "TableName": self._table,
            "Item": item,
            "ConditionExpression": NOT_THERE,
            "ExpressionAttributeNames": {"#kind": "kind"},
        }


def _items(record: KeyRecord) -> Iterator[Item]:
    leads_to = {"hash": text(record.hash), "tenant": text(record.tenant)}
    created = f"{codec.to_us(record.created_at):020}"
    kept = {"body": text(codec.to_json(replace(record, revoked_at=None)))}
    if record.revoked_at is not None:
        kept["revoked_us"] = number(codec.to_us(record.revoked_at))
    yield _item(kind_of("key", record.hash), _ITSELF) | kept
    yield _item(kind_of("key-id", record.id), _ITSELF) | leads_to
    yield _item(_of_tenant(record.tenant), f"{created}#{record.id}") | leads_to


def _item(kind: str, name: str) -> Item:
    return {"kind": text(kind), "name": text(name)}


def _of_tenant(tenant: str) -> str:
    return kind_of("keys", tenant)


def _record(item: Item) -> KeyRecord:
    record = codec.key_from_json(item["body"]["S"])
    if revoked := item.get("revoked_us"):
        return replace(record, revoked_at=codec.from_us(int(revoked["N"])))
    return record


def _some_at_a_time(hashes: List[str]) -> Iterator[List[str]]:
    for at in range(0, len(hashes), _READ_AT_ONCE):
        yield hashes[at : at + _READ_AT_ONCE]
