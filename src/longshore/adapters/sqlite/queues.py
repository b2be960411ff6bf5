"""Paused and held queues in SQLite: one row a pause that holds, one a queue that was ever held."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.bells import Topic
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.statements import Row, rows
from longshore.ports.queues import LONGEST_HOLD, PausedQueue, end_of_hold

_FOREVER = timedelta(days=36500)
_COLUMNS = "name, paused_by, reason, at_us"
_HELD = "name, held_by, reason, at_us, until_us"
_HOLD = f"""
    INSERT INTO held_queues ({_HELD}) VALUES (?,?,?,?,?)
    ON CONFLICT DO UPDATE SET (held_by, reason, at_us, until_us)
        = (excluded.held_by, excluded.reason, excluded.at_us, excluded.until_us)
    WHERE until_us < excluded.until_us OR until_us > ?
"""


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

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> PausedQueue:
        moments = (now, end_of_hold(until, now), now + LONGEST_HOLD)
        values = (name, by, reason, *map(codec.to_us, moments))

        def work(connection: apsw.Connection) -> Row:
            connection.execute(_HOLD, values)
            sql = f"SELECT {_HELD} FROM held_queues WHERE name = ?"
            return rows(connection, sql, (name,))[0]

        held = self._database.write(work, promised=False, topics=(Topic.PAUSES,))
        return _paused(await held)

    async def resume(self, name: str) -> PausedQueue | None:
        now = self._database.clock.now()

        def work(connection: apsw.Connection) -> list[Row]:
            sql = f"DELETE FROM paused_queues WHERE name = ? RETURNING {_COLUMNS}"
            paused = rows(connection, sql, (name,))
            sql = f"DELETE FROM held_queues WHERE name = ? RETURNING {_HELD}"
            return paused + rows(connection, sql, (name,))

        ended = await self._database.write(work, topics=(Topic.PAUSES,))
        return next((one for one in map(_paused, ended) if one.holds(now)), None)

    async def paused(self) -> list[PausedQueue]:
        found = await self._database.scan(
            f"SELECT {_COLUMNS}, NULL AS until_us FROM paused_queues"
            f" UNION ALL SELECT {_HELD} FROM held_queues ORDER BY name, until_us"
        )
        now = self._database.clock.now()
        return [one for one in map(_paused, found) if one.holds(now)]

    async def paused_of(
        self, queues: Collection[str], *, other_than: Collection[str] | None = None
    ) -> frozenset[str]:
        known = None if other_than is None else frozenset(other_than)

        def look() -> frozenset[str] | None:
            held = {hold.name for hold in self._holds(queues)}
            found = frozenset(name for name in queues if name in held or self._is_paused(name))
            return found if found != known else None

        def next_end() -> timedelta | None:
            now = self._database.clock.now()
            return min((hold.left(now) for hold in self._holds(queues)), default=None)

        wait_for = self._database.wait_for
        while (found := await wait_for(Topic.PAUSES, look, wait=_FOREVER, pause=next_end)) is None:
            continue
        return found

    def _is_paused(self, name: str) -> bool:
        return bool(self._database.point("SELECT 1 FROM paused_queues WHERE name = ?", (name,)))

    def _holds(self, queues: Collection[str]) -> list[PausedQueue]:
        """Those of these queues that are not over."""
        sql, now = f"SELECT {_HELD} FROM held_queues WHERE name = ?", self._database.clock.now()
        found = [_paused(row) for name in queues for row in self._database.point(sql, (name,))]
        return [hold for hold in found if hold.holds(now)]


def _paused(row: Row) -> PausedQueue:
    name, by, reason, at_us, *until = row
    until_us = until[0] if until else None
    return PausedQueue(
        name=name,
        by=by,
        reason=reason,
        at=codec.from_us(at_us),
        until=None if until_us is None else codec.from_us(until_us),
    )
