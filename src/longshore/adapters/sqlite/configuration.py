"""Definitions, API keys, shared budgets, and paused and held queues in SQLite.

API keys are stored as hashes only. A budget is written only if its row has the version that the
change was decided from. A pause is one row while it lasts; a hold is one row per queue, which stays
after the hold has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.rows import StoreReader
from longshore.adapters.sqlite.store_file import Row
from longshore.adapters.sqlite.transaction import StoreTransaction
from longshore.core.api_keys import KeyRecord
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition
from longshore.core.queues import MAX_HOLD, QueuePause, capped_hold_end
from longshore.errors import AlreadyExists, VersionConflict

_MAX_CACHED_DEFINITIONS = 1_000

_NEWEST_DEFINITION = (
    "SELECT body FROM definitions WHERE tenant = ? AND name = ? AND deleted = 0"
    " ORDER BY version DESC LIMIT 1"
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
_PAUSE_COLUMNS = "name, paused_by, reason, at_us, until_us"
_PAUSES = f"SELECT {_PAUSE_COLUMNS} FROM queue_pauses ORDER BY name, hold"
_INSERT_PAUSE = f"INSERT INTO queue_pauses ({_PAUSE_COLUMNS}, hold) VALUES (?,?,?,?,?,?)"
_PAUSE = f"SELECT {_PAUSE_COLUMNS} FROM queue_pauses WHERE name = ? AND hold = ?"
_LONGER_HOLD = """
    ON CONFLICT DO UPDATE SET (paused_by, reason, at_us, until_us)
        = (excluded.paused_by, excluded.reason, excluded.at_us, excluded.until_us)
    WHERE until_us < excluded.until_us OR until_us > ?
"""
_RESUME = f"DELETE FROM queue_pauses WHERE name = ? RETURNING {_PAUSE_COLUMNS}"


class SqliteDefinitions:
    """See ``ports.configuration.Definitions``.

    Every submit needs the newest version of a definition, so these are cached.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached_body = lru_cache(_MAX_CACHED_DEFINITIONS)(self._newest_body)

    async def put(self, tenant: str, definition: Definition) -> Definition:
        name = definition.name

        def work(transaction: StoreTransaction) -> Definition:
            existing = _decoded(transaction.value(_NEWEST_DEFINITION, (tenant, name)))
            if existing is not None and existing.content == definition.content:
                return existing
            last = transaction.value(
                "SELECT coalesce(max(version), 0) FROM definitions WHERE tenant = ? AND name = ?",
                (tenant, name),
            )
            stored = replace(definition, version=last + 1)
            self._database.notifier.definition_change_begun()
            transaction.execute(
                "INSERT INTO definitions (tenant, name, version, body) VALUES (?,?,?,?)",
                (tenant, name, stored.version, codec.to_json(stored)),
            )
            return stored

        return await self._database.write(work)

    async def get(self, tenant: str, name: str, *, version: int | None = None) -> Definition | None:
        if version is not None:
            sql = "SELECT body FROM definitions WHERE tenant = ? AND name = ? AND version = ?"
            return _decoded(self._database.point_value(sql, (tenant, name, version)))
        current = self._database.notifier.definitions_version
        if current is None:
            return _decoded(self._newest_body(tenant, name))
        return _decoded(self._cached_body(tenant, name, current))

    def _newest_body(self, tenant: str, name: str, _current: int = 0) -> str | None:
        body: str | None = self._database.point_value(_NEWEST_DEFINITION, (tenant, name))
        return body

    async def list(self, tenant: str) -> list[Definition]:
        bodies = await self._database.scan_column(
            "SELECT body, max(version) FROM definitions WHERE tenant = ? AND deleted = 0"
            " GROUP BY name ORDER BY name",
            (tenant,),
        )
        return [codec.definition_from_json(body) for body in bodies]

    async def delete(self, tenant: str, name: str) -> bool:
        def work(transaction: StoreTransaction) -> bool:
            transaction.execute(
                "UPDATE definitions SET deleted = 1 WHERE tenant = ? AND name = ? AND deleted = 0",
                (tenant, name),
            )
            if not transaction.connection.changes():
                return False
            self._database.notifier.definition_change_begun()
            return True

        return await self._database.write(work)


def _decoded(body: str | None) -> Definition | None:
    return None if body is None else codec.definition_from_json(body)


@dataclass(eq=False)
class SqliteKeys:
    """See ``ports.configuration.Keys``."""

    _database: Database

    async def add(self, record: KeyRecord) -> None:
        created = codec.to_us(record.created_at)
        values = (record.id, record.tenant, record.hash, created, codec.to_json(record))

        def work(transaction: StoreTransaction) -> None:
            transaction.execute(
                "INSERT INTO api_keys (id, tenant, hash, created_us, body) VALUES (?,?,?,?,?)"
                " ON CONFLICT DO NOTHING",
                values,
            )
            if not transaction.connection.changes():
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

    async def tenants(self) -> Sequence[str]:
        return await self._database.scan_column(
            "SELECT DISTINCT tenant FROM api_keys ORDER BY tenant", ()
        )

    async def revoke(self, tenant: str, key_id: str, *, now: datetime) -> bool:
        def work(transaction: StoreTransaction) -> bool:
            sql = "SELECT body FROM api_keys WHERE id = ? AND tenant = ?"
            body = transaction.value(sql, (key_id, tenant))
            record = None if body is None else codec.key_from_json(body)
            if record is None or record.revoked_at is not None:
                return False
            revoked = codec.to_json(replace(record, revoked_at=now))
            transaction.execute("UPDATE api_keys SET body = ? WHERE id = ?", (revoked, key_id))
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

        def work(transaction: StoreTransaction) -> None:
            transaction.execute(sql, (*values, expected) if expected else values)
            if transaction.connection.changes():
                return
            if transaction.value(_BUDGET_CHANGE_ID, key) != budget.change_id:
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
        values = (name, by, reason, codec.to_us(now), None, 0)

        def work(transaction: StoreTransaction) -> Row:
            transaction.execute(f"{_INSERT_PAUSE} ON CONFLICT DO NOTHING", values)
            return transaction.select(_PAUSE, (name, 0))[0]

        return _pause_from_row(await self._database.write(work, topics=_TOPICS))

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> QueuePause:
        at_us, until_us, latest_us = map(
            codec.to_us, (now, capped_hold_end(until, now), now + MAX_HOLD)
        )
        values = (name, by, reason, at_us, until_us, 1, latest_us)

        def work(transaction: StoreTransaction) -> Row:
            transaction.execute(_INSERT_PAUSE + _LONGER_HOLD, values)
            return transaction.select(_PAUSE, (name, 1))[0]

        row = await self._database.write(work, durable=False, topics=_TOPICS)
        return _pause_from_row(row)

    async def resume(self, name: str) -> QueuePause | None:
        now = self._database.clock.now()
        rows = await self._database.write(
            lambda transaction: transaction.select(_RESUME, (name,)), topics=_TOPICS
        )
        ended = [pause for pause in map(_pause_from_row, rows) if pause.is_active(now)]
        # Of a pause and a hold, the pause.
        return min(ended, key=lambda pause: pause.until is not None, default=None)

    async def list_pauses(self) -> list[QueuePause]:
        return self._active_pauses()

    def _active_pauses(self) -> list[QueuePause]:
        now = self._database.clock.now()
        return self._database.look(lambda reader: active_pauses(reader, now))

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


def active_pauses(reader: StoreReader, now: datetime) -> list[QueuePause]:
    """The pauses and holds of now, by the name of the queue; a pause before a hold."""
    pauses = map(_pause_from_row, reader.select(_PAUSES))
    return [pause for pause in pauses if pause.is_active(now)]
