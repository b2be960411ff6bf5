"""Retention in SQLite: jobs are removed with their rows of the feed, and the file shrinks.

Numbers of jobs and positions of the feed are never given again, because cursors and rows of the
feed may still name them: the last row of the feed stays, and if the last job is removed, an empty
row keeps its number. A row of the feed goes with the last of its jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.blob_files import file_path, removal, remove_noted
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.events import positions_of_job
from longshore.adapters.sqlite.rows import (
    JOB_STATE_NUMBERS,
    NUMBER_BITS,
    StoreReader,
    pack_job_id,
    to_ms,
    unpack_job_id,
)
from longshore.adapters.sqlite.transaction import (
    FEED_BLOCK_BITS,
    REMOVED,
    RESERVE_JOB,
    StoreTransaction,
    feed_entries,
)
from longshore.core.documents import job_blob_prefixes
from longshore.core.tasks.states import JobState

_TASKS_OF_A_STEP = 1000
_PAGES_OF_A_STEP = 1000  # that are given back to the file system
_END = 2**62
_LAST_CHARACTER = "\U0010ffff"
# Of a failed job, tasks that depend on the failed one wait.
_ENDED = (
    "j.version > 0 AND j.state > 0 AND j.updated_ms <= ?1 AND j.intents = 0 AND j.unreported = 0"
    " AND NOT EXISTS (SELECT 1 FROM tasks AS t WHERE t.no >= j.no << 20"
    " AND t.no < j.no + 1 << 20 AND (t.state BETWEEN 1 AND 4 OR t.unsettled > 0))"
)
# No job has ended before it was created. Later rows of the index are not read.
_ENDED_IDS = (
    f"SELECT j.id FROM jobs AS j INDEXED BY jobs_by_state WHERE {_ENDED} AND j.tenant = ?2"
    " AND j.state = ?3 AND j.created_us < (?1 + 1) * 1000 LIMIT ?4"
)
_ENDED_STATES = [no for state, no in JOB_STATE_NUMBERS.items() if state is not JobState.RUNNING]
_NEXT_TENANT = "SELECT min(tenant) FROM jobs INDEXED BY jobs_by_state WHERE tenant > ?"
_REMOVABLE = f"SELECT j.no, j.total FROM jobs AS j WHERE {_ENDED} AND j.id = ?2"
_DELETES = (
    "DELETE FROM output WHERE task >= ?2 AND task < ?3",
    "DELETE FROM history_segments WHERE entity = -?1 OR entity >= ?2 AND entity < ?3",
    "DELETE FROM tasks WHERE no >= ?2 AND no < ?3",
    "DELETE FROM jobs WHERE no = ?1",
)
_TOMBSTONE = "INSERT OR REPLACE INTO removed_jobs (id, until_ms, due_ms) VALUES (?, ?, 0)"
# Their order by number is nearly that by time: some are removed a little later.
_FIRST_NEWER = "SELECT no FROM other_events WHERE at_ms > ? ORDER BY no LIMIT 1"
# The last event of an entity has the sequence that the next one continues.
_OLD_EVENTS = (
    "SELECT no, position FROM other_events AS e WHERE no < ? AND at_ms <= ? AND EXISTS (SELECT 1"
    " FROM other_events AS later WHERE later.entity = e.entity AND later.tenant = e.tenant"
    " AND later.sequence > e.sequence) ORDER BY no LIMIT ?"
)
_ROWS_OF_BLOCK = "SELECT 1 FROM feed WHERE position >= ? AND position < ? LIMIT 1"
_NEXT_TYPE = (
    "SELECT tenant, type, app FROM feed_types WHERE (tenant, type, app, block) > (?,?,?,?)"
    " ORDER BY tenant, type, app, block LIMIT 1"
)
_HAS_JOB = "SELECT 1 FROM jobs WHERE no = ? AND id <> ''"
_HAS_EVENT = "SELECT 1 FROM other_events WHERE no = ?"
_DELETE_TYPE = "DELETE FROM feed_types WHERE tenant = ? AND type = ? AND app = ? AND block = ?"


@dataclass(eq=False)
class SqliteRetention:
    """See ``ports.retention.Retention``."""

    _database: Database

    async def ended_jobs(
        self, *, ended_by: datetime, limit: int, tenant: str | None = None
    ) -> list[str]:
        ended_ms = to_ms(ended_by)

        def scan(reader: StoreReader) -> list[str]:
            ids: list[str] = []
            last: int | None = 0
            while (last := reader.value(_NEXT_TENANT, (last,))) is not None:
                if tenant not in (None, reader.name(last)):
                    continue
                for state in _ENDED_STATES:
                    values = (ended_ms, last, state, limit - len(ids))
                    ids += [unpack_job_id(row[0]) for row in reader.select(_ENDED_IDS, values)]
            return ids

        return await self._database.scan_with(scan)

    async def remove_jobs(
        self, job_ids: Sequence[str], *, ended_by: datetime, remember_until: datetime
    ) -> list[str]:
        ended_ms, until_ms = to_ms(ended_by), to_ms(remember_until)

        def work(transaction: StoreTransaction) -> list[str]:
            removed: list[str] = []
            positions: set[int] = set()
            last, tasks = transaction.value("SELECT max(no) FROM jobs"), 0
            for job_id in job_ids:
                values = (ended_ms, pack_job_id(job_id))
                if tasks >= _TASKS_OF_A_STEP or not (
                    matches := transaction.select(_REMOVABLE, values)
                ):
                    continue
                no, total = matches[0]
                tasks += total
                positions.update(positions_of_job(transaction, no))
                bounds = (no, no << NUMBER_BITS, no + 1 << NUMBER_BITS)
                for sql in _DELETES:
                    transaction.execute(sql, bounds[: 1 if "?2" not in sql else 3])
                transaction.execute(_TOMBSTONE, (values[1], until_ms))
                removed.append(job_id)
                if no == last:
                    # This also replaces the empty row that kept an earlier number.
                    transaction.execute(RESERVE_JOB, (last, ""))
            reach("retention.rows_removed")
            _trim_feed(transaction, positions)
            return removed

        return await self._database.write(work)

    async def remove_remains(self, *, now: datetime, limit: int) -> int:
        now_ms = to_ms(now)
        ids = await self._database.scan_column(
            "SELECT id FROM removed_jobs WHERE due_ms <= ? ORDER BY due_ms LIMIT ?", (now_ms, limit)
        )
        ranges = [
            (prefix, prefix + _LAST_CHARACTER)
            for packed in ids
            for prefix in job_blob_prefixes(unpack_job_id(packed))
        ]

        def find_files(reader: StoreReader) -> list[str]:
            sql = "SELECT file FROM blobs WHERE key >= ? AND key < ? AND file IS NOT NULL"
            return [file for bounds in ranges for (file,) in reader.select(sql, bounds)]

        def work(transaction: StoreTransaction) -> list[str]:
            sql = "DELETE FROM blobs WHERE key >= ? AND key < ? RETURNING file"
            rows = [row for bounds in ranges for row in transaction.select(sql, bounds)]
            keys = [(packed,) for packed in ids]
            many = transaction.connection.executemany
            many(f"DELETE FROM removed_jobs WHERE id = ? AND until_ms <= {now_ms}", keys)
            many("UPDATE removed_jobs SET due_ms = max(until_ms, 1) WHERE id = ?", keys)
            _shrink(transaction)
            return [file for (file,) in rows if file is not None]

        with removal(self._database.folder) as allowed:
            if not allowed:
                return 0  # a backup is under way
            await asyncio.to_thread(remove_noted, self._database.folder)
            if ids:
                # Nothing refers to the files any more; their rows are needed to find them again.
                await self._unlink(await self._database.scan_with(find_files))
                reach("retention.files_removed")
                await self._unlink(await self._database.write(work))
        return len(ids)

    async def _unlink(self, files: Iterable[str]) -> None:
        for file in files:
            path = file_path(self._database.folder, file)
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def remove_other_events(self, *, before: datetime, limit: int) -> int:
        before_ms = to_ms(before)

        def find(reader: StoreReader) -> list[tuple[int, int]]:
            newer = reader.value(_FIRST_NEWER, (before_ms,))
            values = (_END if newer is None else newer, before_ms, limit)
            return [(no, position) for no, position in reader.select(_OLD_EVENTS, values)]

        def work(transaction: StoreTransaction) -> int:
            numbers = [(no,) for no, _ in old]
            transaction.connection.executemany("DELETE FROM other_events WHERE no = ?", numbers)
            _trim_feed(transaction, {position for _, position in old})
            _shrink(transaction)
            return len(old)

        old = await self._database.scan_with(find)
        return await self._database.write(work) if old else 0

    async def is_removed(self, job_id: str) -> bool:
        return self._database.point_value(REMOVED, (pack_job_id(job_id),)) is not None


def _trim_feed(transaction: StoreTransaction, positions: set[int]) -> None:
    """Remove rows of the feed of which nothing is left, and blocks without rows."""
    positions.discard(transaction.value("SELECT max(position) FROM feed"))
    blocks = set()
    for position in positions:
        entries = transaction.value("SELECT entries FROM feed WHERE position = ?", (position,))
        if entries is None:
            continue
        subjects = {
            (_HAS_EVENT, entry.sequence) if entry.job is None else (_HAS_JOB, entry.job)
            for entry in feed_entries(entries)
        }
        if not any(transaction.value(sql, (no,)) for sql, no in subjects):
            transaction.execute("DELETE FROM feed WHERE position = ?", (position,))
            blocks.add(position >> FEED_BLOCK_BITS)
    bounds = ((block, block << FEED_BLOCK_BITS, block + 1 << FEED_BLOCK_BITS) for block in blocks)
    empty = [no for no, *range_ in bounds if not transaction.select(_ROWS_OF_BLOCK, range_)]
    kind = (0, 0, 0)
    while empty and (following := transaction.select(_NEXT_TYPE, (*kind, _END))):
        kind = following[0]
        transaction.connection.executemany(_DELETE_TYPE, [(*kind, block) for block in empty])


def _shrink(transaction: StoreTransaction) -> None:
    """Give free pages back to the file system, beyond some that are soon used again."""
    free, pages = (transaction.value(f"PRAGMA {name}") for name in ("freelist_count", "page_count"))
    if free > pages // 10:
        transaction.select(f"PRAGMA incremental_vacuum({_PAGES_OF_A_STEP})")
