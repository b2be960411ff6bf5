"""The ledger in SQLite: a row, its events and its doorbells in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from longshore.adapters.shared import codec
from longshore.adapters.sqlite import failed_task_queries, sweep_queries
from longshore.adapters.sqlite.commit import Commit
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.row_cache import TaskRowCache
from longshore.adapters.sqlite.statements import Row
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.core.tasks.changes import Effect
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.ports.ledger import AnyChange, FailedTask, LeasedTask, ParkedTask

_FOREVER = timedelta(days=36500)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

_READ_TASK = (
    "SELECT iif(version = ?2, NULL, spec), iif(version = ?2, NULL, body) FROM tasks WHERE id = ?1"
)
_LAST_CHARACTER = "\U0010ffff"
_PREFIX_SCAN_LIMIT = 200
# The index is named because SQLite, left alone, may take one that holds tasks of every state.
_PARKED = "SELECT id, due_us FROM tasks INDEXED BY tasks_parked WHERE state = 'parked'"
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

RowT = TypeVar("RowT", TaskRow, JobRow)


class SqliteLedger:
    """See ``ports.ledger.Ledger``."""

    atomic = True

    def __init__(self, database: Database) -> None:
        self._database = database
        self._row_cache = TaskRowCache()
        self._wakeups_seen: dict[str, int] = {}  # how many of each worker's have been seen

    @property
    def epoch(self) -> int:
        return self._database.epoch

    async def get_task(self, task_id: str) -> TaskRow | None:
        return self._read(task_id)

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        found = (self._read(task_id) for task_id in task_ids)
        return [row for row in found if row]

    def _read(self, task_id: str) -> TaskRow | None:
        # Asked before the file is: whatever changes meanwhile belongs to another spell.
        turns = self._database.write_lock
        spell = turns.exclusive_epoch
        known = self._row_cache.get(task_id)
        if known is not None and known.exclusive_epoch == spell and turns.unchanged:
            return known.row
        version = known.row.version if known else 0
        found = self._database.point(_READ_TASK, (task_id, version))
        if not found:
            return None
        spec, body = found[0]
        row = known.row if known and spec is None else codec.task_from_json(spec, body)
        self._row_cache.put(row, spell)
        return row

    async def get_job(self, job_id: str) -> JobRow | None:
        found = self._database.point("SELECT body FROM jobs WHERE id = ?", (job_id,))
        return codec.job_from_json(found[0][0]) if found else None

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
        if job_id is not None:
            return await self._list_job_tasks(tenant, job_id, state, limit, cursor)
        walk = _walk("tasks", "spec, body", state)
        found = await self._newest([walk], "tasks", (tenant,), limit=limit, cursor=cursor)
        return _page(found, limit, "tasks", codec.task_from_json)

    async def _list_job_tasks(
        self, tenant: str, job_id: str, state: TaskState | None, limit: int, cursor: str | None
    ) -> Page[TaskRow]:
        after = decode_cursor("job-tasks", cursor, (int,))[0] if cursor else -1
        found = await self._database.scan(
            "SELECT spec, body FROM tasks WHERE job_id = ?1 AND number > ?2 AND tenant = ?3"
            " AND (?4 IS NULL OR state = ?4) ORDER BY number LIMIT ?5",
            (job_id, after, tenant, state and state.value, limit + 1),
        )
        items = tuple(codec.task_from_json(*one) for one in found[:limit])
        more = len(found) > limit
        return Page(items, encode_cursor("job-tasks", items[-1].spec.number) if more else None)

    async def list_jobs(
        self,
        tenant: str,
        *,
        state: JobState | None = None,
        name: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[JobRow]:
        # Those of one name stand by state, because each must be a walk along an index.
        states = JobState if name is not None and state is None else (state,)
        found = await self._newest(
            [_walk("jobs", "body", one, by_name=name is not None) for one in states],
            "jobs",
            (tenant,) if name is None else (tenant, name),
            limit=limit,
            cursor=cursor,
            created_from=created_from,
            created_before=created_before,
        )
        return _page(found, limit, "jobs", codec.job_from_json)

    async def _newest(
        self,
        walks: Sequence[str],
        listing: str,
        values: tuple[str, ...],
        *,
        limit: int,
        cursor: str | None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
    ) -> list[Row]:
        """What the walks find, newest first; ``values`` are the tenant, and the name if any."""
        place = (codec.to_us(self._database.clock.now() + _FOREVER), "")
        if cursor:
            created, row_id = decode_cursor(listing, cursor, (int, str))
            place = (created, row_id)
        if created_before is not None:
            # No id is as small as the empty one: of what was created then, nothing is left.
            place = min(place, (codec.to_us(created_before), ""))
        first = codec.to_us(created_from or _LONG_AGO)
        tenant, *name = values
        sql = f"{' UNION ALL '.join(walks)} ORDER BY created_us DESC, id DESC LIMIT ?4"
        return await self._database.scan(sql, (tenant, *place, limit + 1, first, *name))

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        found = await self._database.scan(
            "SELECT id, state FROM tasks WHERE job_id = ? ORDER BY number", (job_id,)
        )
        return {task_id[len(job_id) + 1 :]: TaskState(state) for task_id, state in found}

    async def find_ids(self, tenant: str, prefix: str, *, limit: int = 10) -> list[str]:
        # Ids of all tenants stand together. Among the first that begin so there are as many of a
        # large tenant as are wanted; a small one has few rows in all.
        looked_at = max(limit, _PREFIX_SCAN_LIMIT)
        found = await self._database.scan(_IDS, (prefix, prefix + _LAST_CHARACTER, looked_at))
        own = [row_id for row_id, of in found if of == tenant]
        if len(found) == looked_at and len(own) < limit:
            found = await self._database.scan(
                _IDS_OF_TENANT, (prefix, prefix + _LAST_CHARACTER, limit, tenant)
            )
            own = [row_id for (row_id,) in found]
        return own[:limit]

    async def unqueued_tasks(
        self, *, due_by: datetime, enqueued_before: datetime, limit: int
    ) -> list[str]:
        found = await self._database.scan(
            "SELECT id FROM tasks WHERE due_us <= ? AND enqueued_us < ? AND 2 *"
            " enqueued_us - due_us <= ?"
            " AND NOT EXISTS (SELECT 1 FROM messages WHERE queue = tasks.queue AND key = tasks.id)"
            " ORDER BY due_us LIMIT ?",
            (codec.to_us(due_by), codec.to_us(enqueued_before), codec.to_us(due_by), limit),
        )
        return [task_id for (task_id,) in found]

    async def leased_tasks(
        self, *, limit: int, expired_by: datetime | None = None
    ) -> list[LeasedTask]:
        latest = codec.to_us(expired_by or self._database.clock.now() + _FOREVER)
        found = await self._database.scan(
            "SELECT spec, body FROM tasks WHERE lease_expires_us <= ? ORDER BY"
            " lease_expires_us, id LIMIT ?",
            (latest, limit),
        )
        tasks = [codec.task_from_json(*one) for one in found]
        return [
            LeasedTask(
                task_id=task.id,
                worker_id=task.lease.worker_id,
                fence=task.lease.fence,
                expires_at=task.lease.expires_at,
            )
            for task in tasks
            if task.lease
        ]

    async def parked_tasks(self, *, limit: int, due_by: datetime | None = None) -> list[ParkedTask]:
        if due_by is None:
            sql = f"{_PARKED} ORDER BY due_us NULLS LAST, id LIMIT ?"
            found = await self._database.scan(sql, (limit,))
        else:
            sql = f"{_PARKED} AND due_us <= ? ORDER BY due_us, id LIMIT ?"
            found = await self._database.scan(sql, (codec.to_us(due_by), limit))
        return [
            ParkedTask(task_id=task_id, due_at=None if due is None else codec.from_us(due))
            for task_id, due in found
        ]

    async def failed_tasks(self, tenant: str, *, limit: int) -> list[FailedTask]:
        return await failed_task_queries.failed_tasks(self._database, tenant, limit=limit)

    async def failed_tenants(self, *, limit: int, after: str = "") -> list[str]:
        return await failed_task_queries.failed_tenants(self._database, limit=limit, after=after)

    async def open_intents(self, *, limit: int, after: str = "") -> list[str]:
        found = await self._database.scan(
            "SELECT id FROM jobs WHERE intents > 0 AND id > ? ORDER BY id LIMIT ?", (after, limit)
        )
        return [job_id for (job_id,) in found]

    async def unrecorded_ends(
        self, *, ended_by: datetime, limit: int, after: str = ""
    ) -> list[str]:
        ended_by_us = codec.to_us(ended_by)
        return await sweep_queries.unrecorded_ends(
            self._database, ended_by_us=ended_by_us, limit=limit, after=after
        )

    async def unnotified_dependents(self, *, limit: int, after: str = "") -> list[str]:
        return await sweep_queries.unnotified_dependents(self._database, limit=limit, after=after)

    async def unreported_ends(self, *, limit: int, after: str = "") -> list[str]:
        found = await self._database.scan(
            "SELECT id FROM jobs WHERE end_unreported > 0 AND id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )
        return [job_id for (job_id,) in found]

    async def wait_for_wake(self, worker_id: str) -> None:
        seen = self._wakeups_seen.setdefault(worker_id, self._count_wakeups(worker_id))

        def look() -> int | None:
            count = self._count_wakeups(worker_id)
            return count if count != seen else None

        while (count := await self._database.wait_for(Topic.WAKEUP, look, wait=_FOREVER)) is None:
            continue
        self._wakeups_seen[worker_id] = count

    def _count_wakeups(self, worker_id: str) -> int:
        found = self._database.point("SELECT count FROM wakeups WHERE worker_id = ?", (worker_id,))
        return found[0][0] if found else 0


def _walk(
    table: str, columns: str, state: TaskState | JobState | None, *, by_name: bool = False
) -> str:
    """Rows of one tenant, and of one state and name if so wanted, along the index they stand in.

    The names and the state are our own literals; everything else is bound.
    """
    index = "name" if by_name else "state" if state else "time"
    conditions = (f"AND state = '{state.value}'" if state else "") + (" AND name = ?6" * by_name)
    # The index is named because SQLite, left alone, takes another for its two bounds in time, and
    # passes over every row of another state.
    return (
        f"SELECT {columns}, created_us, id FROM {table} INDEXED BY {table}_by_{index}"
        f" WHERE tenant = ?1 AND (created_us, id) < (?2, ?3) AND created_us >= ?5 {conditions}"
    )


def _page(rows: list[Row], limit: int, listing: str, decode: Callable[..., RowT]) -> Page[RowT]:
    """A page of rows that end with their place."""
    items = tuple(decode(*one[:-2]) for one in rows[:limit])
    more = len(rows) > limit
    return Page(items, encode_cursor(listing, *rows[limit - 1][-2:]) if more else None)
