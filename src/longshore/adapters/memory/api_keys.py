"""API keys in memory."""

from __future__ import annotations

# The port has a method of this name, and inside its class the name means the method.
from builtins import list as List  # noqa: N812
from dataclasses import replace
from datetime import datetime

from longshore.core.api_keys import KeyRecord
from longshore.errors import AlreadyExists


class MemoryKeys:
    """See ``ports.keys.Keys``."""

    def __init__(self) -> None:
        self._records: dict[str, KeyRecord] = {}  # by hash

    async def add(self, record: KeyRecord) -> None:
        ids = (known.id for known in self._records.values())
        if record.hash in self._records or record.id in ids:
            raise AlreadyExists("key", record.id)
        self._records[record.hash] = record

    async def find(self, key_hash: str) -> KeyRecord | None:
        return self._records.get(key_hash)

    async def list(self, tenant: str) -> List[KeyRecord]:
        records = [record for record in self._records.values() if record.tenant == tenant]
        return sorted(records, key=lambda record: (record.created_at, record.id))

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        for record in self._records.values():
            if record.tenant == tenant and record.id == key_id and record.revoked_at is None:
                self._records[record.hash] = replace(record, revoked_at=now)
                return True
        return False
