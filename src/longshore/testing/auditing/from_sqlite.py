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

from longshore.testing.auditing import sqlite_rows as rows
from longshore.testing.auditing.evidence import Event, Evidence, Job, Message, Output, Task

_FILE = "longshore.db"
_BUSY_MS = 5_000
_TASKS_AT_ONCE = 2_000
_JOBS_AT_ONCE = 500
# Before and behind every id. Job ids have no underscore, and "`" is the character after it.
_FIRST, _LAST = "", "\U0010ffff"
_BEHIND_TASKS = "`"

_COUNTS = (
    "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM tasks),"
    " (SELECT count(*) FROM events)"
)
_EVENTS = (
    "SELECT position, entity, tenant, sequence, type, at_ms, origin, properties FROM events"
    " WHERE entity > ? AND entity <= ?"
)
# Of queues and of the system, and whatever else might be there.
_OTHER_EVENTS = (
    "SELECT position, entity, tenant, sequence, type, at_ms, origin, properties FROM events"
    " WHERE entity <= 'JOB#' OR (entity >= 'JOB$' AND entity <= 'TASK#') OR entity >= 'TASK$'"
)


class Unreadable(Exception):
    """SQLite could not read the file; the text says why."""


class Size(NamedTuple):
    """How much there is to look at."""

    jobs: int
    tasks: int
    events: int


class Piece(NamedTuple):
    """A range of jobs: how many, and all of their evidence."""

    jobs: int
    evidence: Evidence


def evidence_of(
    folder: Path | str, *, settled: bool = False, taken_at_us: int | None = None
) -> Evidence:
    """All that is stored in a data folder, at one moment.

    Args:
        settled: Whether the run has come to rest with healthy workers.
        taken_at_us: What the clock says, where it is not the machine's.

    Raises:
        Unreadable: SQLite cannot read it.
    """
    with _opened(Path(folder)) as look:
        return look.at(_FIRST, _LAST, settled=settled, taken_at_us=taken_at_us)


def size_of(folder: Path | str) -> Size:
    """How much there is, for whoever wants to show how far an audit is."""
    with _opened(Path(folder)) as look:
        return Size(*look.rows(_COUNTS)[0])


def pieces_of(folder: Path | str, *, taken_at_us: int | None = None) -> Iterator[Piece]:
    """All that is stored, a few jobs at a time: little memory, and no read that stays open."""
    with _opened(Path(folder)) as look:
        after = _FIRST
        for upto, jobs in look.ranges():
            yield Piece(jobs, look.at(after, upto, settled=False, taken_at_us=taken_at_us))
            after = upto


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[_Look]:
    try:
        look = _Look(folder)
        try:
            yield look
        finally:
            look.close()
    except apsw.Error as error:
        raise Unreadable(str(error)) from error


class _Look:
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
            (after, _JOBS_AT_ONCE),
        ):
            for after, count in page:
                jobs, tasks = jobs + 1, tasks + count
                if tasks >= _TASKS_AT_ONCE:
                    yield after, jobs
                    jobs = tasks = 0
        yield _LAST, jobs

    def at(self, after: str, upto: str, *, settled: bool, taken_at_us: int | None) -> Evidence:
        """Everything of the jobs after one and up to another, in one transaction."""
        self._connection.execute("BEGIN")
        try:
            unlike: list[tuple[str, str]] = []
            jobs, tasks = self._jobs(after, upto, unlike), self._tasks(after, upto, unlike)
            events = self._events(after, upto)
            epoch = self.rows("SELECT value FROM meta WHERE name = 'epoch'")
            return Evidence(
                taken_at_us=time.time_ns() // 1000 if taken_at_us is None else taken_at_us,
                jobs=jobs,
                tasks=tasks,
                events=events,
                output=self._output(after, upto),
                messages=self._messages(after, upto),
                blobs=self._there([row.blobs for found in (jobs, tasks, events) for row in found]),
                settled=settled,
                unlike=tuple(unlike),
                epoch=int(epoch[0][0]) if epoch else None,
            )
        finally:
            self._connection.execute("END")

    def _jobs(self, after: str, upto: str, unlike: list[tuple[str, str]]) -> tuple[Job, ...]:
        found = self.rows(
            "SELECT id, tenant, state, intents, ended, untold, version, body FROM jobs"
            " WHERE id > ? AND id <= ? ORDER BY id",
            (after, upto),
        )
        return tuple([rows.job(row, unlike, self._blob) for row in found])

    def _tasks(self, after: str, upto: str, unlike: list[tuple[str, str]]) -> tuple[Task, ...]:
        found = self.rows(
            "SELECT id, tenant, job_id, number, queue, state, due_us, rung_us, lease_us,"
            " finished_us, version, spec, body FROM tasks WHERE job_id > ? AND job_id <= ?"
            " ORDER BY job_id, number",
            (after, upto),
        )
        return tuple([rows.task(row, unlike, self._blob) for row in found])

    def _events(self, after: str, upto: str) -> tuple[Event, ...]:
        found = self.rows(_EVENTS, (f"JOB#{after}", f"JOB#{upto}"))
        found += self.rows(_EVENTS, _of_tasks("TASK#", after, upto))
        if upto == _LAST:
            found += self.rows(_OTHER_EVENTS)
        return tuple([rows.event(row) for row in found])

    def _output(self, after: str, upto: str) -> tuple[Output, ...]:
        found = self.rows(
            "SELECT task_id, attempt, sequence, stream, last FROM output"
            " WHERE task_id > ? AND task_id <= ?",
            _of_tasks("", after, upto),
        )
        return tuple([Output(*row) for row in found])

    def _messages(self, after: str, upto: str) -> tuple[Message, ...]:
        found = []
        for (queue,) in self.rows("SELECT DISTINCT queue FROM messages"):
            found += self.rows(
                "SELECT queue, key, body, 0 FROM messages WHERE queue = ? AND key > ? AND key <= ?",
                (queue, *_of_tasks("", after, upto)),
            )
        if upto == _LAST:
            found += self.rows("SELECT queue, key, body, 0 FROM messages WHERE key IS NULL")
            found += self.rows("SELECT queue, NULL, body, 1 FROM dead_messages")
        return tuple(
            [Message(queue, key, rows.named_in(body), dead) for queue, key, body, dead in found]
        )

    def _there(self, named: list[tuple[str, ...]]) -> frozenset[str]:
        keys = {key for keys in named for key in keys if isinstance(key, str)}
        return frozenset([key for key in keys if self._is_there(key)])

    def _is_there(self, key: str) -> bool:
        if self._bytes_of(self._connection, key):
            return True
        # Replaced since this transaction began, perhaps: the newest is what counts.
        with contextlib.closing(self._connect()) as newest:
            return self._bytes_of(newest, key)

    def _bytes_of(self, connection: apsw.Connection, key: str) -> bool:
        found = connection.execute("SELECT file FROM blobs WHERE key = ?", (key,)).fetchall()
        return bool(found) and (found[0][0] is None or self._file(str(found[0][0])).exists())

    def _file(self, name: str) -> Path:
        return self._blobs / name[:2] / name

    def _blob(self, key: str) -> bytes | None:
        found = self.rows("SELECT file, data FROM blobs WHERE key = ?", (key,))
        if not found:
            return None
        name, data = found[0]
        if name is None:
            return bytes(data)
        try:
            return self._file(name).read_bytes()
        except OSError:
            return None


def _of_tasks(prefix: str, after: str, upto: str) -> tuple[str, str]:
    """The range in which the tasks of a range of jobs are named."""
    first = f"{prefix}{after}{_BEHIND_TASKS}" if after else prefix
    return first, f"{prefix}{upto}{_BEHIND_TASKS}"
