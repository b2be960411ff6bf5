"""Blobs, definitions, API keys and shared budgets in memory."""

from __future__ import annotations

# Two ports have a method ``list``, which hides the builtin inside their classes.
from builtins import list as List  # noqa: N812
from collections.abc import AsyncIterator, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime

from longshore.core.api_keys import KeyRecord
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition
from longshore.core.documents import validate_key
from longshore.errors import AlreadyExists, NotFound, VersionConflict

_CHUNK_BYTES = 1024 * 1024


class MemoryBlobStore:
    """See ``ports.blobs.BlobStore``."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:
        validate_key(key)
        # Read in full first: a stream that fails must leave the old bytes alone.
        whole = data if isinstance(data, bytes) else b"".join([chunk async for chunk in data])
        self._blobs[key] = whole
        return len(whole)

    async def get(self, key: str) -> bytes:
        if validate_key(key) not in self._blobs:
            raise NotFound("blob", key)
        return self._blobs[key]

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        data = await self.get(key)
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]

    async def size(self, key: str) -> int | None:
        data = self._blobs.get(validate_key(key))
        return None if data is None else len(data)

    async def delete(self, key: str) -> bool:
        return self._blobs.pop(validate_key(key), None) is not None

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        keys = (key for key in self._blobs if key.startswith(prefix))
        return sorted(key for key in keys if key > after)[:limit]


class MemoryDefinitions:
    """See ``ports.configuration.Definitions``.

    Options are copied in and out, so that a caller that changes its dict changes no version.
    """

    def __init__(self) -> None:
        self._versions: dict[tuple[str, str], List[Definition]] = {}
        self._deleted: dict[tuple[str, str], None] = {}

    async def put(self, tenant: str, definition: Definition) -> Definition:
        name = (tenant, definition.name)
        versions = self._versions.setdefault(name, [])
        newest = versions[-1] if versions and name not in self._deleted else None
        if newest is None or newest != replace(definition, version=newest.version):
            newest = replace(_copy(definition), version=len(versions) + 1)
            versions.append(newest)
            self._deleted.pop(name, None)
        return _copy(newest)

    async def get(self, tenant: str, name: str, *, version: int | None = None) -> Definition | None:
        versions = self._versions.get((tenant, name), [])
        if version is None:
            if not versions or (tenant, name) in self._deleted:
                return None
            return _copy(versions[-1])
        return _copy(versions[version - 1]) if 0 < version <= len(versions) else None

    async def list(self, tenant: str) -> List[Definition]:
        newest = [
            versions[-1]
            for name, versions in self._versions.items()
            if name[0] == tenant and name not in self._deleted
        ]
        return [_copy(item) for item in sorted(newest, key=lambda item: item.name)]

    async def delete(self, tenant: str, name: str) -> bool:
        exists = (tenant, name) in self._versions and (tenant, name) not in self._deleted
        if exists:
            self._deleted[tenant, name] = None
        return exists


def _copy(definition: Definition) -> Definition:
    # Only the options are mutable.
    return replace(definition, options=deepcopy(definition.options))


class MemoryKeys:
    """See ``ports.configuration.Keys``."""

    def __init__(self) -> None:
        self._records: dict[str, KeyRecord] = {}  # by hash

    async def add(self, record: KeyRecord) -> None:
        ids = (existing.id for existing in self._records.values())
        if record.hash in self._records or record.id in ids:
            raise AlreadyExists("key", record.id)
        self._records[record.hash] = record

    async def find(self, key_hash: str) -> KeyRecord | None:
        return self._records.get(key_hash)

    async def list(self, tenant: str) -> List[KeyRecord]:
        records = [record for record in self._records.values() if record.tenant == tenant]
        return sorted(records, key=lambda record: (record.created_at, record.id))

    async def tenants(self) -> Sequence[str]:
        return sorted({record.tenant for record in self._records.values()})

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        for record in self._records.values():
            if record.tenant == tenant and record.id == key_id and record.revoked_at is None:
                self._records[record.hash] = replace(record, revoked_at=now)
                return True
        return False


class MemoryBudgets:
    """See ``ports.configuration.Budgets``."""

    def __init__(self) -> None:
        self._budgets: dict[tuple[str, str], SharedBudget] = {}

    async def get(self, tenant: str, name: str) -> SharedBudget | None:
        return self._budgets.get((tenant, name))

    async def commit(self, budget: SharedBudget) -> None:
        existing = self._budgets.get((budget.tenant, budget.name))
        if existing is not None and existing.change_id == budget.change_id:
            return
        expected = budget.version - 1
        if expected != (existing.version if existing else 0):
            raise VersionConflict(budget.name, expected)
        self._budgets[budget.tenant, budget.name] = budget
