"""Inspects a data folder without opening the store: nothing is created, migrated or changed.

For ``longshore doctor``, which must also work if the file is damaged, too new or missing.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.errors import check_free_space, text_of
from longshore.adapters.sqlite.store_file import rows
from longshore.adapters.sqlite.write_lock import WriteLock
from longshore.core.events.codec import from_ms
from longshore.core.inspection import StoreFacts
from longshore.core.queues import QueueDepth
from longshore.errors import BackendUnavailable

# Older versions, including that of many Python builds, can damage a WAL with two writers.
MIN_SQLITE_VERSION = (3, 51, 3)
_WRITE_TIMEOUT_S = 5.0
_DEPTHS = (
    "SELECT n.text, count(*) FILTER (WHERE t.state = 1 AND t.due_us <= ?1), count(*) FILTER"
    " (WHERE t.state = 1 AND t.due_us > ?1 OR t.lease_ms IS NOT NULL), 0"
    " FROM tasks AS t JOIN names AS n ON n.no = t.queue WHERE t.state IN (1, 2)"
    " GROUP BY n.text ORDER BY n.text"
)


def store_exists(folder: Path) -> bool:
    """Whether the folder has a store."""
    return (folder / store_file.FILE_NAME).is_file()


def inspect_store(folder: Path, *, now: datetime) -> StoreFacts:
    """Facts about the store in ``folder``."""
    version = apsw.sqlite_lib_version()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    kind = store_file.file_system_of(nearest)
    facts = StoreFacts(
        inspected_at=now,
        engine=f"SQLite {version}",
        engine_path=apsw.__file__ or "built in",
        engine_trusted=tuple(int(part) for part in version.split(".")) >= MIN_SQLITE_VERSION,
        folder=folder,
        exists=store_exists(folder),
        file_system=kind,
        local=kind not in store_file.NETWORK_FILE_SYSTEMS,
        supported_schema=store_file.migrations()[-1][0],
    )
    if not facts.exists:
        return facts
    facts = replace(
        facts, size_bytes=_size(folder), stale_wakeups=_count_stale_pipes(folder / "wakeups")
    )
    try:
        return _inspect_file(facts, folder / store_file.FILE_NAME)
    except (apsw.CorruptError, apsw.NotADBError) as error:
        return replace(facts, damage=str(error))
    except apsw.Error as error:  # such as a full disk, or no permission
        return replace(facts, unreadable=str(error))


def _inspect_file(facts: StoreFacts, path: Path) -> StoreFacts:
    with contextlib.closing(store_file.connect(path, read_only=True)) as connection:
        if connection.pragma("application_id") != store_file.APPLICATION_ID:
            return replace(facts, damage="it is a SQLite file of another program")
        schema = connection.pragma("user_version")
        results = [str(row[0]) for row in rows(connection, "PRAGMA quick_check(5)")]
        damage = None if results == ["ok"] else "; ".join(results)
        if damage or schema != facts.supported_schema:
            return replace(facts, schema=schema, damage=damage)
        depths = rows(connection, _DEPTHS, (codec.to_us(facts.inspected_at),))
        queues = tuple(
            (str(name), QueueDepth(ready=ready, hidden=hidden, dead_letters=dead))
            for name, ready, hidden, dead in depths
        )
        newest = rows(
            connection,
            "SELECT max(at_ms) FROM (SELECT max(updated_ms) AS at_ms FROM tasks"
            " UNION ALL SELECT max(updated_ms) FROM jobs WHERE sequence > 0"
            " UNION ALL SELECT max(at_ms) FROM other_events)",
        )
        sql = "SELECT count(*), min(updated_ms) FROM jobs WHERE version > 0 AND state > 0"
        ((ended, oldest_ms),) = rows(connection, sql)
        return replace(
            facts,
            schema=schema,
            queues=queues,
            ended_jobs=ended,
            oldest_end=None if oldest_ms is None else from_ms(oldest_ms),
            last_event_at=None if newest[0][0] is None else from_ms(newest[0][0]),
        )


def prove_write(folder: Path) -> str | None:
    """Write to the store as every process does, in its turn. Returns why that failed."""
    answers: list[str | None] = []

    def write() -> None:
        try:
            check_free_space(folder)
            lock = WriteLock(folder)
            with contextlib.closing(lock), lock:
                path = folder / store_file.FILE_NAME
                with contextlib.closing(store_file.connect(path)) as connection:
                    connection.execute(f"BEGIN IMMEDIATE; {store_file.TEST_WRITE}; COMMIT")
            answers.append(None)
        except (apsw.Error, BackendUnavailable, OSError) as error:
            answers.append(text_of(error, folder))

    # Waiting for the lock cannot be interrupted: a process that was stopped may have it.
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(_WRITE_TIMEOUT_S)
    if not answers:
        limit = f"{_WRITE_TIMEOUT_S:g} s"
        return f"no write within {limit}: another process may have been stopped while it wrote"
    return answers[0]


def _size(folder: Path) -> int:
    files = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    return sum(path.lstat().st_size for path in files if path.exists())


def _count_stale_pipes(folder: Path) -> int:
    """The number of pipes without a reader; the next wake-up removes them."""
    stale = 0
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            stale += 1
    return stale
