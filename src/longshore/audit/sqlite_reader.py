"""The evidence in a data folder, read by SQL of its own; nothing is created, changed or locked.

The whole folder in one read transaction, or piece by piece: all laws are about one job, so a piece
is a few jobs, read in one short transaction. Pieces are ranges of job ids that leave no gap between
them; what belongs to a job that has no row is in one of them too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from longshore.audit import sqlite_rows as rows
from longshore.audit.store_snapshot import (
    EventRecord,
    JobRecord,
    MessageRecord,
    OutputRecord,
    StoreSnapshot,
    TaskRecord,
)

_FILE = "longshore.db"
_BUSY_MS = 5_000
_TASKS_PER_CHUNK = 2_000
_JOBS_PER_PAGE = 500
# Before and behind every id. Job ids have no underscore, and "`" is the character after it.
_FIRST, _LAST = "", "\U0010ffff"
_AFTER_TASKS = "`"

_COUNTS = (
    "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM tasks),"
    " (SELECT count(*) FROM events)"
)
_EVENTS = (
    "SELECT position, entity, tenant, sequence, type, at_ms, origin, properties FROM events"
    " WHERE entity > ? AND entity <= ?"
)
# Of queues, of the system, and of unknown entities.
_OTHER_EVENTS = (
    "SELECT position, entity, tenant, sequence, type, at_ms, origin, properties FROM events"
    " WHERE entity <= 'JOB#' OR (entity >= 'JOB$' AND entity <= 'TASK#') OR entity >= 'TASK$'"
)


class UnreadableStore(Exception):
    """SQLite could not read the file; the text says why."""


class StoreSize(NamedTuple):
    """How much there is to look at."""

    jobs: int
    tasks: int
    events: int


class SnapshotChunk(NamedTuple):
    """A range of jobs: how many, and all of their evidence."""

    jobs: int
    snapshot: StoreSnapshot


def read_snapshot(
    folder: Path | str, *, settled: bool = False, taken_at_us: int | None = None
) -> StoreSnapshot:
    """All that is stored in a data folder, at one moment.

    Args:
        settled: Whether the run has come to rest with healthy workers.
        taken_at_us: What the clock says, where it is not the machine's.

    Raises:
        Unreadable: SQLite cannot read it.
    """
    with _open_reader(Path(folder)) as look:
        return look.read(_FIRST, _LAST, settled=settled, taken_at_us=taken_at_us)


def count_rows(folder: Path | str) -> StoreSize:
    """The amount of data, for a progress display."""
    with _open_reader(Path(folder)) as look:
        return StoreSize(*look.rows(_COUNTS)[0])


def read_chunks(folder: Path | str, *, taken_at_us: int | None = None) -> Iterator[SnapshotChunk]:
    """All that is stored, a few jobs at a time: little memory, and no read that stays open."""
    with _open_reader(Path(folder)) as look:
        after = _FIRST
        for upto, jobs in look.ranges():
            yield SnapshotChunk(
                jobs, look.read(after, upto, settled=False, taken_at_us=taken_at_us)
            )
            after = upto


@contextlib.contextmanager
def _open_reader(folder: Path) -> Iterator[_SqliteReader]:
    try:
        look = _SqliteReader(folder)
        try:
            yield look
        finally:
            look.close()
    except apsw.Error as error:
        raise UnreadableStore(str(error)) from error


class _SqliteReader:
    """A connection, and what is read through it."""

    def __init__(self, folder: Path) -> None:
        self._blobs = folder / "blobs"
        self._path = str(folder / _FILE)
        self._connection = self._connect()

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOMUTEX
        connection = apsw.Connection(self._path, flags=flags)
        connection.set_busy_timeout(_BUSY_MS)
        connection.execute("PRAGMA trusted_schema=OFF")
        return connection

    def close(self) -> None:
        self._connection.close()

    def rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def ranges(self) -> Iterator[tuple[str, int]]:
        """The last job id of each piece, and how many jobs it has."""
        after, jobs, tasks = _FIRST, 0, 0
        while page := self.rows(
            "SELECT id, (SELECT count(*) FROM tasks WHERE job_id = jobs.id) FROM jobs"
            " WHERE id > ? ORDER BY id LIMIT ?",
            (after, _JOBS_PER_PAGE),
        ):
            for after, count in page:
                jobs, tasks = jobs + 1, tasks + count
                if tasks >= _TASKS_PER_CHUNK:
                    yield after, jobs
                    jobs = tasks = 0
        yield _LAST, jobs

    def read(
        self, after: str, upto: str, *, settled: bool, taken_at_us: int | None
    ) -> StoreSnapshot:
        """Everything of the jobs after one and up to another, in one transaction."""
        self._connection.execute("BEGIN")
        try:
            unlike: list[tuple[str, str]] = []
            jobs, tasks = self._jobs(after, upto, unlike), self._tasks(after, upto, unlike)
            events = self._events(after, upto)
            epoch = self.rows("SELECT value FROM meta WHERE name = 'epoch'")
            return StoreSnapshot(
                taken_at_us=time.time_ns() // 1000 if taken_at_us is None else taken_at_us,
                jobs=jobs,
                tasks=tasks,
                events=events,
                output=self._output(after, upto),
                messages=self._messages(after, upto),
                blobs=self._existing_blobs(
                    [row.blobs for selected in (jobs, tasks, events) for row in selected]
                ),
                settled=settled,
                mismatches=tuple(unlike),
                epoch=int(epoch[0][0]) if epoch else None,
            )
        finally:
            self._connection.execute("END")

    def _jobs(
        self, after: str, upto: str, mismatches: list[tuple[str, str]]
    ) -> tuple[JobRecord, ...]:
        selected = self.rows(
            "SELECT id, tenant, state, intents, ended, end_unreported, version, body FROM jobs"
            " WHERE id > ? AND id <= ? ORDER BY id",
            (after, upto),
        )
        return tuple([rows.job(row, mismatches, self._blob) for row in selected])

    def _tasks(
        self, after: str, upto: str, mismatches: list[tuple[str, str]]
    ) -> tuple[TaskRecord, ...]:
        selected = self.rows(
            "SELECT id, tenant, job_id, number, queue, state, due_us, enqueued_us,"
            " lease_expires_us,"
            " finished_us, version, spec, body FROM tasks WHERE job_id > ? AND job_id <= ?"
            " ORDER BY job_id, number",
            (after, upto),
        )
        return tuple([rows.task(row, mismatches, self._blob) for row in selected])

    def _events(self, after: str, upto: str) -> tuple[EventRecord, ...]:
        selected = self.rows(_EVENTS, (f"JOB#{after}", f"JOB#{upto}"))
        selected += self.rows(_EVENTS, _task_range("TASK#", after, upto))
        if upto == _LAST:
            selected += self.rows(_OTHER_EVENTS)
        return tuple([rows.event(row) for row in selected])

    def _output(self, after: str, upto: str) -> tuple[OutputRecord, ...]:
        selected = self.rows(
            "SELECT task_id, attempt, sequence, stream, last FROM output"
            " WHERE task_id > ? AND task_id <= ?",
            _task_range("", after, upto),
        )
        return tuple([OutputRecord(*row) for row in selected])

    def _messages(self, after: str, upto: str) -> tuple[MessageRecord, ...]:
        selected = []
        for (queue,) in self.rows("SELECT DISTINCT queue FROM messages"):
            selected += self.rows(
                "SELECT queue, key, body, 0 FROM messages WHERE queue = ? AND key > ? AND key <= ?",
                (queue, *_task_range("", after, upto)),
            )
        if upto == _LAST:
            selected += self.rows("SELECT queue, key, body, 0 FROM messages WHERE key IS NULL")
            selected += self.rows("SELECT queue, NULL, body, 1 FROM dead_messages")
        return tuple(
            [
                MessageRecord(queue, key, rows.task_id_in(body), dead)
                for queue, key, body, dead in selected
            ]
        )

    def _existing_blobs(self, key_groups: list[tuple[str, ...]]) -> frozenset[str]:
        keys = {key for keys in key_groups for key in keys if isinstance(key, str)}
        return frozenset([key for key in keys if self._exists(key)])

    def _exists(self, key: str) -> bool:
        if self._has_bytes(self._connection, key):
            return True
        # Replaced since this transaction began, perhaps: the newest is what counts.
        with contextlib.closing(self._connect()) as newest:
            return self._has_bytes(newest, key)

    def _has_bytes(self, connection: apsw.Connection, key: str) -> bool:
        selected = connection.execute("SELECT file FROM blobs WHERE key = ?", (key,)).fetchall()
        return bool(selected) and (
            selected[0][0] is None or self._file(str(selected[0][0])).exists()
        )

    def _file(self, name: str) -> Path:
        return self._blobs / name[:2] / name

    def _blob(self, key: str) -> bytes | None:
        selected = self.rows("SELECT file, data FROM blobs WHERE key = ?", (key,))
        if not selected:
            return None
        name, data = selected[0]
        if name is None:
            return bytes(data)
        try:
            return self._file(name).read_bytes()
        except OSError:
            return None


def _task_range(prefix: str, after: str, upto: str) -> tuple[str, str]:
    """The range in which the tasks of a range of jobs are named."""
    first = f"{prefix}{after}{_AFTER_TASKS}" if after else prefix
    return first, f"{prefix}{upto}{_AFTER_TASKS}"
