"""Paused and held queues in SQLite: one row a pause that holds, one a queue that was ever held."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.statements import Row, rows
from longshore.core.queues import MAX_HOLD, QueuePause, capped_hold_end

_FOREVER = timedelta(days=36500)
_PAUSE_COLUMNS = "name, paused_by, reason, at_us"
_HOLD_COLUMNS = "name, held_by, reason, at_us, until_us"
_UPSERT_HOLD = f"""
    INSERT INTO held_queues ({_HOLD_COLUMNS}) VALUES (?,?,?,?,?)
    ON CONFLICT DO UPDATE SET (held_by, reason, at_us, until_us)
        = (excluded.held_by, excluded.reason, excluded.at_us, excluded.until_us)
    WHERE until_us < excluded.until_us OR until_us > ?
"""


class SqliteQueueControls:
    """See ``ports.queues.Queues``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> QueuePause:
        values = (name, by, reason, codec.to_us(now))

        def work(connection: apsw.Connection) -> Row:
            connection.execute(
                f"INSERT INTO paused_queues ({_PAUSE_COLUMNS}) VALUES (?,?,?,?) ON"
                " CONFLICT DO NOTHING",
                values,
            )
            sql = f"SELECT {_PAUSE_COLUMNS} FROM paused_queues WHERE name = ?"
            return rows(connection, sql, (name,))[0]

        return _pause_from_row(await self._database.write(work, topics=(Topic.PAUSES,)))

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> QueuePause:
        moments = (now, capped_hold_end(until, now), now + MAX_HOLD)
        values = (name, by, reason, *map(codec.to_us, moments))

        def work(connection: apsw.Connection) -> Row:
            connection.execute(_UPSERT_HOLD, values)
            sql = f"SELECT {_HOLD_COLUMNS} FROM held_queues WHERE name = ?"
            return rows(connection, sql, (name,))[0]

        held = self._database.write(work, durable=False, topics=(Topic.PAUSES,))
        return _pause_from_row(await held)

    async def resume(self, name: str) -> QueuePause | None:
        now = self._database.clock.now()

        def work(connection: apsw.Connection) -> list[Row]:
            sql = f"DELETE FROM paused_queues WHERE name = ? RETURNING {_PAUSE_COLUMNS}"
            paused = rows(connection, sql, (name,))
            sql = f"DELETE FROM held_queues WHERE name = ? RETURNING {_HOLD_COLUMNS}"
            return paused + rows(connection, sql, (name,))

        ended = await self._database.write(work, topics=(Topic.PAUSES,))
        return next((one for one in map(_pause_from_row, ended) if one.is_active(now)), None)

    async def list_pauses(self) -> list[QueuePause]:
        found = await self._database.scan(
            f"SELECT {_PAUSE_COLUMNS}, NULL AS until_us FROM paused_queues"
            f" UNION ALL SELECT {_HOLD_COLUMNS} FROM held_queues ORDER BY name, until_us"
        )
        now = self._database.clock.now()
        return [one for one in map(_pause_from_row, found) if one.is_active(now)]

    async def paused_queues(
        self, queues: Collection[str], *, changed_from: Collection[str] | None = None
    ) -> frozenset[str]:
        known = None if changed_from is None else frozenset(changed_from)

        def look() -> frozenset[str] | None:
            held = {hold.name for hold in self._active_holds(queues)}
            found = frozenset(name for name in queues if name in held or self._is_paused(name))
            return found if found != known else None

        def next_end() -> timedelta | None:
            now = self._database.clock.now()
            return min((hold.remaining(now) for hold in self._active_holds(queues)), default=None)

        wait_for = self._database.wait_for
        while (
            found := await wait_for(Topic.PAUSES, look, wait=_FOREVER, next_change=next_end)
        ) is None:
            continue
        return found

    def _is_paused(self, name: str) -> bool:
        return bool(self._database.point("SELECT 1 FROM paused_queues WHERE name = ?", (name,)))

    def _active_holds(self, queues: Collection[str]) -> list[QueuePause]:
        """Those of these queues that are not over."""
        sql, now = (
            f"SELECT {_HOLD_COLUMNS} FROM held_queues WHERE name = ?",
            self._database.clock.now(),
        )
        found = [
            _pause_from_row(row) for name in queues for row in self._database.point(sql, (name,))
        ]
        return [hold for hold in found if hold.is_active(now)]


def _pause_from_row(row: Row) -> QueuePause:
    name, by, reason, at_us, *until = row
    until_us = until[0] if until else None
    return QueuePause(
        name=name,
        by=by,
        reason=reason,
        at=codec.from_us(at_us),
        until=None if until_us is None else codec.from_us(until_us),
    )
