"""One commit of the ledger, as work for the writer.

Everything is encoded on the caller's thread before the transaction, which only compares versions
and writes. All changes of a commit are in one transaction, so a job of ten thousand tasks is one
call.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from longshore.core.tasks.changes import Enqueue, Wake
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
        self.durable = any(change.durable for change in changes)
        self._row_statements = [
            _task_statement(change.row, change.expected_version)
            if isinstance(change.row, TaskRow)
            else _job_statement(change.row, change.expected_version)
            for change in changes
        ]
        effects = [effect for change in changes for effect in change.effects]
        sent_us = codec.to_us(now)
        self._inserts: dict[Topic, tuple[str, list[tuple[Any, ...]]]] = {
            Topic.EVENTS: (
                INSERT_EVENT,
                [event_values(event) for change in changes for event in change.events],
            ),
            Topic.QUEUE: (
                UPSERT_MESSAGE,
                [
                    (
                        effect.queue,
                        effect.priority,
                        effect.task_id,
                        message_body(effect.task_id),
                        sent_us,
                        codec.to_us(effect.at),
                    )
                    for effect in effects
                    if isinstance(effect, Enqueue)
                ],
            ),
            Topic.WAKEUP: (
                _UPSERT_WAKEUP,
                [(effect.worker_id,) for effect in effects if isinstance(effect, Wake)],
            ),
        }
        self.topics = [topic for topic, (_, values) in self._inserts.items() if values]

    def __call__(self, connection: apsw.Connection) -> None:
        self.exclusive_epoch = self._write_lock.exclusive_epoch
        execute = connection.cursor().execute
        written = 0
        for change, (sql, values) in zip(self._changes, self._row_statements, strict=True):
            execute(sql, values)
            if connection.changes():
                written += 1
            elif not _is_own_change(connection, change):
                raise VersionConflict(change.row.id, change.expected_version)
        if not written:
            return  # the answer to an earlier commit of these changes was lost
        if written < len(self._changes):
            # Some rows had their change already: these changes never were one commit.
            raise VersionConflict(self._changes[0].row.id, self._changes[0].expected_version)
        reach("write.rows_written")
        for topic in self.topics:
            connection.executemany(*self._inserts[topic])


def _is_own_change(connection: apsw.Connection, change: AnyChange) -> bool:
    table = "tasks" if isinstance(change.row, TaskRow) else "jobs"
    sql = f"SELECT body ->> 'change_id' FROM {table} WHERE id = ?"
    existing = rows(connection, sql, (change.row.id,))
    return bool(existing) and existing[0][0] == change.row.change_id


def _task_statement(row: TaskRow, expected_version: int) -> Statement:
    """The statement that writes a row if its version is the expected one."""
    spec = row.spec
    values = (
        row.state,
        row.due_at and codec.to_us(row.due_at),
        row.enqueued_at and codec.to_us(row.enqueued_at),
        row.lease and codec.to_us(row.lease.expires_at),
        row.finished_at and codec.to_us(row.finished_at),
        row.version,
        codec.body_to_json(row),
    )
    if expected_version:
        return _UPDATE_TASK, (*values, row.id, expected_version)
    constant = (spec.id, spec.tenant, spec.job_id, spec.number, spec.queue)
    created = codec.to_us(spec.created_at)
    return _INSERT_TASK, (*constant, created, codec.to_json(spec), *values)


def _job_statement(row: JobRow, expected_version: int) -> Statement:
    """The statement that writes a row if its version is the expected one."""
    spec, ended, unreported = row.spec, len(row.ended), int(row.end_unreported)
    body = codec.to_json(row)
    values = (row.state, len(row.intents), ended, unreported, row.version, body)
    if expected_version:
        return _UPDATE_JOB, (*values, row.id, expected_version)
    return _INSERT_JOB, (spec.id, spec.tenant, codec.to_us(spec.created_at), spec.name, *values)
