"""The SQLite backend: every port on one file."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from longshore.adapters.sqlite.blobs import SqliteBlobStore
from longshore.adapters.sqlite.configuration import (
    SqliteBudgets,
    SqliteDefinitions,
    SqliteKeys,
    SqliteQueueControls,
)
from longshore.adapters.sqlite.database import Database, SqliteOptions
from longshore.adapters.sqlite.events import SqliteEventLog
from longshore.adapters.sqlite.ledger import SqliteLedger
from longshore.adapters.sqlite.output import SqliteOutputLog
from longshore.adapters.sqlite.retention import SqliteRetention
from longshore.adapters.sqlite.task_source import SqliteTaskSource
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock


@contextlib.asynccontextmanager
async def sqlite_backend(
    folder: Path, clock: Clock, options: SqliteOptions | None = None
) -> AsyncIterator[Backend]:
    """The backend on the file in ``folder``, closed at the end."""
    database = Database(folder, clock, options or SqliteOptions())
    try:
        yield Backend(
            name="sqlite",
            clock=clock,
            ledger=SqliteLedger(database),
            source=SqliteTaskSource(database),
            queue_controls=SqliteQueueControls(database),
            events=SqliteEventLog(database),
            output=SqliteOutputLog(database),
            blobs=SqliteBlobStore(database),
            definitions=SqliteDefinitions(database),
            keys=SqliteKeys(database),
            budgets=SqliteBudgets(database),
            retention=SqliteRetention(database),
            prove_write=database.prove_write,
            blocking=True,
        )
    finally:
        await database.close()
