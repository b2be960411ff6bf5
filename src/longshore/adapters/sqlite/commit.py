"""One commit of the ledger, as a piece of work for the writer.

Everything is encoded on the caller's side, before the writer's turn begins: the transaction only
compares versions and writes. All changes of a commit are in one transaction, so a job of ten
thousand tasks is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.bells import Topic
from longshore.adapters.sqlite.events import INSERT_EVENT, event_values
from longshore.adapters.sqlite.queue import UPSERT_MESSAGE
from longshore.adapters.sqlite.statements import rows
from longshore.adapters.sqlite.turnstile import Turnstile
from longshore.core.changes import Ring
from longshore.core.messages import body_for
from longshore.core.rows import JobRow, TaskRow
from longshore.errors import VersionConflict
from longshore.failpoints import reach
from longshore.ports.ledger import AnyChange

_INSERT_TASK = (
    "INSERT INTO tasks (id, tenant, job_id, number, queue, created_us,"
    " spec, state, due_us, rung_us, lease_us, finished_us, version, body)"
    " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO NOTHING"
)
_UPDATE_TASK = (
    "UPDATE tasks SET state=?, due_us=?, rung_us=?, lease_us=?, finished_us=?, version=?, body=?"
    " WHERE id=? AND version=?"
)
_INSERT_JOB = (
    "INSERT INTO jobs (id, tenant, created_us, name, state, intents, ended, untold, version, body)"
    " VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO NOTHING"
)
_UPDATE_JOB = (
    "UPDATE jobs SET state=?, intents=?, ended=?, untold=?, version=?,"
    " body=? WHERE id=? AND version=?"
)
_NUDGE = (
    "INSERT INTO nudges (worker_id, count) VALUES (?, 1)"
    " ON CONFLICT (worker_id) DO UPDATE SET count = count + 1"
)

Statement = tuple[str, tuple[Any, ...]]


class Commit:
    """The changes, encoded; calling it with the writer's connection carries them out."""

    def __init__(self, changes: Sequence[AnyChange], now: datetime, turnstile: Turnstile) -> None:
        self._changes = changes
        self._turnstile = turnstile
        self.spell = 0  # the quiet spell in which it was written
        self._rows = [_row_statement(change) for change in changes]
        self._beside: list[Statement] = []
        self.topics: set[Topic] = set()  # the bells to ring when this is committed
        self.promised = False
        for change in changes:
            self.promised = self.promised or change.promised
            for event in change.events:
                self._add(INSERT_EVENT, event_values(event), Topic.EVENTS)
            for effect in change.effects:
                if isinstance(effect, Ring):
                    self._add(UPSERT_MESSAGE, _ring_values(effect, now), Topic.QUEUE)
                else:
                    self._add(_NUDGE, (effect.worker_id,), Topic.NUDGE)

    def _add(self, sql: str, values: tuple[Any, ...], topic: Topic) -> None:
        self._beside.append((sql, values))
        self.topics.add(topic)

    def __call__(self, connection: apsw.Connection) -> None:
        self.spell = self._turnstile.quiet_spell
        execute = connection.cursor().execute
        if self._write_rows(connection, execute):
            reach("write.rows_written")
            for sql, values in self._beside:
                execute(sql, values)

    def _write_rows(self, connection: apsw.Connection, execute: Callable[..., Any]) -> bool:
        """Whether there was anything to write: not if all of it was committed before."""
        written = 0
        for change, (sql, values) in zip(self._changes, self._rows, strict=True):
            execute(sql, values)
            if connection.changes():
                written += 1
            elif not _is_own(connection, change):
                raise VersionConflict(change.row.id, change.expected_version)
        if 0 < written < len(self._changes):
            # A part of it was there already: these changes never were one commit.
            raise VersionConflict(self._changes[0].row.id, self._changes[0].expected_version)
        return written > 0


def _is_own(connection: apsw.Connection, change: AnyChange) -> bool:
    table = "tasks" if isinstance(change.row, TaskRow) else "jobs"
    # The table's name is one of two literals.
    sql = f"SELECT body ->> 'change_id' FROM {table} WHERE id = ?"
    found = rows(connection, sql, (change.row.id,))
    return bool(found) and found[0][0] == change.row.change_id


def _row_statement(change: AnyChange) -> Statement:
    """The statement that writes a row if it is as it was, and nothing otherwise."""
    row = change.row
    values = _task_values(row) if isinstance(row, TaskRow) else _job_values(row)
    if change.expected_version:
        sql = _UPDATE_TASK if isinstance(row, TaskRow) else _UPDATE_JOB
        return sql, (*values, row.id, change.expected_version)
    spec, created = row.spec, codec.to_us(row.spec.created_at)
    if isinstance(row, JobRow):
        return _INSERT_JOB, (spec.id, spec.tenant, created, row.spec.name, *values)
    constant = (row.id, spec.tenant, row.spec.job_id, row.spec.number, row.spec.queue, created)
    return _INSERT_TASK, (*constant, codec.spec_to_json(row.spec), *values)


def _task_values(row: TaskRow) -> tuple[Any, ...]:
    return (
        row.state,
        codec.maybe_us(row.due_at),
        codec.maybe_us(row.rung_at),
        codec.to_us(row.lease.expires_at) if row.lease else None,
        codec.maybe_us(row.finished_at),
        row.version,
        codec.body_to_json(row),
    )


def _job_values(row: JobRow) -> tuple[Any, ...]:
    ended, untold = len(row.ended), int(row.untold)
    return (row.state, len(row.intents), ended, untold, row.version, codec.to_json(row))


def _ring_values(ring: Ring, now: datetime) -> tuple[Any, ...]:
    body, visible = body_for(ring.task_id), codec.to_us(ring.at)
    return (ring.queue, ring.priority, ring.task_id, body, codec.to_us(now), visible)
