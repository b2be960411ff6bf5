"""The evidence in a data folder, read by SQL of its own; nothing is created, changed or locked.

The whole folder in one read transaction, or piece by piece: all laws are about one job, so a piece
is a few jobs, read in one short transaction. Pieces are ranges of the numbers of jobs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from longshore.audit import sqlite_rows as rows
from longshore.audit import vocabulary as v
from longshore.audit.sqlite_rows import FeedEntry, PackedEvent, Row
from longshore.audit.store_snapshot import (
    EventRecord,
    JobRecord,
    OutputRecord,
    StoreSnapshot,
    TaskRecord,
)

_FILE = "longshore.db"
_BUSY_MS = 5_000
_TASKS_PER_CHUNK = 2_000
_JOBS_PER_PAGE = 500
_LAST = 2**42
_STREAMS = ("stdout", "stderr", "log", "lost")

_COUNTS = (
    "SELECT (SELECT count(*) FROM jobs WHERE version > 0), (SELECT count(*) FROM tasks),"
    " (SELECT coalesce(sum(sequence), 0) FROM tasks)"
    " + (SELECT coalesce(sum(sequence), 0) FROM jobs)"
)
_KIND_AND_JOB = ("kinds.body AS kind", "jobs.id AS job")
_REMOVED_AND_THERE = (
    "SELECT id FROM jobs WHERE no > ? AND no <= ? AND id IN (SELECT id FROM removed_jobs)"
)
_OUTPUT_WITHOUT_ROW = (
    "SELECT DISTINCT task FROM output WHERE task >= ? AND task < ?"
    " AND task NOT IN (SELECT no FROM tasks)"
)
_HISTORY_WITHOUT_ROW = (
    "SELECT DISTINCT entity FROM history_segments WHERE entity >= ? AND entity < ?"
    " AND entity NOT IN (SELECT no FROM tasks)"
)
_OF_JOBS = (
    "LEFT JOIN kinds ON kinds.no = tasks.kind LEFT JOIN jobs ON jobs.no = tasks.no >> 20"
    " WHERE tasks.no >= ? AND tasks.no < ? ORDER BY tasks.no"
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
        return look.read(0, _LAST, settled=settled, taken_at_us=taken_at_us)


def count_rows(folder: Path | str) -> StoreSize:
    """The amount of data, for a progress display."""
    with _open_reader(Path(folder)) as look:
        return StoreSize(*look.rows(_COUNTS)[0])


def read_chunks(folder: Path | str, *, taken_at_us: int | None = None) -> Iterator[SnapshotChunk]:
    """All that is stored, a few jobs at a time: little memory, and no read that stays open."""
    with _open_reader(Path(folder)) as look:
        after = 0
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


def _ends_not_found(
    jobs: tuple[JobRecord, ...], tasks: tuple[TaskRecord, ...], unsettled: set[str]
) -> Iterator[tuple[str, str]]:
    """Tasks that have ended, whose jobs have not recorded the end, and which no sweep finds."""
    ended = {
        job.id: job.completed | job.failed | job.cancelled
        for job in jobs
        if all(type(number) is int for number in (job.completed, job.failed, job.cancelled))
    }
    for task in tasks:
        recorded = ended.get(task.job_id, -1) >> task.number & 1
        if task.state in v.TERMINAL and not recorded and task.id not in unsettled:
            yield task.id, "its job has not recorded its end, and it is not marked as unsettled"


class _SqliteReader:
    """A connection, and what is read through it."""

    def __init__(self, folder: Path) -> None:
        self._blobs = folder / "blobs"
        self._path = str(folder / _FILE)
        self._connection = self._connect()
        self._names: dict[int, str] = {}
        self._feed: dict[int, dict[FeedEntry, int]] = {}  # numbers of events by position
        self._oldest = 0  # position of the feed: rows before it were removed

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

    def table_rows(
        self, table: str, more: str, values: tuple[Any, ...] = (), extra: tuple[str, ...] = ()
    ) -> list[dict[str, Any]]:
        """Rows of a table by column; ``extra`` are expressions with their names as last word."""
        names = [row[1] for row in self.rows(f"PRAGMA table_info({table})")]
        columns = ", ".join([*(f"{table}.{name}" for name in names), *extra])
        names += [expression.split()[-1] for expression in extra]
        sql = f"SELECT {columns} FROM {table} {more}"  # noqa: S608 - names of this module
        selected = self.rows(sql, values)
        return [dict(zip(names, row, strict=True)) for row in selected]

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The number of the last job of each piece, and how many jobs it has."""
        after, jobs, tasks = 0, 0, 0
        while page := self.rows(
            "SELECT no, (SELECT count(*) FROM tasks WHERE no >= jobs.no << 20"
            " AND no < jobs.no + 1 << 20) FROM jobs WHERE no > ? ORDER BY no LIMIT ?",
            (after, _JOBS_PER_PAGE),
        ):
            for after, count in page:
                jobs, tasks = jobs + 1, tasks + count
                if tasks >= _TASKS_PER_CHUNK:
                    yield after, jobs
                    jobs = tasks = 0
        yield _LAST, jobs

    def read(
        self, after: int, upto: int, *, settled: bool, taken_at_us: int | None
    ) -> StoreSnapshot:
        """Everything of the jobs after one and up to another, in one transaction."""
        self._connection.execute("BEGIN")
        try:
            self._names = dict(self.rows("SELECT no, text FROM names"))
            self._feed.clear()
            ((oldest,),) = self.rows("SELECT min(position) FROM feed")
            self._oldest = oldest or 0
            mismatches: list[tuple[str, str]] = []
            events: list[EventRecord] = []
            unsettled: set[str] = set()
            tasks = self._tasks(after, upto, mismatches, events, unsettled)
            jobs = self._jobs(after, upto, mismatches, events)
            mismatches += _ends_not_found(jobs, tasks, unsettled)
            mismatches += self._parts_without_row(after, upto)
            events.sort(key=lambda event: event.position)
            if upto == _LAST:
                others = self.table_rows("other_events", "ORDER BY position, no")
                events += [rows.event(row, self._name) for row in others]
            removed = (_REMOVED_AND_THERE, (after, upto))
            epoch = self.rows("SELECT value FROM meta WHERE name = 'epoch'")
            return StoreSnapshot(
                taken_at_us=time.time_ns() // 1000 if taken_at_us is None else taken_at_us,
                jobs=jobs,
                tasks=tasks,
                events=tuple(events),
                output=self._output(after, upto),
                blobs=self._existing_blobs(
                    [row.blobs for selected in (jobs, tasks, events) for row in selected]
                ),
                settled=settled,
                mismatches=tuple(mismatches),
                epoch=int(epoch[0][0]) if epoch else None,
                removed=frozenset(
                    rows.id_text(packed, "job-") for (packed,) in self.rows(*removed)
                ),
            )
        finally:
            self._connection.execute("END")

    def _name(self, number: Any) -> Any:
        return self._names.get(number, number)

    def _jobs(
        self,
        after: int,
        upto: int,
        mismatches: list[tuple[str, str]],
        events: list[EventRecord],
    ) -> tuple[JobRecord, ...]:
        selected = self.table_rows(
            "jobs", "WHERE no > ? AND no <= ? AND version > 0 ORDER BY no", (after, upto)
        )
        records = []
        for row in selected:
            first = row["no"] << rows.NUMBER_BITS
            only = self.rows(
                "SELECT t.key, k.body FROM tasks AS t JOIN kinds AS k ON k.no = t.kind"
                " WHERE t.no = ?",
                (first,),
            )
            record = rows.job(
                {**row, "only_task": only[0] if only else None}, self._name, self._blob
            )
            records.append(record)
            sets = (record.total, record.completed, record.failed, record.cancelled, record.blocked)
            if all(type(number) is int for number in sets):
                state, unreported = v.job_state(record), int(v.end_event_missing(record))
                mismatches += [
                    (record.id, text)
                    for text in rows.job_mismatches(row, record, state, unreported)
                ]

            def keys(count: int, first: int = first) -> list[str]:
                sql = "SELECT key FROM tasks WHERE no >= ? AND no < ? ORDER BY no"
                return [key for (key,) in self.rows(sql, (first, first + count))]

            for sequence, packed, position in self._history(-row["no"], row, record.id, mismatches):
                events.append(
                    rows.job_event(packed, row, self._name, sequence, position, keys=keys)
                )
        return tuple(records)

    def _tasks(
        self,
        after: int,
        upto: int,
        mismatches: list[tuple[str, str]],
        events: list[EventRecord],
        unsettled: set[str],
    ) -> tuple[TaskRecord, ...]:
        bounds = (after + 1 << rows.NUMBER_BITS, upto + 1 << rows.NUMBER_BITS)
        records = []
        for row in self.table_rows("tasks", _OF_JOBS, bounds, _KIND_AND_JOB):
            record = rows.task(row, self._name, self._blob)
            records.append(record)
            mismatches += [
                (record.id, text) for text in rows.task_mismatches(row, record, self._name)
            ]
            if row["unsettled"]:
                unsettled.add(record.id)
            for sequence, packed, position in self._history(row["no"], row, record.id, mismatches):
                events.append(rows.task_event(packed, row, self._name, sequence, position))
        return tuple(records)

    def _parts_without_row(self, after: int, upto: int) -> Iterator[tuple[str, str]]:
        bounds = (after + 1 << rows.NUMBER_BITS, upto + 1 << rows.NUMBER_BITS)
        for name, sql in (("output", _OUTPUT_WITHOUT_ROW), ("history", _HISTORY_WITHOUT_ROW)):
            for (number,) in self.rows(sql, bounds):
                yield f"task number {number}", f"its {name} is stored, and its row is not"

    def _history(
        self, entity: int, row: Row, subject: str, mismatches: list[tuple[str, str]]
    ) -> Iterator[tuple[int, PackedEvent, int]]:
        """The sequence, the content and the position among all events of each event."""
        sql = "SELECT body FROM history_segments WHERE entity = ? ORDER BY first_sequence"
        parts = [body for (body,) in self.rows(sql, (entity,))]
        read = [rows.records_in(part) for part in (*parts, row["history"])]
        records = [record for part, _ in read for record in part]
        first = row["sequence"] - len(records) + 1
        if any(damaged for _, damaged in read):
            mismatches.append((subject, "its history cannot be decoded to the end"))
            first = 1
        for sequence, packed in enumerate(records, first):
            type_, _, position, _, _ = packed
            number = self._numbers_at(position).get((type_, row["tenant"], entity, sequence))
            if number is None and position >= self._oldest:
                text = f"event {sequence} is not in the feed at the position that it names"
                mismatches.append((subject, text))
            yield (
                sequence,
                packed,
                (position << rows.NUMBER_BITS) + (sequence if number is None else number),
            )

    def _numbers_at(self, position: int) -> dict[FeedEntry, int]:
        """The number of each event at a position of the feed."""
        if position not in self._feed:
            data = self.rows("SELECT entries FROM feed WHERE position = ?", (position,))
            self._feed[position] = rows.feed_numbers(data[0][0]) if data else {}
        return self._feed[position]

    def _output(self, after: int, upto: int) -> tuple[OutputRecord, ...]:
        selected = self.rows(
            "SELECT j.id, t.key, o.attempt, o.sequence, o.stream, o.last FROM output AS o"
            " JOIN tasks AS t ON t.no = o.task JOIN jobs AS j ON j.no = t.no >> 20"
            " WHERE o.task >= ? AND o.task < ?",
            (after + 1 << rows.NUMBER_BITS, upto + 1 << rows.NUMBER_BITS),
        )
        chunks = [
            OutputRecord(
                f"{rows.id_text(job, 'job-')}_{key}", attempt, sequence, _STREAMS[stream], last
            )
            for job, key, attempt, sequence, stream, last in selected
        ]
        if upto == _LAST:
            others = self.rows(
                "SELECT n.text, o.attempt, o.sequence, o.stream, o.last FROM output AS o"
                " JOIN names AS n ON n.no = -o.task WHERE o.task < 0"
            )
            chunks += [
                OutputRecord(task_id, attempt, sequence, _STREAMS[stream], last)
                for task_id, attempt, sequence, stream, last in others
            ]
        return tuple(chunks)

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
