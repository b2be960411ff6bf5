"""Definitions in DynamoDB.

A version is an item that is written once, under a number that nobody has taken. A definition's
head says which version is the newest and up to which one it is deleted, and has a copy of the
newest, so that reading needs no second call. Both numbers only ever grow, so it does not matter who
comes last: whoever has taken a number moves the head up to it, unless it is there or further.

A writer that dies in between leaves a version that no head speaks of: nobody was told of it, and
the next writer takes the number after it, or shares it if it has the same to say.

=========  ==========================================  ==========================
call       requests                                    units (a KB each)
=========  ==========================================  ==========================
``get``    1                                           1 read
``list``   1 for each MB                               1 read for each 4 KB
``put``    1 if it is the newest already, else 3, and  1 read, 2 writes
           1 for each writer that is at it too
``delete`` 2                                           1 read, 1 write
=========  ==========================================  ==========================

If an answer is lost, a ``put`` finds its own version and shares it, a head is where it was to be,
and a ``delete`` knows by its mark that it was the one.
"""

from __future__ import annotations

import asyncio

# The port has a method of this name, and inside its class the name means the method.
from builtins import list as List  # noqa: N812
from dataclasses import replace
from weakref import WeakValueDictionary

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.config_table import (
    ConfigTable,
    Item,
    kind_of,
    new_token,
    number_attribute,
    string_attribute,
)
from longshore.adapters.aws.names import Names
from longshore.adapters.shared import codec
from longshore.core.definitions.definition import Definition
from longshore.errors import UsageError

DEFINITION_LIMIT_BYTES = 390_000
"""Of a definition as JSON. An item has at most 400 KB, with its names and numbers."""


class DynamoDefinitions:
    """See ``ports.configuration.Definitions``."""

    def __init__(self, aws: AwsClient, names: Names) -> None:
        self._config_table = ConfigTable(aws, names)
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def put(self, tenant: str, definition: Definition) -> Definition:
        # As it will be read, so that what is compared has been through JSON on both sides.
        wanted = codec.definition_from_json(_encode(replace(definition, version=0)))
        # Writers of one process would only be in each other's way.
        async with self._locks.setdefault((tenant, wanted.name), asyncio.Lock()):
            return await self._put(tenant, wanted)

    async def _put(self, tenant: str, definition: Definition) -> Definition:
        head = await self._head(tenant, definition.name)
        if (
            head is not None
            and _is_active(head)
            and _same_content(newest := _decode(head), definition)
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
            return _decode(item) if item else None
        head = await self._head(tenant, name)
        return _decode(head) if head and _is_active(head) else None

    async def list(self, tenant: str) -> List[Definition]:
        heads = await self._config_table.list_kind(_heads_kind(tenant))
        return [_decode(head) for head in heads if _is_active(head)]

    async def delete(self, tenant: str, name: str) -> bool:
        head = await self._head(tenant, name)
        if head is None or not _is_active(head):
            return False
        mark = new_token()
        # Up to the version that was read: a newer one was put after this delete.
        there = await self._config_table.update(
            _heads_kind(tenant),
            name,
            "SET #deleted = :this, #delete_token = :token",
            condition="#deleted < :this",
            values={":this": head["newest"], ":token": string_attribute(mark)},
        )
        return there is None or there.get("delete_token") == string_attribute(mark)

    async def _head(self, tenant: str, name: str) -> Item | None:
        return await self._config_table.get(_heads_kind(tenant), name)

    async def _write_version(
        self, tenant: str, definition: Definition, *, after: int
    ) -> Definition:
        """Write under the first number that is free, or find the same content on the way to it."""
        version = after
        while True:
            version += 1
            stored = replace(definition, version=version)
            kind, name = _version_key(tenant, stored.name, version)
            item = {
                "kind": string_attribute(kind),
                "name": string_attribute(name),
                "body": string_attribute(_encode(stored)),
            }
            there = await self._config_table.put(item)
            if there is None:
                return stored
            if _same_content(found := _decode(there), definition):
                return found

    async def _move_head(self, tenant: str, stored: Definition) -> None:
        # Where it is there or further already, there is nothing to do.
        await self._config_table.update(
            _heads_kind(tenant),
            stored.name,
            "SET #newest = :this, #body = :body, #deleted = if_not_exists(#deleted, :none)",
            condition="attribute_not_exists(#newest) OR #newest < :this",
            values={
                ":this": number_attribute(stored.version),
                ":body": string_attribute(_encode(stored)),
                ":none": number_attribute(0),
            },
        )


def _heads_kind(tenant: str) -> str:
    return kind_of("definitions", tenant)


def _version_key(tenant: str, name: str, version: int) -> tuple[str, str]:
    return kind_of("definition", tenant, name), f"{version:010}"


def _encode(definition: Definition) -> str:
    body = codec.to_json(definition)
    if (size := len(body.encode())) > DEFINITION_LIMIT_BYTES:
        message = (
            f"the definition {definition.name!r} has {size:,} bytes, and at most"
            f" {DEFINITION_LIMIT_BYTES:,}"
            " can be kept on AWS: put what is large into the tasks' input, or into a file"
        )
        raise UsageError(message)
    return body


def _decode(item: Item) -> Definition:
    return codec.definition_from_json(item["body"]["S"])


def _newest_version(head: Item) -> int:
    return int(head["newest"]["N"])


def _is_active(head: Item) -> bool:
    return _newest_version(head) > int(head["deleted"]["N"])


def _same_content(one: Definition, other: Definition) -> bool:
    return replace(one, version=0) == replace(other, version=0)
