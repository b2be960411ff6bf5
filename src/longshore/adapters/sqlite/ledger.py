"""The ledger in SQLite: a row, its events and its messages in one transaction.

Every list is read along an index, so that the number of rows does not matter. A sweep that compares
a job with its tasks finds candidate jobs by an index and compares their bit sets in Python. Its
scans are short, because the reading thread has other callers to serve.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar, Unpack

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.commit import Commit
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.store_file import Row
from longshore.core.ids import split_task_id
from longshore.core.jobs.numbers import NumberSet
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.core.tasks.changes import Effect
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.ports.ledger import AnyChange, FailedTask, JobConditions

_FAR_FUTURE = timedelta(days=36500)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

_READ_TASK = (
    "SELECT iif(version = ?2, NULL, spec), iif(version = ?2, NULL, body) FROM tasks WHERE id = ?1"
)
_LAST_CHARACTER = "\U0010ffff"
_PREFIX_SCAN_LIMIT = 200
# The index is named because SQLite may otherwise choose one with tasks of every state.
_PARKED = "SELECT id FROM tasks INDEXED BY tasks_parked WHERE state = 'parked'"
_IDS = (
    "SELECT id, tenant FROM jobs WHERE id >= ?1 AND id < ?2 UNION ALL"
    " SELECT id, tenant FROM tasks WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT ?3"
)
_IDS_OF_TENANT = (
    "SELECT id FROM jobs INDEXED BY jobs_by_time WHERE id >= ?1 AND id < ?2 AND tenant = ?4"
    " UNION ALL"
    " SELECT id FROM tasks INDEXED BY tasks_by_time WHERE id >= ?1 AND id < ?2 AND tenant = ?4"
    " ORDER BY id LIMIT ?3"
)

# A damaged body must not hide that its task failed. The index is named because SQLite may otherwise
# choose one with tasks of every state.
_FAILED = (
    "SELECT id, queue, iif(json_valid(body), body ->> '$.failure.category', NULL),"
    " coalesce(finished_us, 0) FROM tasks INDEXED BY tasks_failed"
    " WHERE tenant = ? AND state = 'failed' ORDER BY finished_us DESC, id DESC LIMIT ?"
)
# Jumps from one tenant to the next without reading the tasks in between.
_NEXT_TENANT = (
    "SELECT min(tenant) FROM tasks INDEXED BY tasks_failed WHERE state = 'failed' AND tenant >"
)
_TENANTS = (
    f"WITH RECURSIVE found (tenant) AS ({_NEXT_TENANT} ?1 UNION ALL SELECT"
    f" ({_NEXT_TENANT} found.tenant)"
    " FROM found WHERE found.tenant IS NOT NULL LIMIT ?2)"
    " SELECT tenant FROM found WHERE tenant IS NOT NULL"
)
_CATEGORIES = frozenset(ErrorCategory)
_JOBS_PER_PAGE = 64
_JOBS_PER_SCAN = 1_000
_TASKS_PER_PAGE = 500

# The first job that the next scan starts with.
_NEXT_SCAN_START = (
    "SELECT id FROM jobs WHERE state = 'running' AND id >= ? ORDER BY id LIMIT 1 OFFSET ?"
)

# A job has recorded all ends if it counts as many as there are.
_JOBS_WITH_ENDS = (
    "SELECT id, body FROM jobs WHERE state = 'running' AND id >= ? AND id < ? AND ended <"
    " (SELECT count(*) FROM tasks WHERE job_id = jobs.id AND finished_us IS NOT NULL)"
    " ORDER BY id LIMIT ?"
)
_ENDS = "SELECT id, number FROM tasks WHERE job_id = ? AND finished_us <= ? AND id > ? ORDER BY id"
_JOBS_WITH_WAITING_TASKS = (
    "SELECT id, body ->> 'completed' FROM jobs WHERE state = 'running' AND id >= ? AND id < ?"
    " AND EXISTS (SELECT 1 FROM tasks WHERE job_id = jobs.id AND state = 'waiting')"
    " ORDER BY id LIMIT ?"
)
_WAITING_TASKS = (
    "SELECT id, body ->> 'awaits' FROM tasks"
    " WHERE job_id = ? AND state = 'waiting' AND id > ? ORDER BY id LIMIT ?"
)
_CACHE_LIMIT = 4096

RowT = TypeVar("RowT", TaskRow, JobRow)


class CachedRow(NamedTuple):
    """A row, and the exclusive epoch in which it was read."""

    row: TaskRow
    exclusive_epoch: int


@dataclass(slots=True)
class TaskRowCache:
    """Tasks as this process last saw them, so that an unchanged row is not read again.

    A row is current while no other process has written (see ``write_lock``). Otherwise its version
    decides: a version is written once, so an equal version means an equal row. A row that is stale
    all the same is noticed by the commit. Only the event loop's thread uses the cache: rows are
    stored when they are read and when a commit is answered, in the order of the commits. The oldest
    row is dropped first.
    """

    limit: int = _CACHE_LIMIT
    _rows: dict[str, CachedRow] = field(default_factory=dict)

    def get(self, task_id: str) -> CachedRow | None:
        return self._rows.get(task_id)

    def put(self, row: TaskRow, exclusive_epoch: int) -> None:
        """Store a row that was in the file in this epoch; terminal rows are rarely read again."""
        rows = self._rows
        cached = rows.get(row.id)
        if cached is not None and cached.row.version > row.version:
            return  # it was read before the answer to a later commit arrived
        rows.pop(row.id, None)
        if row.state.terminal:
            return
        rows[row.id] = CachedRow(row, exclusive_epoch)
        if len(rows) > self.limit:
            del rows[next(iter(rows))]

    def evict(self, task_id: str) -> None:
        """Make the next read go to the file."""
        self._rows.pop(task_id, None)


@dataclass(eq=False)
class SqliteLedger:
    """See ``ports.ledger.Ledger``."""

    atomic = True

    _database: Database
    _row_cache: TaskRowCache = field(default_factory=TaskRowCache)
    _wakeups_seen: dict[str, int] = field(default_factory=dict)  # wake-ups that each worker saw

    @property
    def epoch(self) -> int:
        return self._database.epoch

    async def get_task(self, task_id: str) -> TaskRow | None:
        return self._read(task_id)

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        read = (self._read(task_id) for task_id in task_ids)
        return [row for row in read if row]

    def _read(self, task_id: str) -> TaskRow | None:
        # Read before the file is: a change in between belongs to a later epoch.
        write_lock = self._database.write_lock
        epoch = write_lock.exclusive_epoch
        cached = self._row_cache.get(task_id)
        if cached is not None and cached.exclusive_epoch == epoch and write_lock.unchanged:
            return cached.row
        version = cached.row.version if cached else 0
        matches = self._database.point(_READ_TASK, (task_id, version))
        if not matches:
            return None
        spec, body = matches[0]
        row = cached.row if cached and spec is None else codec.task_from_json(spec, body)
        self._row_cache.put(row, epoch)
        return row

    async def get_job(self, job_id: str) -> JobRow | None:
        body = self._database.point_value("SELECT body FROM jobs WHERE id = ?", (job_id,))
        return None if body is None else codec.job_from_json(body)

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        if len(changes) > 1 and len({change.row.id for change in changes}) < len(changes):
            message = "two changes of one row in one commit"
            raise UsageError(message)
        work = Commit(changes, self._database.clock.now(), self._database.write_lock)
        await self._database.write(
            work,
            durable=work.durable,
            topics=work.topics,
            on_done=partial(self._update_cache, changes, work),
        )
        return ()

    def _update_cache(
        self, changes: Sequence[AnyChange], work: Commit, error: BaseException | None
    ) -> None:
        for change in changes:
            if error is not None:
                self._row_cache.evict(change.row.id)
            elif change.expected_version and isinstance(change.row, TaskRow):
                self._row_cache.put(change.row, work.exclusive_epoch)

    async def list_tasks(
        self,
        tenant: str,
        *,
        job_id: str | None = None,
        state: TaskState | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TaskRow]:
        if job_id is None:
            walk = _walk("tasks", "spec, body", state)
            values = (tenant, limit, cursor)
            return await self._newest([walk], "tasks", codec.task_from_json, *values)
        after = decode_cursor("job-tasks", cursor, (int,))[0] if cursor else -1
        matches = await self._database.scan(
            "SELECT spec, body, number FROM tasks WHERE job_id = ?1 AND number > ?2 AND tenant = ?3"
            " AND (?4 IS NULL OR state = ?4) ORDER BY number LIMIT ?5",
            (job_id, after, tenant, state and state.value, limit + 1),
        )
        return _page(matches, limit, "job-tasks", codec.task_from_json, position_columns=1)

    async def list_jobs(
        self,
        tenant: str,
        *,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: Unpack[JobConditions],
    ) -> Page[JobRow]:
        state, name = conditions.get("state"), conditions.get("name")
        # The index by name is ordered by state, so jobs of one name are one range for each state.
        states = JobState if name is not None and state is None else (state,)
        walks = [_walk("jobs", "body", item, by_name=name is not None) for item in states]
        values = (tenant, limit, cursor)
        return await self._newest(walks, "jobs", codec.job_from_json, *values, **conditions)

    async def _newest(
        self,
        walks: Sequence[str],
        listing: str,
        decode: Callable[..., RowT],
        tenant: str,
        limit: int,
        cursor: str | None,
        **conditions: Unpack[JobConditions],
    ) -> Page[RowT]:
        """The rows of the ranges, newest first."""
        position = (codec.to_us(self._database.clock.now() + _FAR_FUTURE), "")
        if cursor:
            created, row_id = decode_cursor(listing, cursor, (int, str))
            position = (created, row_id)
        if (created_before := conditions.get("created_before")) is not None:
            # The empty id is before all others: rows created at that moment are left out.
            position = min(position, (codec.to_us(created_before), ""))
        first = codec.to_us(conditions.get("created_from") or _LONG_AGO)
        name = [text for text in (conditions.get("name"),) if text is not None]
        sql = f"{' UNION ALL '.join(walks)} ORDER BY created_us DESC, id DESC LIMIT ?4"
        values = (tenant, *position, limit + 1, first, *name)
        return _page(await self._database.scan(sql, values), limit, listing, decode)

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        matches = await self._database.scan(
            "SELECT id, state FROM tasks WHERE job_id = ? ORDER BY number", (job_id,)
        )
        return {task_id[len(job_id) + 1 :]: TaskState(state) for task_id, state in matches}

    async def find_ids(self, tenant: str, prefix: str, *, limit: int = 10) -> list[str]:
        # The index has the ids of all tenants. The first ids with the prefix include enough of a
        # large tenant; a small tenant has few rows in its own index.
        scan_limit = max(limit, _PREFIX_SCAN_LIMIT)
        matches = await self._database.scan(_IDS, (prefix, prefix + _LAST_CHARACTER, scan_limit))
        own = [row_id for row_id, owner in matches if owner == tenant]
        if len(matches) == scan_limit and len(own) < limit:
            own = await self._database.scan_column(
                _IDS_OF_TENANT, (prefix, prefix + _LAST_CHARACTER, limit, tenant)
            )
        return own[:limit]

    async def unqueued_tasks(
        self, *, due_by: datetime, enqueued_before: datetime, limit: int
    ) -> list[str]:
        return await self._database.scan_column(
            "SELECT id FROM tasks WHERE due_us <= ? AND enqueued_us < ? AND 2 *"
            " enqueued_us - due_us <= ?"
            " AND NOT EXISTS (SELECT 1 FROM messages WHERE queue = tasks.queue AND key = tasks.id)"
            " ORDER BY due_us LIMIT ?",
            (codec.to_us(due_by), codec.to_us(enqueued_before), codec.to_us(due_by), limit),
        )

    async def leased_tasks(
        self, *, limit: int, expired_by: datetime | None = None
    ) -> list[tuple[str, Lease]]:
        latest = codec.to_us(expired_by or self._database.clock.now() + _FAR_FUTURE)
        matches = await self._database.scan(
            "SELECT spec, body FROM tasks WHERE lease_expires_us <= ? ORDER BY"
            " lease_expires_us, id LIMIT ?",
            (latest, limit),
        )
        tasks = [codec.task_from_json(*row) for row in matches]
        return [(task.id, task.lease) for task in tasks if task.lease]

    async def parked_tasks(self, *, limit: int, due_by: datetime | None = None) -> list[str]:
        if due_by is None:
            sql = f"{_PARKED} ORDER BY due_us NULLS LAST, id LIMIT ?"
            return await self._database.scan_column(sql, (limit,))
        sql = f"{_PARKED} AND due_us <= ? ORDER BY due_us, id LIMIT ?"
        return await self._database.scan_column(sql, (codec.to_us(due_by), limit))

    async def failed_tasks(self, tenant: str, *, limit: int) -> list[FailedTask]:
        failed = await self._database.scan(_FAILED, (tenant, limit))
        return [
            FailedTask(
                task_id=task_id,
                queue=queue,
                category=ErrorCategory(category) if category in _CATEGORIES else None,
                failed_at=codec.from_us(finished_us),
            )
            for task_id, queue, category, finished_us in failed
        ]

    async def failed_tenants(self, *, limit: int, after: str = "") -> list[str]:
        return await self._database.scan_column(_TENANTS, (after, limit))

    async def open_intents(self, *, limit: int, after: str = "") -> list[str]:
        return await self._database.scan_column(
            "SELECT id FROM jobs WHERE intents > 0 AND id > ? ORDER BY id LIMIT ?", (after, limit)
        )

    async def unrecorded_ends(
        self, *, ended_by: datetime, limit: int, after: str = ""
    ) -> list[str]:
        matches: list[str] = []
        async for job_id, body, after_task in self._jobs_with_tasks(_JOBS_WITH_ENDS, after):
            recorded = codec.job_from_json(body).ended
            values = (job_id, codec.to_us(ended_by), after_task)
            ends = await self._database.scan(_ENDS, values)
            matches += [task_id for task_id, number in ends if number not in recorded]
            if len(matches) >= limit:
                break
        return matches[:limit]

    async def unnotified_dependents(self, *, limit: int, after: str = "") -> list[str]:
        matches: list[str] = []
        jobs = self._jobs_with_tasks(_JOBS_WITH_WAITING_TASKS, after)
        async for job_id, text, after_task in jobs:
            completed, last = NumberSet.from_text(text), after_task
            while completed and len(matches) < limit:
                page = await self._database.scan(_WAITING_TASKS, (job_id, last, _TASKS_PER_PAGE))
                matches += [
                    task_id for task_id, awaits in page if NumberSet.from_text(awaits) & completed
                ]
                if len(page) < _TASKS_PER_PAGE:
                    break
                last = page[-1][0]
            if len(matches) >= limit:
                break
        return matches[:limit]

    async def _jobs_with_tasks(self, sql: str, after: str) -> AsyncIterator[tuple[str, str, str]]:
        """Each job with the value that ``sql`` selects, and the task id to continue after."""
        first = begun = split_task_id(after)[0]
        while first != _LAST_CHARACTER:
            beyond = await self._database.scan_column(_NEXT_SCAN_START, (first, _JOBS_PER_SCAN))
            end = beyond[0] if beyond else _LAST_CHARACTER
            page = await self._database.scan(sql, (first, end, _JOBS_PER_PAGE + 1))
            for job_id, value in page[:_JOBS_PER_PAGE]:
                yield job_id, value, after if job_id == begun else ""
            first = page[-1][0] if len(page) > _JOBS_PER_PAGE else end

    async def unreported_ends(self, *, limit: int, after: str = "") -> list[str]:
        return await self._database.scan_column(
            "SELECT id FROM jobs WHERE end_unreported > 0 AND id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )

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


def _walk(
    table: str, columns: str, state: TaskState | JobState | None, *, by_name: bool = False
) -> str:
    """Rows of one tenant, optionally of one state and name, along the index for that.

    Names and states are literals of this module; everything else is bound.
    """
    index = "name" if by_name else "state" if state else "time"
    conditions = (f"AND state = '{state.value}'" if state else "") + (" AND name = ?6" * by_name)
    # The index is named because SQLite would otherwise choose one for the two bounds in time, and
    # read every row of the other states.
    return (
        f"SELECT {columns}, created_us, id FROM {table} INDEXED BY {table}_by_{index}"
        f" WHERE tenant = ?1 AND (created_us, id) < (?2, ?3) AND created_us >= ?5 {conditions}"
    )


def _page(
    rows: list[Row],
    limit: int,
    listing: str,
    decode: Callable[..., RowT],
    *,
    position_columns: int = 2,
) -> Page[RowT]:
    """A page of rows whose last columns are their position."""
    items = tuple(decode(*row[:-position_columns]) for row in rows[:limit])
    more = len(rows) > limit
    position = rows[limit - 1][-position_columns:] if more else ()
    return Page(items, encode_cursor(listing, *position) if more else None)
