"""API keys, hashed."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from longshore.core.api_keys import KeyRecord


class Keys(Protocol):
    """The records of keys; the keys themselves are kept by those who hold them."""

    async def add(self, record: KeyRecord) -> None:
        """Keep a record.

        Raises:
            AlreadyExists: its id or its hash is taken.
        """
        ...

    async def find(self, key_hash: str) -> KeyRecord | None:
        """The record with this hash, revoked or not; the caller asks ``allows``."""
        ...

    async def list(self, tenant: str) -> list[KeyRecord]:
        """A tenant's keys, oldest first, revoked ones too."""
        ...

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        """From now on the key allows nothing, for every process at once; whether it did before."""
        ...
