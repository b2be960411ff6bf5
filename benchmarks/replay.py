"""The floor of everything that writes: the same rows, by the same statements, with nothing around.

A scenario runs once with SQLite's own trace on, and every row that was written is kept with the
values it was written with. The floor writes them again into a fresh file with the same schema and
pragmas, in one thread, with no decision, no encoding, no queue and no second thread in between.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import apsw

from benchmarks.harness import scratch
from benchmarks.probes import Probe, TimingProbe
from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.database import SqliteOptions

_OPTIONS = SqliteOptions()
_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|WITH)\b", re.IGNORECASE)
_SYNCHRONOUS = re.compile(r"\s*PRAGMA\s+synchronous\s*=\s*(\w+)", re.IGNORECASE)
_TABLES = ("jobs", "tasks", "history_segments", "other_events", "blobs")

Statement = tuple[str, tuple[Any, ...]]


@dataclass(slots=True)
class Transaction:
    """What was written in one go, and whether it had to be on disk at its end."""

    full: bool
    statements: list[Statement] = field(default_factory=list)


class _StatementRecorder:
    """The trace of one connection."""

    def __init__(self, keep: Callable[[Transaction], None]) -> None:
        self._keep = keep
        self._full = True
        self._open: Transaction | None = None
        self._savepoint = 0

    def traced(self, _cursor: object, sql: str, values: Any) -> bool:
        word = sql.lstrip()[:8].upper()
        if _WRITES.match(sql):
            self._wrote((sql, tuple(values or ())))
        elif matched := _SYNCHRONOUS.match(sql):
            self._full = matched[1].upper() == "FULL"
        elif word.startswith("BEGIN"):
            self._open = Transaction(self._full)
        elif self._open is not None:
            self._turned(word, self._open)
        return True

    def _wrote(self, statement: Statement) -> None:
        if self._open is None:
            self._keep(Transaction(self._full, [statement]))
        else:
            self._open.statements.append(statement)

    def _turned(self, word: str, current: Transaction) -> None:
        if word == "SAVEPOIN":
            self._savepoint = len(current.statements)
        elif word == "ROLLBACK":
            del current.statements[self._savepoint :]
        elif word.startswith("COMMIT"):
            self._keep(current)
            self._open, self._savepoint = None, 0


class Recording(Probe):
    """Everything that a scenario wrote: before, in and after the part that counts."""

    def __init__(self) -> None:
        self._transactions: list[Transaction] = []
        self._first = self._last = 0
        self.rows: dict[str, int] = {}

    def opened(self, connection: apsw.Connection) -> None:
        connection.exec_trace = _StatementRecorder(self._transactions.append).traced

    def __enter__(self) -> Self:
        self._first = len(self._transactions)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._last = len(self._transactions)

    def closed(self, folder: Path) -> None:
        self.rows = _rows_in(_connected(folder))

    @property
    def counted(self) -> list[Transaction]:
        """What was written in the part that counts, grouped as it was."""
        return self._transactions[self._first : self._last]

    def regroup(self, commits: float) -> list[Transaction]:
        """The same, cut evenly into about this many commits, all of them synced."""
        statements = [item for group in self.counted for item in group.statements]
        count = max(1, round(commits))
        edges = [len(statements) * i // count for i in range(count + 1)]
        return [
            Transaction(full=True, statements=statements[start:end])
            for start, end in itertools.pairwise(edges)
            if end > start
        ]

    def replay(self, groups: Iterable[Transaction]) -> TimingProbe:
        """Write ``groups`` into a fresh file and say how long that took."""
        timed = TimingProbe()
        with scratch() as folder, timed.watching():
            store_file.prepare(folder)
            connection = _connected(folder)
            _write(connection, self._transactions[: self._first])
            with timed:
                _write(connection, groups)
            _write(connection, self._transactions[self._last :])
            written = _rows_in(connection)
        assert written == self.rows, f"the floor wrote {written}, not {self.rows}"
        return timed


def _connected(folder: Path) -> apsw.Connection:
    path = folder / store_file.FILE_NAME
    return store_file.connect(path, f"wal_autocheckpoint={_OPTIONS.wal_pages}")


def _rows_in(connection: apsw.Connection) -> dict[str, int]:
    # The names are those of our own schema.
    counts = {t: connection.execute(f"SELECT count(*) FROM {t}").get for t in _TABLES}  # noqa: S608
    connection.close()
    return counts


def _write(connection: apsw.Connection, groups: Iterable[Transaction]) -> None:
    execute = connection.cursor().execute
    full = True
    for group in groups:
        if group.full is not full:
            full = group.full
            execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
        execute("BEGIN IMMEDIATE")
        for sql, values in group.statements:
            execute(sql, values)
        execute("COMMIT")
    execute("PRAGMA synchronous=FULL")
