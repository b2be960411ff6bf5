"""Tasks as this process last saw them, so that a row that has not changed is not decoded again.

Nothing here is believed: each read asks the file for the version, and only a row of that very
version is used. A version is written once, so it says everything about the rest of the row.
"""

from __future__ import annotations

from longshore.core.rows import TaskRow

_LIMIT = 4096


class KnownTasks:
    """The latest few thousand rows; the one kept longest ago makes room."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._rows: dict[str, TaskRow] = {}
        self._limit = limit

    def get(self, task_id: str) -> TaskRow | None:
        """The row as it was, if it is remembered."""
        return self._rows.get(task_id)

    def keep(self, row: TaskRow) -> None:
        """Remember a row that is known to be in the file; an ended one is seldom asked for."""
        rows = self._rows
        rows.pop(row.id, None)
        if row.state.terminal:
            return
        rows[row.id] = row
        if len(rows) > self._limit:
            del rows[next(iter(rows))]
