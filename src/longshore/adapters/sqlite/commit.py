"""One commit of the ledger, as work for the writer.

Everything is encoded on the caller's thread before the transaction, which only compares versions
and writes. All changes of a commit are in one transaction, so a job of ten thousand tasks is one
call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.events import INSERT_EVENT, event_values
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.store_file import rows
from longshore.adapters.sqlite.task_queue import UPSERT_MESSAGE
from longshore.adapters.sqlite.write_lock import WriteLock
from longshore.core.queues import message_body
from longshore.core.tasks.changes import Enqueue
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.errors import VersionConflict
from longshore.ports.ledger import AnyChange

_INSERT_TASK = (
    "INSERT INTO tasks (id, tenant, job_id, number, queue, created_us,"
    " spec, state, due_us, enqueued_us, lease_expires_us, finished_us, version, body)"
    " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO NOTHING"
)
_UPDATE_TASK = (
    "UPDATE tasks SET state=?, due_us=?, enqueued_us=?, lease_expires_us=?,"
    " finished_us=?, version=?, body=?"
    " WHERE id=? AND version=?"
)
_INSERT_JOB = (
    "INSERT INTO jobs (id, tenant, created_us, name, state, intents, ended,"
    " end_unreported, version, body)"
    " VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO NOTHING"
)
_UPDATE_JOB = (
    "UPDATE jobs SET state=?, intents=?, ended=?, end_unreported=?, version=?,"
    " body=? WHERE id=? AND version=?"
)
_UPSERT_WAKEUP = (
    "INSERT INTO wakeups (worker_id, count) VALUES (?, 1)"
    " ON CONFLICT (worker_id) DO UPDATE SET count = count + 1"
)

Statement = tuple[str, tuple[Any, ...]]


class Commit:
    """Encoded changes; a call with the writer's connection writes them."""

    def __init__(self, changes: Sequence[AnyChange], now: datetime, write_lock: WriteLock) -> None:
        self._changes = changes
        self._write_lock = write_lock
        self.exclusive_epoch = 0  # in which it was written
        self._row_statements = [_row_statement(change) for change in changes]
        self._other_statements: list[Statement] = []
        self.topics: set[Topic] = set()  # to wake after the commit
        self.durable = False
        for change in changes:
            self.durable = self.durable or change.durable
            for event in change.events:
                self._add(INSERT_EVENT, event_values(event), Topic.EVENTS)
            for effect in change.effects:
                if isinstance(effect, Enqueue):
                    self._add(UPSERT_MESSAGE, _enqueue_values(effect, now), Topic.QUEUE)
                else:
                    self._add(_UPSERT_WAKEUP, (effect.worker_id,), Topic.WAKEUP)

    def _add(self, sql: str, values: tuple[Any, ...], topic: Topic) -> None:
        self._other_statements.append((sql, values))
        self.topics.add(topic)

    def __call__(self, connection: apsw.Connection) -> None:
        self.exclusive_epoch = self._write_lock.exclusive_epoch
        execute = connection.cursor().execute
        if self._write_rows(connection, execute):
            reach("write.rows_written")
            for sql, values in self._other_statements:
                execute(sql, values)

    def _write_rows(self, connection: apsw.Connection, execute: Callable[..., Any]) -> bool:
        """Write the rows. Returns False if all of them were committed before."""
        written = 0
        for change, (sql, values) in zip(self._changes, self._row_statements, strict=True):
            execute(sql, values)
            if connection.changes():
                written += 1
            elif not _is_own_change(connection, change):
                raise VersionConflict(change.row.id, change.expected_version)
        if 0 < written < len(self._changes):
            # Some rows had their change already: these changes never were one commit.
            raise VersionConflict(self._changes[0].row.id, self._changes[0].expected_version)
        return written > 0


def _is_own_change(connection: apsw.Connection, change: AnyChange) -> bool:
    table = "tasks" if isinstance(change.row, TaskRow) else "jobs"
    sql = f"SELECT body ->> 'change_id' FROM {table} WHERE id = ?"
    existing = rows(connection, sql, (change.row.id,))
    return bool(existing) and existing[0][0] == change.row.change_id


def _row_statement(change: AnyChange) -> Statement:
    """The statement that writes a row if its version is the expected one."""
    row = change.row
    values = _task_values(row) if isinstance(row, TaskRow) else _job_values(row)
    if change.expected_version:
        sql = _UPDATE_TASK if isinstance(row, TaskRow) else _UPDATE_JOB
        return sql, (*values, row.id, change.expected_version)
    spec, created = row.spec, codec.to_us(row.spec.created_at)
    if isinstance(row, JobRow):
        return _INSERT_JOB, (spec.id, spec.tenant, created, row.spec.name, *values)
    constant = (spec.id, spec.tenant, row.spec.job_id, row.spec.number, row.spec.queue, created)
    return _INSERT_TASK, (*constant, codec.spec_to_json(row.spec), *values)


def _task_values(row: TaskRow) -> tuple[Any, ...]:
    return (
        row.state,
        codec.optional_us(row.due_at),
        codec.optional_us(row.enqueued_at),
        codec.to_us(row.lease.expires_at) if row.lease else None,
        codec.optional_us(row.finished_at),
        row.version,
        codec.body_to_json(row),
    )


def _job_values(row: JobRow) -> tuple[Any, ...]:
    ended, unreported = len(row.ended), int(row.end_unreported)
    return (row.state, len(row.intents), ended, unreported, row.version, codec.to_json(row))


def _enqueue_values(effect: Enqueue, now: datetime) -> tuple[Any, ...]:
    body, visible = message_body(effect.task_id), codec.to_us(effect.at)
    return (effect.queue, effect.priority, effect.task_id, body, codec.to_us(now), visible)
