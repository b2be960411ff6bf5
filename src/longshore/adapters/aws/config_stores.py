"""Definitions, API keys, shared budgets and queue pauses in the config table.

If the answer to a write is lost, the write is repeated. A store recognises its own earlier write by
its content, a token or a change id.
"""

from __future__ import annotations

import asyncio

# The ports have a method ``list``, which hides the type inside their classes.
from builtins import list as List  # noqa: N812
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import count

from longshore.adapters.aws.attributes import (
    Item,
    compress_text,
    decompress_text,
)
from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.tables import (
    NOT_EXISTS,
    Query,
    Table,
    config_key,
    kind_of,
    new_token,
)
from longshore.adapters.shared import codec
from longshore.core.api_keys import KeyRecord
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition
from longshore.core.queues import MAX_HOLD, QueuePause, capped_hold_end
from longshore.errors import AlreadyExists, BackendUnavailable, UsageError, VersionConflict
from longshore.ports.clock import Clock

DEFINITION_LIMIT_BYTES = 390_000
"""Of a definition as JSON. An item has at most 400 KB, with its names and numbers."""

_CONFLICT_ATTEMPTS = 10
_POLL_INTERVAL_S = 1.0
_PAUSED_KIND = kind_of("paused")
_TENANTS_KIND = kind_of("key-tenants")
_HOLD_PREFIX = "held#"  # before the name of a queue; no queue name contains it


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
        self._config_table = Table(aws, names.config)

    async def put(self, tenant: str, definition: Definition) -> Definition:
        # Through JSON, as it will be read, so that both sides of a comparison are alike.
        definition = codec.definition_from_json(_encode_definition(replace(definition, version=0)))
        key = _head_key(tenant, definition.name)
        head = await self._config_table.get(key)
        if head and _is_active(head) and (newest := _decode(head)).content == definition.content:
            return newest
        after = head["newest"] if head else 0
        stored = await self._write_version(tenant, definition, after)
        # If the head is there or further already, there is nothing to do.
        await self._config_table.update(
            key,
            {"newest": stored.version, "body": _encode_definition(stored)},
            condition="attribute_not_exists(#newest) OR #newest < :newest",
            values={":none": 0},
            then=", #deleted = if_not_exists(#deleted, :none)",
        )
        return stored

    async def _write_version(self, tenant: str, definition: Definition, after: int) -> Definition:
        """Write under the first free number, or return the same content found on the way to it."""
        for version in count(after + 1):
            stored = replace(definition, version=version)
            item = {
                **_version_key(tenant, stored.name, version),
                "body": _encode_definition(stored),
            }
            existing = await self._config_table.put(item, condition=NOT_EXISTS)
            if existing is None:
                return stored
            if (other := _decode(existing)).content == definition.content:
                return other
        raise AssertionError  # the numbers do not end

    async def get(self, tenant: str, name: str, *, version: int | None = None) -> Definition | None:
        key = _head_key(tenant, name) if version is None else _version_key(tenant, name, version)
        item = await self._config_table.get(key)
        return _decode(item) if item and (version is not None or _is_active(item)) else None

    async def list(self, tenant: str) -> List[Definition]:
        query = Query(partition=("kind", kind_of("definitions", tenant)))
        heads = self._config_table.query(query)
        return [_decode(head) async for head in heads if _is_active(head)]

    async def delete(self, tenant: str, name: str) -> bool:
        key = _head_key(tenant, name)
        head = await self._config_table.get(key)
        if head is None or not _is_active(head):
            return False
        token = new_token()
        # Up to the version that was read: a newer one was put after this delete.
        refused_by = await self._config_table.update(
            key,
            {"deleted": head["newest"], "delete_token": token},
            condition="#deleted < :deleted",
        )
        return refused_by is None or refused_by.get("delete_token") == token


def _head_key(tenant: str, name: str) -> Item:
    return config_key(kind_of("definitions", tenant), name)


def _version_key(tenant: str, name: str, version: int) -> Item:
    return config_key(kind_of("definition", tenant, name), f"{version:010}")


def _encode_definition(definition: Definition) -> str:
    body = codec.to_json(definition)
    if (size := len(body.encode())) > DEFINITION_LIMIT_BYTES:
        raise UsageError(
            f"the definition {definition.name!r} has {size:,} bytes; AWS stores at most"
            f" {DEFINITION_LIMIT_BYTES:,}: move large parts into the tasks' input or into a file"
        )
    return body


def _decode(item: Item) -> Definition:
    return codec.definition_from_json(item["body"])


def _is_active(head: Item) -> bool:
    return bool(head["newest"] > head["deleted"])


class DynamoApiKeys:
    """API keys, hashes only. See ``ports.configuration.Keys``.

    A record is stored under its hash, so that keys are spread over the table and each is found by
    one consistent read: every process sees a revocation at once, because none caches. Two more
    items never change: one under the id, which makes ids unique and refers to the record, and one
    among the tenant's keys, by age. All three are written in one transaction, after the name of the
    tenant among those that have keys.

    Requests and units: ``find`` 1 read; ``add`` 2 requests, 7 writes; ``list`` 1 read for each key
    and for each 4 KB; ``revoke`` 1 read, 1 write.
    """

    def __init__(self, aws: AwsClient, names: Names) -> None:
        self._config_table = Table(aws, names.config)

    async def add(self, record: KeyRecord) -> None:
        # Not in the transaction: adds of one tenant would collide.
        tenant = record.tenant
        await self._config_table.put(config_key(_TENANTS_KIND, tenant) | {"tenant": tenant})
        requests = [
            self._config_table.put_request(item, condition=NOT_EXISTS)
            for item in _key_items(record)
        ]
        for _ in range(_CONFLICT_ATTEMPTS):
            reasons = await self._config_table.transact(*({"Put": request} for request in requests))
            if reasons != {"TransactionConflict"}:  # with a concurrent transaction
                break
        if "ConditionalCheckFailed" in reasons:
            raise AlreadyExists("key", record.id)
        if reasons:
            raise BackendUnavailable(f"dynamodb.transact_write_items: {', '.join(sorted(reasons))}")

    async def find(self, key_hash: str) -> KeyRecord | None:
        item = await self._config_table.get(config_key(kind_of("key", key_hash)))
        if item is None:
            return None
        record = codec.key_from_json(item["body"])
        if revoked := item.get("revoked_us"):
            return replace(record, revoked_at=codec.from_us(revoked))
        return record

    async def list(self, tenant: str) -> List[KeyRecord]:
        references = self._config_table.query(Query(partition=("kind", kind_of("keys", tenant))))
        hashes = [item["hash"] async for item in references]
        records = await asyncio.gather(*(self.find(key_hash) for key_hash in hashes))
        return [record for record in records if record is not None]

    async def tenants(self) -> Sequence[str]:
        items = self._config_table.query(Query(partition=("kind", _TENANTS_KIND)))
        return [item["tenant"] async for item in items]

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        existing = await self._config_table.get(config_key(kind_of("key-id", key_id)))
        if existing is None or existing["tenant"] != tenant:
            return False
        token = new_token()
        refused_by = await self._config_table.update(
            config_key(kind_of("key", existing["hash"])),
            {"revoked_us": codec.to_us(now), "revoke_token": token},
            condition="attribute_exists(#kind) AND attribute_not_exists(#revoked_us)",
        )
        return refused_by is None or refused_by.get("revoke_token") == token


def _key_items(record: KeyRecord) -> Iterator[Item]:
    reference = {"hash": record.hash, "tenant": record.tenant}
    stored: Item = {"body": codec.to_json(replace(record, revoked_at=None))}
    if record.revoked_at is not None:
        stored["revoked_us"] = codec.to_us(record.revoked_at)
    yield config_key(kind_of("key", record.hash)) | stored
    yield config_key(kind_of("key-id", record.id)) | reference
    by_age = f"{codec.to_us(record.created_at):020}#{record.id}"
    yield config_key(kind_of("keys", record.tenant), by_age) | reference


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
        self._config_table = Table(aws, names.config)

    async def get(self, tenant: str, name: str) -> SharedBudget | None:
        item = await self._config_table.get(config_key(kind_of("budget", tenant, name)))
        if item is None:
            return None
        return codec.shared_budget_from_json(decompress_text(item["body"], "the config table"))

    async def commit(self, budget: SharedBudget) -> None:
        expected = budget.version - 1
        existing = await self._config_table.update(
            config_key(kind_of("budget", budget.tenant, budget.name)),
            {
                "version": budget.version,
                "change": budget.change_id,
                "body": compress_text(codec.to_json(budget)),
            },
            condition="#version = :expected AND #change <> :change"
            if expected
            else "attribute_not_exists(#version)",
            values={":expected": expected} if expected else {},
        )
        if existing is not None and existing.get("change") != budget.change_id:
            raise VersionConflict(budget.name, expected)


class DynamoQueueControls:
    """Paused and held queues, one item for each. See ``ports.configuration.QueueControls``.

    A pause that has ended stays as an item, with an end token, until the queue is paused again. So
    a caller that repeats a pause or a resume after a lost answer recognises its own write, and
    neither pauses a queue that was resumed since nor resumes one that was paused since. Holds are
    stored the same way, beside the pauses, so that one query returns both. The end of a hold is
    seen by polling, up to a second late.

    A waiter of this process sees its own changes at once. DynamoDB sends no notification of changes
    by others, so a waiter reads the pauses every second; a process has one, its worker. That is
    real time and not the clock's, because nothing is decided by it.

    =====================  ==============  =============================================
    call                   requests        units
    =====================  ==============  =============================================
    ``pause``, ``hold``    1               1 write
    ``resume``             2, and 1 for    2 reads, and 1 write for each end
                           each end
    ``list_pauses``        1               1 read (for each 4 KB, some thirty queues)
    ``paused_queues``      1               1 read, and while it waits 86,400 reads a
                                           day
    =====================  ==============  =============================================

    If the answer to a resume is lost and the queue is paused again before the resume is repeated,
    the end of the first pause is not returned.
    """

    def __init__(
        self,
        aws: AwsClient,
        names: Names,
        clock: Clock,
        *,
        poll_interval_s: float = _POLL_INTERVAL_S,
    ) -> None:
        self._config_table = Table(aws, names.config)
        self._clock = clock
        self._poll_interval_s = poll_interval_s
        self._changed = asyncio.Event()  # set by the next change of this process

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> QueuePause:
        return await self._store(name, QueuePause(name=name, by=by, reason=reason, at=now))

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> QueuePause:
        until = capped_hold_end(until, now)
        return await self._store(
            _HOLD_PREFIX + name,
            QueuePause(name=name, by=by, reason=reason, at=now, until=until),
            replaces="#until_us < :until OR #until_us > :latest",
            values={
                ":until": codec.to_us(until),
                ":latest": codec.to_us(now + MAX_HOLD),
            },
        )

    async def _store(
        self, name: str, pause: QueuePause, *, replaces: str = "", values: Item | None = None
    ) -> QueuePause:
        """Store a pause. Returns the existing pause if that has not ended."""
        token = new_token()
        body = codec.to_json(pause)
        item = {**config_key(_PAUSED_KIND, name), "body": body, "token": token}
        if pause.until is not None:
            item["until_us"] = codec.to_us(pause.until)
        ended = "(attribute_exists(#end_token) AND #token <> :token)"
        existing = await self._config_table.put(
            item,
            condition=" OR ".join(filter(None, (NOT_EXISTS, ended, replaces))),
            values={":token": token, **(values or {})},
        )
        self._notify()
        return pause if existing is None else _decode_pause(existing)

    async def resume(self, name: str) -> QueuePause | None:
        # The hold first: after a crash in between, the operator sees the pause and resumes again.
        hold = await self._end(_HOLD_PREFIX + name)
        pause = await self._end(name)
        return pause or hold

    async def _end(self, name: str) -> QueuePause | None:
        """End a pause or a hold. Returns None if there is none, or another caller has ended it."""
        key = config_key(_PAUSED_KIND, name)
        item = await self._config_table.get(key)
        if item is None or not self._is_active(item):
            return None
        end_token = new_token()
        existing = await self._config_table.update(
            key,
            {"end_token": end_token},
            condition="#token = :current AND attribute_not_exists(#end_token)",
            values={":current": item["token"]},
        )
        self._notify()
        ended = existing is None or existing.get("end_token") == end_token
        return _decode_pause(item) if ended else None

    async def list_pauses(self) -> list[QueuePause]:
        items = self._config_table.query(Query(partition=("kind", _PAUSED_KIND)))
        pauses = [_decode_pause(item) async for item in items if self._is_active(item)]
        return sorted(pauses, key=lambda paused: (paused.name, paused.until is not None))

    async def paused_queues(
        self, queues: Collection[str], *, changed_from: Collection[str] | None = None
    ) -> frozenset[str]:
        before = None if changed_from is None else frozenset(changed_from)
        while True:
            changed = self._changed  # before the read: a change during it needs another read
            names = {pause.name for pause in await self.list_pauses()}
            if (paused := frozenset(queues) & names) != before:
                return paused
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval_s):
                    await changed.wait()

    def _notify(self) -> None:
        """Let the waiters of this process read again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _is_active(self, item: Item) -> bool:
        return "end_token" not in item and _decode_pause(item).is_active(self._clock.now())


def _decode_pause(item: Item) -> QueuePause:
    return codec.pause_from_json(item["body"])
