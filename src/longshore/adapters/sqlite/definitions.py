"""Definitions in SQLite."""

from __future__ import annotations

from dataclasses import replace

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.statements import rows
from longshore.core.definitions.definition import Definition

_NEWEST = (
    "SELECT d.body FROM definitions AS d LEFT JOIN deleted_definitions AS h USING (tenant, name)"
    " WHERE d.tenant = ? AND d.name = ? AND d.version > coalesce(h.version, 0)"
    " ORDER BY d.version DESC LIMIT 1"
)


class SqliteDefinitions:
    """See ``ports.configuration.Definitions``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, tenant: str, definition: Definition) -> Definition:
        def work(connection: apsw.Connection) -> Definition:
            if newest := rows(connection, _NEWEST, (tenant, definition.name)):
                there = codec.definition_from_json(newest[0][0])
                if replace(there, version=0) == replace(definition, version=0):
                    return there
            ((last,),) = rows(
                connection,
                "SELECT coalesce(max(version), 0) FROM definitions WHERE tenant = ? AND name = ?",
                (tenant, definition.name),
            )
            stored = replace(definition, version=last + 1)
            connection.execute(
                "INSERT INTO definitions (tenant, name, version, body) VALUES (?,?,?,?)",
                (tenant, stored.name, stored.version, codec.to_json(stored)),
            )
            return stored

        stored: Definition = await self._database.write(work)
        return stored

    async def get(self, tenant: str, name: str, *, version: int | None = None) -> Definition | None:
        if version is None:
            found = self._database.point(_NEWEST, (tenant, name))
        else:
            found = self._database.point(
                "SELECT body FROM definitions WHERE tenant = ? AND name = ? AND version = ?",
                (tenant, name, version),
            )
        return codec.definition_from_json(found[0][0]) if found else None

    async def list(self, tenant: str) -> list[Definition]:
        found = await self._database.scan(
            "SELECT d.body, max(d.version) FROM definitions AS d"
            " LEFT JOIN deleted_definitions AS h USING (tenant, name)"
            " WHERE d.tenant = ? AND d.version > coalesce(h.version, 0)"
            " GROUP BY d.name ORDER BY d.name",
            (tenant,),
        )
        return [codec.definition_from_json(body) for body, _ in found]

    async def delete(self, tenant: str, name: str) -> bool:
        def work(connection: apsw.Connection) -> bool:
            if not rows(connection, _NEWEST, (tenant, name)):
                return False
            connection.execute(
                "INSERT OR REPLACE INTO deleted_definitions (tenant, name, version)"
                " SELECT tenant, name, max(version) FROM definitions"
                " WHERE tenant = ? AND name = ?",
                (tenant, name),
            )
            return True

        was_there: bool = await self._database.write(work)
        return was_there
