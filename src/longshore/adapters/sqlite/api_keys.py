"""API keys in SQLite: hashes only."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.statements import rows
from longshore.core.api_keys import KeyRecord
from longshore.errors import AlreadyExists


class SqliteKeys:
    """See ``ports.keys.Keys``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: KeyRecord) -> None:
        created = codec.to_us(record.created_at)
        values = (record.id, record.tenant, record.hash, created, codec.to_json(record))

        def work(connection: apsw.Connection) -> None:
            connection.execute(
                "INSERT INTO api_keys (id, tenant, hash, created_us, body) VALUES (?,?,?,?,?)"
                " ON CONFLICT DO NOTHING",
                values,
            )
            if not connection.changes():
                raise AlreadyExists("key", record.id)

        await self._database.write(work)

    async def find(self, key_hash: str) -> KeyRecord | None:
        found = self._database.point("SELECT body FROM api_keys WHERE hash = ?", (key_hash,))
        return codec.key_from_json(found[0][0]) if found else None

    async def list(self, tenant: str) -> list[KeyRecord]:
        found = await self._database.scan(
            "SELECT body FROM api_keys WHERE tenant = ? ORDER BY created_us, id", (tenant,)
        )
        return [codec.key_from_json(body) for (body,) in found]

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        def work(connection: apsw.Connection) -> bool:
            found = rows(
                connection,
                "SELECT body FROM api_keys WHERE id = ? AND tenant = ?",
                (key_id, tenant),
            )
            if not found:
                return False
            record = codec.key_from_json(found[0][0])
            if record.revoked_at is not None:
                return False
            revoked = codec.to_json(replace(record, revoked_at=now))
            connection.execute("UPDATE api_keys SET body = ? WHERE id = ?", (revoked, key_id))
            return True

        did: bool = await self._database.write(work)
        return did
