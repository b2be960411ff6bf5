"""Definitions, API keys, shared budgets, and paused and held queues in SQLite.

API keys are stored as hashes only. A budget is written only if its row has the version that the
change was decided from. A pause is one row while it lasts; a hold is one row per queue, which stays
after the hold has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.store_file import Row, rows
from longshore.core.api_keys import KeyRecord
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition
from longshore.core.queues import MAX_HOLD, QueuePause, capped_hold_end
from longshore.errors import AlreadyExists, BackendError, OutcomeUnknown, VersionConflict

ResultT = TypeVar("ResultT")

_MAX_CACHED_DEFINITIONS = 1_000

_NEWEST_DEFINITION = (
    "SELECT d.body FROM definitions AS d LEFT JOIN deleted_definitions AS h USING (tenant, name)"
    " WHERE d.tenant = ? AND d.name = ? AND d.version > coalesce(h.version, 0)"
    " ORDER BY d.version DESC LIMIT 1"
)
_INSERT_BUDGET = (
    "INSERT INTO budgets (version, change_id, body, tenant, name) VALUES (?,?,?,?,?)"
    " ON CONFLICT DO NOTHING"
)
_UPDATE_BUDGET = (
    "UPDATE budgets SET version = ?, change_id = ?2, body = ?"
    " WHERE tenant = ? AND name = ? AND version = ? AND change_id <> ?2"
)
_BUDGET_CHANGE_ID = "SELECT change_id FROM budgets WHERE tenant = ? AND name = ?"
_PAUSE_COLUMNS = "name, paused_by, reason, at_us, NULL AS until_us"
_HOLD_COLUMNS = "name, held_by, reason, at_us, until_us"
_PAUSES = (
    f"SELECT {_PAUSE_COLUMNS} FROM paused_queues"
    f" UNION ALL SELECT {_HOLD_COLUMNS} FROM held_queues ORDER BY name, until_us"
)
_UPSERT_HOLD = f"""
    INSERT INTO held_queues ({_HOLD_COLUMNS}) VALUES (?,?,?,?,?)
    ON CONFLICT DO UPDATE SET (held_by, reason, at_us, until_us)
        = (excluded.held_by, excluded.reason, excluded.at_us, excluded.until_us)
    WHERE until_us < excluded.until_us OR until_us > ?
"""


@dataclass(eq=False)
class SqliteDefinitions:
    """See ``ports.configuration.Definitions``.

    Every submit needs the newest version of a definition, so these are cached.
    """

    _database: Database
    _newest: dict[tuple[str, str], tuple[int, str | None]] = field(default_factory=dict)

    async def put(self, tenant: str, definition: Definition) -> Definition:
        def work(connection: apsw.Connection) -> Definition:
            if newest := rows(connection, _NEWEST_DEFINITION, (tenant, definition.name)):
                existing = codec.definition_from_json(newest[0][0])
                if existing.content == definition.content:
                    return existing
            ((last,),) = rows(
                connection,
                "SELECT coalesce(max(version), 0) FROM definitions WHERE tenant = ? AND name = ?",
                (tenant, definition.name),
            )
            stored = replace(definition, version=last + 1)
            numbers.append(self._database.notifier.definition_change_begun())
            connection.execute(
                "INSERT INTO definitions (tenant, name, version, body) VALUES (?,?,?,?)",
                (tenant, stored.name, stored.version, codec.to_json(stored)),
            )
            return stored

        numbers: list[int] = []
        return await self._write(work, numbers)

    async def get(self, tenant: str, name: str, *, version: int | None = None) -> Definition | None:
        if version is None:
            body = self._newest_body(tenant, name)
        else:
            body = self._database.point_value(
                "SELECT body FROM definitions WHERE tenant = ? AND name = ? AND version = ?",
                (tenant, name, version),
            )
        return None if body is None else codec.definition_from_json(body)

    def _newest_body(self, tenant: str, name: str) -> str | None:
        version = self._database.notifier.definitions_version
        cached = self._newest.get((tenant, name))
        if cached is not None and cached[0] == version:
            return cached[1]
        body: str | None = self._database.point_value(_NEWEST_DEFINITION, (tenant, name))
        if version is not None:
            if len(self._newest) >= _MAX_CACHED_DEFINITIONS:
                self._newest.clear()
            self._newest[tenant, name] = version, body
        return body

    async def _write(
        self, work: Callable[[apsw.Connection], ResultT], numbers: list[int]
    ) -> ResultT:
        """Carry out a change; ``numbers`` gets that of each time it was begun."""
        try:
            result = await self._database.write(work)
        except OutcomeUnknown:
            raise  # it may have changed
        except BackendError:
            self._end_change(numbers)
            raise
        self._end_change(numbers)
        return result

    def _end_change(self, numbers: list[int]) -> None:
        if numbers:
            self._database.notifier.definition_change_ended(numbers[-1])

    async def list(self, tenant: str) -> list[Definition]:
        bodies = await self._database.scan_column(
            "SELECT d.body, max(d.version) FROM definitions AS d"
            " LEFT JOIN deleted_definitions AS h USING (tenant, name)"
            " WHERE d.tenant = ? AND d.version > coalesce(h.version, 0)"
            " GROUP BY d.name ORDER BY d.name",
            (tenant,),
        )
        return [codec.definition_from_json(body) for body in bodies]

    async def delete(self, tenant: str, name: str) -> bool:
        def work(connection: apsw.Connection) -> bool:
            if not rows(connection, _NEWEST_DEFINITION, (tenant, name)):
                return False
            numbers.append(self._database.notifier.definition_change_begun())
            connection.execute(
                "INSERT OR REPLACE INTO deleted_definitions (tenant, name, version)"
                " SELECT tenant, name, max(version) FROM definitions"
                " WHERE tenant = ? AND name = ?",
                (tenant, name),
            )
            return True

        numbers: list[int] = []
        return await self._write(work, numbers)


@dataclass(eq=False)
class SqliteKeys:
    """See ``ports.configuration.Keys``."""

    _database: Database

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
        body = self._database.point_value("SELECT body FROM api_keys WHERE hash = ?", (key_hash,))
        return None if body is None else codec.key_from_json(body)

    async def list(self, tenant: str) -> list[KeyRecord]:
        bodies = await self._database.scan_column(
            "SELECT body FROM api_keys WHERE tenant = ? ORDER BY created_us, id", (tenant,)
        )
        return [codec.key_from_json(body) for body in bodies]

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        def work(connection: apsw.Connection) -> bool:
            existing = rows(
                connection,
                "SELECT body FROM api_keys WHERE id = ? AND tenant = ?",
                (key_id, tenant),
            )
            if not existing:
                return False
            record = codec.key_from_json(existing[0][0])
            if record.revoked_at is not None:
                return False
            revoked = codec.to_json(replace(record, revoked_at=now))
            connection.execute("UPDATE api_keys SET body = ? WHERE id = ?", (revoked, key_id))
            return True

        return await self._database.write(work)


@dataclass(eq=False)
class SqliteBudgets:
    """See ``ports.configuration.Budgets``."""

    _database: Database

    async def get(self, tenant: str, name: str) -> SharedBudget | None:
        body = self._database.point_value(
            "SELECT body FROM budgets WHERE tenant = ? AND name = ?", (tenant, name)
        )
        return None if body is None else codec.shared_budget_from_json(body)

    async def commit(self, budget: SharedBudget) -> None:
        expected = budget.version - 1
        key = (budget.tenant, budget.name)
        sql = _UPDATE_BUDGET if expected else _INSERT_BUDGET
        values = (budget.version, budget.change_id, codec.to_json(budget), *key)

        def work(connection: apsw.Connection) -> None:
            connection.execute(sql, (*values, expected) if expected else values)
            if connection.changes():
                return
            existing = rows(connection, _BUDGET_CHANGE_ID, key)
            if not existing or existing[0][0] != budget.change_id:
                raise VersionConflict(budget.name, expected)

        # Durable: after a power loss, money that was spent must still be counted.
        await self._database.write(work)


# A claim that waits looks again too.
_TOPICS = (Topic.PAUSES, Topic.QUEUE)


@dataclass(eq=False)
class SqliteQueueControls:
    """See ``ports.configuration.QueueControls``."""

    _database: Database

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> QueuePause:
        values = (name, by, reason, codec.to_us(now))

        def work(connection: apsw.Connection) -> Row:
            connection.execute(
                "INSERT INTO paused_queues (name, paused_by, reason, at_us) VALUES (?,?,?,?)"
                " ON CONFLICT DO NOTHING",
                values,
            )
            sql = f"SELECT {_PAUSE_COLUMNS} FROM paused_queues WHERE name = ?"
            return rows(connection, sql, (name,))[0]

        return _pause_from_row(await self._database.write(work, topics=_TOPICS))

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> QueuePause:
        moments = (now, capped_hold_end(until, now), now + MAX_HOLD)
        values = (name, by, reason, *map(codec.to_us, moments))

        def work(connection: apsw.Connection) -> Row:
            connection.execute(_UPSERT_HOLD, values)
            sql = f"SELECT {_HOLD_COLUMNS} FROM held_queues WHERE name = ?"
            return rows(connection, sql, (name,))[0]

        row = await self._database.write(work, durable=False, topics=_TOPICS)
        return _pause_from_row(row)

    async def resume(self, name: str) -> QueuePause | None:
        now = self._database.clock.now()

        def work(connection: apsw.Connection) -> list[Row]:
            sql = f"DELETE FROM paused_queues WHERE name = ? RETURNING {_PAUSE_COLUMNS}"
            paused = rows(connection, sql, (name,))
            sql = f"DELETE FROM held_queues WHERE name = ? RETURNING {_HOLD_COLUMNS}"
            return paused + rows(connection, sql, (name,))

        ended = await self._database.write(work, topics=_TOPICS)
        return next((pause for pause in map(_pause_from_row, ended) if pause.is_active(now)), None)

    async def list_pauses(self) -> list[QueuePause]:
        return self._active_pauses()

    def _active_pauses(self) -> list[QueuePause]:
        pauses = map(_pause_from_row, self._database.point(_PAUSES))
        now = self._database.clock.now()
        return [pause for pause in pauses if pause.is_active(now)]

    async def paused_queues(
        self, queues: Collection[str], *, changed_from: Collection[str] | None = None
    ) -> frozenset[str]:
        previous = None if changed_from is None else frozenset(changed_from)

        def look() -> frozenset[str] | None:
            paused = frozenset(queues) & {pause.name for pause in self._active_pauses()}
            return paused if paused != previous else None

        def next_end() -> timedelta | None:
            now = self._database.clock.now()
            holds = [pause for pause in self._active_pauses() if pause.until is not None]
            return min((hold.remaining(now) for hold in holds if hold.name in queues), default=None)

        waiters = self._database.waiters[Topic.PAUSES]
        return await waiters.wait_until(look, next_change=next_end) or frozenset()


def _pause_from_row(row: Row) -> QueuePause:
    name, by, reason, at_us, until_us = row
    until = None if until_us is None else codec.from_us(until_us)
    return QueuePause(name=name, by=by, reason=reason, at=codec.from_us(at_us), until=until)


def active_pauses(connection: apsw.Connection, now: datetime) -> dict[str, QueuePause]:
    """The queues that are paused or held now, by name."""
    pauses = map(_pause_from_row, rows(connection, _PAUSES))
    return {pause.name: pause for pause in pauses if pause.is_active(now)}
