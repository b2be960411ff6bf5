"""``python -m benchmarks.counted_program FILE PROGRAM ARGUMENTS``: count a program's statements.

Runs a Python program in this process and writes to a file how many statements its SQLite
connections executed.
"""

from __future__ import annotations

import atexit
import runpy
import sys
from pathlib import Path
from typing import Any

import apsw


class StatementCount:
    """The statements of all connections that are opened from now on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._count = 0
        apsw.connection_hooks.append(self._opened)

    def _opened(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._executed, id=self)

    def _executed(self, _event: dict[str, Any]) -> None:
        self._count += 1

    def write(self) -> None:
        self._file.write_text(str(self._count))


if __name__ == "__main__":
    atexit.register(StatementCount(Path(sys.argv[1])).write)
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
