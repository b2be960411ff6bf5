"""The ledger in SQLite: a row, its events and its messages in one transaction.

Every list is read along an index, so that the number of rows does not matter. A sweep that compares
a job with its tasks finds candidate tasks by an index and compares their bit sets in Python. Its
scans are short, because the reading thread has other callers to serve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Unpack

from longshore.adapters.shared import codec
from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.rows import (
    JOB_STATE_NUMBERS,
    JOB_STATES,
    NUMBER_BITS,
    NUMBER_MASK,
    SELECT_JOB,
    SELECT_TASK,
    TASK_STATE_NUMBERS,
    StoreReader,
    ended_numbers,
    from_ms,
    to_ms,
    unpack_job_id,
    unpack_numbers,
)
from longshore.adapters.sqlite.store_file import Row
from longshore.adapters.sqlite.transaction import StoreTransaction, create_jobs
from longshore.core.ids import ID_BYTES, JOB_PREFIX, parse_id, split_task_id, task_id_of
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.core.tasks.changes import Effect, Enqueue, Wake
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import UsageError, VersionConflict
from longshore.ports.ledger import AnyChange, FailedTask, JobConditions, JobCreation

_FAR_FUTURE = timedelta(days=36500)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_LAST_CHARACTER = "\U0010ffff"
_LAST_NUMBER = 2**63 - 1
_PENDING, _PARKED, _COMPLETED, _FAILED = (
    TASK_STATE_NUMBERS[state]
    for state in (TaskState.PENDING, TaskState.PARKED, TaskState.COMPLETED, TaskState.FAILED)
)
# The index is named because SQLite may otherwise choose one with tasks of every state.
_IDS_OF_PARKED = (
    "SELECT t.key, j.id FROM tasks AS t INDEXED BY tasks_parked JOIN jobs AS j ON j.no = t.no >> 20"
    f" WHERE t.state = {_PARKED}"
)
# A damaged field must not hide that its task failed.
_FAILED_TASKS = (
    "SELECT t.key, j.id, n.text, iif(json_valid(t.rest), t.rest ->> '$.failure.category', NULL),"
    " coalesce(t.finished_ms, 0) FROM tasks AS t INDEXED BY tasks_failed"
    " JOIN jobs AS j ON j.no = t.no >> 20 JOIN names AS n ON n.no = t.queue"
    f" WHERE t.tenant = ? AND t.state = {_FAILED} ORDER BY t.finished_ms DESC, t.no DESC LIMIT ?"
)
_UPSERT_WAKEUP = (
    "INSERT INTO wakeups (worker_id, count) VALUES (?, 1)"
    " ON CONFLICT (worker_id) DO UPDATE SET count = count + 1"
)
# Jumps from one tenant to the next without reading the tasks in between.
_NEXT_TENANT = (
    f"SELECT min(tenant) FROM tasks INDEXED BY tasks_failed WHERE state = {_FAILED} AND tenant >"
)
_TENANTS = (
    f"WITH RECURSIVE found (tenant) AS ({_NEXT_TENANT} 0 UNION ALL SELECT"
    f" ({_NEXT_TENANT} found.tenant) FROM found WHERE found.tenant IS NOT NULL)"
    " SELECT n.text FROM found JOIN names AS n ON n.no = found.tenant"
    " WHERE n.text > ?1 ORDER BY n.text LIMIT ?2"
)
_CATEGORIES = frozenset(ErrorCategory)
_TASKS_PER_PAGE = 500


@dataclass(eq=False)
class SqliteLedger:
    """See ``ports.ledger.Ledger``."""

    atomic = True

    _database: Database
    _wakeups_seen: dict[str, int] = field(default_factory=dict)  # wake-ups that each worker saw
    _nothing_leased_at: int | None = None  # the commit after which no task was leased

    @property
    def epoch(self) -> int:
        return self._database.epoch

    async def get_task(self, task_id: str) -> TaskRow | None:
        return self._database.look(lambda reader: reader.task(task_id))

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        keys_by_job: dict[str, list[str]] = {}
        for job_id, key in map(split_task_id, task_ids):
            keys_by_job.setdefault(job_id, []).append(key)
        stored = self._database.look(
            lambda reader: {
                row.id: row
                for job_id, keys in keys_by_job.items()
                for row in reader.tasks(job_id, keys)
            }
        )
        return [stored[task_id] for task_id in task_ids if task_id in stored]

    async def get_job(self, job_id: str) -> JobRow | None:
        return self._database.look(lambda reader: reader.job(job_id))

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        if len({change.row.id for change in changes}) < len(changes):
            raise UsageError("two changes of one row in one commit")
        effects = [effect for change in changes for effect in change.effects]
        woken = [(effect.worker_id,) for effect in effects if isinstance(effect, Wake)]
        topics = {Topic.QUEUE} if any(isinstance(effect, Enqueue) for effect in effects) else set()
        topics |= {Topic.WAKEUP} if woken else set()
        if any(isinstance(change.row, TaskRow) and change.row.state.terminal for change in changes):
            topics.add(Topic.ENDS)  # its job has to record it

        def work(transaction: StoreTransaction) -> None:
            written = 0
            for change in changes:  # jobs first, because tasks refer to them
                if isinstance(change.row, JobRow):
                    written += transaction.write_job(change)
            for change in changes:
                if isinstance(change.row, TaskRow):
                    written += transaction.write_task(change)
            if not written:
                return  # the answer to an earlier commit of these changes was lost
            if written < len(changes):
                # Some rows had their change already: these changes never were one commit.
                raise VersionConflict(changes[0].row.id, changes[0].expected_version)
            reach("write.rows_written")
            transaction.connection.executemany(_UPSERT_WAKEUP, woken)

        durable = any(change.durable for change in changes)
        await self._database.write(work, durable=durable, topics=topics)
        return ()

    async def create_jobs(
        self, creations: Sequence[JobCreation]
    ) -> list[tuple[Effect, ...] | VersionConflict]:
        # Some task of a new job has no parents.
        work = partial(create_jobs, creations=creations)
        return list(await self._database.write(work, topics=(Topic.QUEUE,)))

    async def list_tasks(
        self,
        tenant: str,
        *,
        job_id: str | None = None,
        state: TaskState | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TaskRow]:
        if job_id is not None:
            return await self._tasks_of_job(tenant, job_id, state, limit, cursor)
        position = self._newest_position("tasks", cursor)
        number = None if state is None else TASK_STATE_NUMBERS[state]
        # Most tasks have completed, and the others have an index of their own.
        walks = [
            f"{SELECT_TASK.replace('tasks AS t', f'tasks AS t INDEXED BY {index}', 1)}"
            f" WHERE t.tenant = ?1 AND t.state {operator} {_COMPLETED}"
            " AND (t.created_us, t.no) < (?2, ?3) AND (?4 IS NULL OR t.state = ?4)"
            for index, operator in (("tasks_completed", "="), ("tasks_open", "<>"))
            if state is None or (state is TaskState.COMPLETED) == (operator == "=")
        ]
        return await self._page(
            f"{' UNION ALL '.join(walks)} ORDER BY t.created_us DESC, t.no DESC",
            (self._database.find_name(tenant), *position, number),
            limit,
            StoreReader.task_row,
            lambda match: encode_cursor("tasks", match[6], match[0]),
        )

    async def _page(
        self,
        sql: str,
        values: Sequence[Any],
        limit: int,
        read: Callable[[StoreReader, Row], Any],
        cursor_after: Callable[[Row], str],
    ) -> Page[Any]:
        """The first rows of a statement, and the cursor after the last of them."""

        def scan(reader: StoreReader) -> Page[Any]:
            matches = reader.select(f"{sql} LIMIT ?", (*values, limit + 1))
            cursor = cursor_after(matches[limit - 1]) if len(matches) > limit else None
            return Page(tuple(read(reader, match) for match in matches[:limit]), cursor)

        return await self._database.scan_with(scan)

    async def _tasks_of_job(
        self, tenant: str, job_id: str, state: TaskState | None, limit: int, cursor: str | None
    ) -> Page[TaskRow]:
        after = decode_cursor("job-tasks", cursor, (int,))[0] if cursor else -1
        first = self._job_no(job_id) << NUMBER_BITS
        number = None if state is None else TASK_STATE_NUMBERS[state]
        owner = self._database.find_name(tenant)
        return await self._page(
            f"{SELECT_TASK} WHERE t.no > ?1 AND t.no <= ?2 AND +t.tenant = ?3"
            " AND (?4 IS NULL OR +t.state = ?4) ORDER BY t.no",
            (first + after, first | NUMBER_MASK, owner, number),
            limit,
            StoreReader.task_row,
            lambda match: encode_cursor("job-tasks", match[0] - first),
        )

    def _job_no(self, job_id: str) -> int:
        return self._database.look(lambda reader: reader.job_no(job_id))

    def _newest_position(self, listing: str, cursor: str | None) -> tuple[int, int]:
        """The position after which a list begins that has the newest row first."""
        if cursor is None:
            return codec.to_us(self._database.clock.now() + _FAR_FUTURE), _LAST_NUMBER
        created, no = decode_cursor(listing, cursor, (int, int))
        return created, no

    async def list_jobs(
        self,
        tenant: str,
        *,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: Unpack[JobConditions],
    ) -> Page[JobRow]:
        position = self._newest_position("jobs", cursor)
        if (created_before := conditions.get("created_before")) is not None:
            # No row has the number 0: rows created at that moment are left out.
            position = min(position, (codec.to_us(created_before), 0))
        state, name = conditions.get("state"), conditions.get("name")
        # The indexes are ordered by state, so jobs of all states are one range for each.
        states = JOB_STATES if state is None else (state,)
        index = "jobs_by_state" if name is None else "jobs_by_name"
        named = "" if name is None else "AND name IS NOT NULL AND name = ?5"
        ranges = [
            f"{SELECT_JOB} INDEXED BY {index} WHERE tenant = ?1 {named}"
            f" AND state = {JOB_STATE_NUMBERS[item]} AND (created_us, no) < (?2, ?3)"
            " AND created_us >= ?4 AND version > 0"
            for item in states
        ]
        first = codec.to_us(conditions.get("created_from") or _LONG_AGO)
        find = self._database.find_name
        values = [find(tenant), *position, first, *([] if name is None else [find(name)])]
        return await self._page(
            f"{' UNION ALL '.join(ranges)} ORDER BY created_us DESC, no DESC",
            values,
            limit,
            StoreReader.job_row,
            lambda match: encode_cursor("jobs", match[7], match[0]),
        )

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        return await self._database.scan_with(lambda reader: reader.task_states(job_id))

    async def find_ids(self, tenant: str, prefix: str, *, limit: int = 10) -> list[str]:
        owner = self._database.find_name(tenant)
        job_prefix, separator, key_prefix = prefix.partition("_")
        if separator:
            no = self._job_no(job_prefix)
            return await self._keys_of(owner, job_prefix, no, key_prefix, limit)
        ids: list[str] = []
        # Of other tenants too: the index of ids has all of them.
        for low, high in _id_ranges(prefix):
            jobs = await self._database.scan(
                "SELECT id, no, version FROM jobs WHERE id >= ? AND id < ? AND +tenant IN (0, ?)"
                " ORDER BY id LIMIT ?",
                (low, high, owner, limit),
            )
            for job, no, version in jobs:
                job_id = unpack_job_id(job)
                ids += [job_id] if version else []
                ids += await self._keys_of(owner, job_id, no, "", limit)
        return sorted(ids)[:limit]

    async def _keys_of(
        self, tenant: int, job_id: str, job_no: int, prefix: str, limit: int
    ) -> list[str]:
        """Ids of the tasks of a job whose keys begin with a prefix."""
        first = job_no << NUMBER_BITS
        numbers, range_ = (first, first | NUMBER_MASK), (prefix, prefix + _LAST_CHARACTER)
        keys = await self._database.scan_column(
            "SELECT key FROM tasks WHERE no >= ?1 AND no <= ?2 AND +tenant = ?3"
            " AND key >= ?4 AND key < ?5 ORDER BY key LIMIT ?6",
            (*numbers, tenant, *range_, limit),
        )
        return [task_id_of(job_id, key) for key in keys]

    async def unqueued_tasks(
        self, *, due_by: datetime, enqueued_before: datetime, limit: int
    ) -> list[str]:
        return []  # a pending task is in the index of ready tasks

    async def leased_tasks(
        self, *, limit: int, expired_by: datetime | None = None
    ) -> list[tuple[str, Lease]]:
        commits = self._database.notifier.commits
        if commits is not None and commits == self._nothing_leased_at:
            return []
        latest = to_ms(expired_by or self._database.clock.now() + _FAR_FUTURE)
        sql = f"{SELECT_TASK} WHERE t.lease_ms <= ? ORDER BY t.lease_ms, t.no LIMIT ?"
        leased = await self._database.scan_with(
            lambda reader: [reader.task_row(row) for row in reader.select(sql, (latest, limit))]
        )
        if not leased and expired_by is None:
            self._nothing_leased_at = commits  # an idle process looks again without reading
        return [
            (row.id, row.lease)
            for row in leased
            if row.lease and (expired_by is None or row.lease.expires_at <= expired_by)
        ]

    async def parked_tasks(self, *, limit: int) -> list[str]:
        sql = f"{_IDS_OF_PARKED} ORDER BY t.due_us NULLS LAST, t.no LIMIT ?"
        return _task_ids(await self._database.scan(sql, (limit,)))

    async def failed_tasks(self, tenant: str, *, limit: int) -> list[FailedTask]:
        owner = self._database.find_name(tenant)
        failed = await self._database.scan(_FAILED_TASKS, (owner, limit))
        return [
            FailedTask(
                task_id=task_id_of(unpack_job_id(job), key),
                queue=queue,
                category=ErrorCategory(category) if category in _CATEGORIES else None,
                failed_at=from_ms(finished_ms),
            )
            for key, job, queue, category, finished_ms in failed
        ]

    async def failed_tenants(self, *, limit: int, after: str = "") -> list[str]:
        return await self._database.scan_column(_TENANTS, (after, limit))

    async def open_intents(self, *, limit: int, after: str = "") -> list[str]:
        return await self._job_ids("jobs_with_intents", "intents > 0", limit, after)

    async def _job_ids(self, index: str, condition: str, limit: int, after: str) -> list[str]:
        """Ids of the jobs in a small index, in order, after one of them."""
        ids = await self._database.scan_column(
            f"SELECT id FROM jobs INDEXED BY {index} WHERE {condition}"
        )
        return sorted(job_id for job_id in map(unpack_job_id, ids) if job_id > after)[:limit]

    async def unrecorded_ends(
        self, *, ended_by: datetime, limit: int, after: str = ""
    ) -> list[str]:
        matches = await self._database.scan(
            "SELECT t.key, j.id, t.no, j.state, j.total, j.completed, j.rest"
            " FROM tasks AS t INDEXED BY tasks_unsettled"
            " JOIN jobs AS j ON j.no = t.no >> 20 WHERE t.unsettled > 0"
            " AND j.version > 0 AND t.finished_ms <= ?",
            (to_ms(ended_by),),
        )
        unrecorded = [row for row in matches if row[2] & NUMBER_MASK not in ended_numbers(*row[3:])]
        return _after(_task_ids(unrecorded), after, limit)

    async def unnotified_dependents(self, *, limit: int, after: str = "") -> list[str]:
        unnotified: list[str] = []
        last = -1
        while True:
            page = await self._database.scan(
                "SELECT t.key, j.id, t.awaits, j.completed, t.no FROM tasks AS t"
                " INDEXED BY tasks_waiting JOIN jobs AS j ON j.no = t.no >> 20"
                " WHERE t.state = 0 AND j.version > 0 AND j.state = 0 AND j.completed IS NOT NULL"
                " AND t.no > ? ORDER BY t.no LIMIT ?",
                (last, _TASKS_PER_PAGE),
            )
            for key, job, awaits, completed, _ in page:
                if unpack_numbers(awaits) & unpack_numbers(completed):
                    unnotified.append(task_id_of(unpack_job_id(job), key))
            if len(page) < _TASKS_PER_PAGE:
                return _after(unnotified, after, limit)
            last = page[-1][4]

    async def unreported_ends(self, *, limit: int, after: str = "") -> list[str]:
        return await self._job_ids("jobs_unreported", "unreported > 0", limit, after)

    async def wait_for_wake(self, worker_id: str) -> None:
        seen = self._wakeups_seen.setdefault(worker_id, self._count_wakeups(worker_id))

        def look() -> int | None:
            count = self._count_wakeups(worker_id)
            return count if count != seen else None

        waiters = self._database.waiters[Topic.WAKEUP]
        self._wakeups_seen[worker_id] = await waiters.wait_until(look) or 0

    def _count_wakeups(self, worker_id: str) -> int:
        sql = "SELECT count FROM wakeups WHERE worker_id = ?"
        return self._database.point_value(sql, (worker_id,)) or 0


def _task_ids(matches: Sequence[Row]) -> list[str]:
    """Task ids from rows that begin with a key and the id of a job."""
    return [task_id_of(unpack_job_id(row[1]), row[0]) for row in matches]


def _after(task_ids: list[str], after: str, limit: int) -> list[str]:
    """The ids after one of them, by job and then by key."""
    positions = sorted(split_task_id(task_id) for task_id in task_ids)
    later = [position for position in positions if position > split_task_id(after)]
    return [task_id_of(*position) for position in later[:limit]]


def _id_ranges(prefix: str) -> list[tuple[str | bytes, str | bytes]]:
    """The ranges of the column ``jobs.id`` that contain every id with a prefix."""
    ranges: list[tuple[str | bytes, str | bytes]] = [(prefix, prefix + _LAST_CHARACTER)]
    digits = prefix.removeprefix(JOB_PREFIX)
    if JOB_PREFIX.startswith(prefix) or len(digits) < len(prefix):
        digits = "" if JOB_PREFIX.startswith(prefix) else digits
        low = parse_id(JOB_PREFIX, JOB_PREFIX + digits.ljust(24, "0"))
        high = parse_id(JOB_PREFIX, JOB_PREFIX + digits.ljust(24, "v"))
        if low is not None and high is not None:
            above = (high + 1).to_bytes(ID_BYTES + 1, "big")
            ranges.append(
                (low.to_bytes(ID_BYTES, "big"), above[1:] if not above[0] else b"\xff" * 16)
            )
    return ranges
