"""Paused queues in SQLite: one row a pause that holds."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.bells import Topic
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.statements import Row, rows
from longshore.ports.queues import PausedQueue

_FOREVER = timedelta(days=36500)
_COLUMNS = "name, paused_by, reason, at_us"


class SqliteQueues:
    """See ``ports.queues.Queues``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> PausedQueue:
        values = (name, by, reason, codec.to_us(now))

        def work(connection: apsw.Connection) -> Row:
            connection.execute(
                f"INSERT INTO paused_queues ({_COLUMNS}) VALUES (?,?,?,?) ON CONFLICT DO NOTHING",
                values,
            )
            sql = f"SELECT {_COLUMNS} FROM paused_queues WHERE name = ?"
            return rows(connection, sql, (name,))[0]

        return _paused(await self._database.write(work, topics=(Topic.PAUSES,)))

    async def resume(self, name: str) -> PausedQueue | None:
        def work(connection: apsw.Connection) -> list[Row]:
            sql = f"DELETE FROM paused_queues WHERE name = ? RETURNING {_COLUMNS}"
            return rows(connection, sql, (name,))

        ended = await self._database.write(work, topics=(Topic.PAUSES,))
        return _paused(ended[0]) if ended else None

    async def paused(self) -> list[PausedQueue]:
        found = await self._database.scan(f"SELECT {_COLUMNS} FROM paused_queues ORDER BY name")
        return [_paused(row) for row in found]

    async def paused_of(
        self, queues: Collection[str], *, other_than: Collection[str] | None = None
    ) -> frozenset[str]:
        known = None if other_than is None else frozenset(other_than)

        def look() -> frozenset[str] | None:
            found = frozenset(name for name in queues if self._is_paused(name))
            return found if found != known else None

        while (found := await self._database.wait_for(Topic.PAUSES, look, wait=_FOREVER)) is None:
            continue
        return found

    def _is_paused(self, name: str) -> bool:
        return bool(self._database.point("SELECT 1 FROM paused_queues WHERE name = ?", (name,)))


def _paused(row: Row) -> PausedQueue:
    name, by, reason, at_us = row
    return PausedQueue(name=name, by=by, reason=reason, at=codec.from_us(at_us))
