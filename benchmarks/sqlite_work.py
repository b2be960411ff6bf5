"""What SQLite itself says it did: statements, rows, steps of its machine, pages.

Counts, not times: the same on a busy machine as on an idle one.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import apsw

from benchmarks.probes import Probe

_MASK = apsw.SQLITE_TRACE_ROW | apsw.SQLITE_TRACE_PROFILE


class StatementCounter(Probe):
    """Counts while it is entered, which may be many times; all connections together."""

    def __init__(self) -> None:
        self.statements = 0
        self.rows_returned = 0
        self.rows_changed = 0
        self.vm_steps = 0
        self.pages_written = 0
        self._entered = False
        self._connections: list[apsw.Connection] = []
        self._before = (0, 0)

    def opened(self, connection: apsw.Connection) -> None:
        connection.trace_v2(_MASK, self._traced, id=self)
        self._connections.append(connection)

    def _traced(self, row: dict[str, Any]) -> None:
        if not self._entered:
            return
        if row["code"] == apsw.SQLITE_TRACE_ROW:
            self.rows_returned += 1
        else:
            self.statements += 1
            self.vm_steps += row["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def __enter__(self) -> Self:
        # The one that brought the schema up to date is closed long since.
        self._connections = [item for item in self._connections if _is_open(item)]
        self._before = self._written()
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered = False
        changed, pages = self._written()
        self.rows_changed += changed - self._before[0]
        self.pages_written += pages - self._before[1]

    def _written(self) -> tuple[int, int]:
        changed = sum(item.total_changes() for item in self._connections)
        pages = [item.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0] for item in self._connections]
        return changed, sum(pages)

    def per_operation(self, operations: int) -> dict[str, float]:
        """By name, for one operation."""
        names = ("statements", "rows_returned", "rows_changed", "vm_steps", "pages_written")
        return {name: getattr(self, name) / operations for name in names}


def _is_open(connection: apsw.Connection) -> bool:
    try:
        connection.total_changes()
    except apsw.ConnectionClosedError:
        return False
    return True
