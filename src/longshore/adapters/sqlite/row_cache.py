"""Tasks as this process last saw them, so that a row that has not changed is not read again.

A row is as it was as long as no other process has had a turn at writing (see ``turnstile``).
Otherwise its version tells: a version is written once, so it says everything about the rest of the
row. Whatever is read here too late, the commit notices.

For the loop's thread alone: rows are kept as they are read, and as the writer's answers come in,
which is in the order of the commits.
"""

from __future__ import annotations

from typing import NamedTuple

from longshore.core.tasks.rows import TaskRow

_LIMIT = 4096


class CachedRow(NamedTuple):
    """A row, and the quiet spell in which it was seen."""

    row: TaskRow
    exclusive_epoch: int


class TaskRowCache:
    """The latest few thousand rows; the one kept longest ago makes room."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._rows: dict[str, CachedRow] = {}
        self._limit = limit

    def get(self, task_id: str) -> CachedRow | None:
        """The row as it was, if it is remembered."""
        return self._rows.get(task_id)

    def put(self, row: TaskRow, exclusive_epoch: int) -> None:
        """Remember a row that was in the file in this spell; an ended one is seldom asked for."""
        rows = self._rows
        known = rows.get(row.id)
        if known is not None and known.row.version > row.version:
            return  # it was read while the answer to an earlier commit was still on its way
        rows.pop(row.id, None)
        if row.state.terminal:
            return
        rows[row.id] = CachedRow(row, exclusive_epoch)
        if len(rows) > self._limit:
            del rows[next(iter(rows))]

    def evict(self, task_id: str) -> None:
        """The next read is to be a real one."""
        self._rows.pop(task_id, None)
