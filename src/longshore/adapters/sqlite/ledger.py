"""The ledger in SQLite: a row, its events and its doorbells in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from longshore.adapters.shared import codec
from longshore.adapters.sqlite import failed, overlooked
from longshore.adapters.sqlite.bells import Topic
from longshore.adapters.sqlite.commit import Commit
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.known import KnownTasks
from longshore.adapters.sqlite.statements import Row
from longshore.core.changes import Effect
from longshore.core.cursors import cursor_to, place_of
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.ports.ledger import AnyChange, FailedTask, HeldTask, ParkedTask
from longshore.ports.pages import Page

_FOREVER = timedelta(days=36500)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

_READ_TASK = (
    "SELECT iif(version = ?2, NULL, spec), iif(version = ?2, NULL, body) FROM tasks WHERE id = ?1"
)
_LAST_CHARACTER = "\U0010ffff"
_LOOKED_AT = 200
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
        self._known = KnownTasks()
        self._nudges: dict[str, int] = {}  # how many of each worker's have been seen

    @property
    def epoch(self) -> int:
        return self._database.epoch

    async def task(self, task_id: str) -> TaskRow | None:
        return self._read(task_id)

    async def tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        found = (self._read(task_id) for task_id in task_ids)
        return [row for row in found if row]

    def _read(self, task_id: str) -> TaskRow | None:
        # Asked before the file is: whatever changes meanwhile belongs to another spell.
        turns = self._database.turnstile
        spell = turns.quiet_spell
        known = self._known.get(task_id)
        if known is not None and known.spell == spell and turns.undisturbed:
            return known.row
        version = known.row.version if known else 0
        found = self._database.point(_READ_TASK, (task_id, version))
        if not found:
            return None
        spec, body = found[0]
        row = known.row if known and spec is None else codec.task_from_json(spec, body)
        self._known.keep(row, spell)
        return row

    async def job(self, job_id: str) -> JobRow | None:
        found = self._database.point("SELECT body FROM jobs WHERE id = ?", (job_id,))
        return codec.job_from_json(found[0][0]) if found else None

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        if len(changes) > 1 and len({change.row.id for change in changes}) < len(changes):
            message = "two changes of one row in one commit"
            raise UsageError(message)
        work = Commit(changes, self._database.clock.now(), self._database.turnstile)
        await self._database.write(
            work,
            promised=work.promised,
            topics=work.topics,
            told=partial(self._know, changes, work),
        )
        return ()

    def _know(
        self, changes: Sequence[AnyChange], work: Commit, error: BaseException | None
    ) -> None:
        for change in changes:
            if error is not None:
                self._known.forget(change.row.id)
            elif change.expected_version and isinstance(change.row, TaskRow):
                self._known.keep(change.row, work.spell)

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
            return await self._list_tasks_of(tenant, job_id, state, limit, cursor)
        walk = _walk("tasks", "spec, body", state)
        found = await self._newest([walk], "tasks", (tenant,), limit=limit, cursor=cursor)
        return _page(found, limit, "tasks", codec.task_from_json)

    async def _list_tasks_of(
        self, tenant: str, job_id: str, state: TaskState | None, limit: int, cursor: str | None
    ) -> Page[TaskRow]:
        after = place_of("job-tasks", cursor, (int,))[0] if cursor else -1
        found = await self._database.scan(
            "SELECT spec, body FROM tasks WHERE job_id = ?1 AND number > ?2 AND tenant = ?3"
            " AND (?4 IS NULL OR state = ?4) ORDER BY number LIMIT ?5",
            (job_id, after, tenant, state and state.value, limit + 1),
        )
        items = tuple(codec.task_from_json(*one) for one in found[:limit])
        more = len(found) > limit
        return Page(items, cursor_to("job-tasks", items[-1].spec.number) if more else None)

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
            [_walk("jobs", "body", one, named=name is not None) for one in states],
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
            created, row_id = place_of(listing, cursor, (int, str))
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

    async def find(self, tenant: str, prefix: str, *, limit: int = 10) -> list[str]:
        # Ids of all tenants stand together. Among the first that begin so there are as many of a
        # large tenant as are wanted; a small one has few rows in all.
        looked_at = max(limit, _LOOKED_AT)
        found = await self._database.scan(_IDS, (prefix, prefix + _LAST_CHARACTER, looked_at))
        own = [row_id for row_id, of in found if of == tenant]
        if len(found) == looked_at and len(own) < limit:
            found = await self._database.scan(
                _IDS_OF_TENANT, (prefix, prefix + _LAST_CHARACTER, limit, tenant)
            )
            own = [row_id for (row_id,) in found]
        return own[:limit]

    async def unrung(self, *, due_by: datetime, rung_before: datetime, limit: int) -> list[str]:
        found = await self._database.scan(
            "SELECT id FROM tasks WHERE due_us <= ? AND rung_us < ? AND 2 * rung_us - due_us <= ?"
            " AND NOT EXISTS (SELECT 1 FROM messages WHERE queue = tasks.queue AND key = tasks.id)"
            " ORDER BY due_us LIMIT ?",
            (codec.to_us(due_by), codec.to_us(rung_before), codec.to_us(due_by), limit),
        )
        return [task_id for (task_id,) in found]

    async def held(self, *, limit: int, expired_by: datetime | None = None) -> list[HeldTask]:
        latest = codec.to_us(expired_by or self._database.clock.now() + _FOREVER)
        found = await self._database.scan(
            "SELECT spec, body FROM tasks WHERE lease_us <= ? ORDER BY lease_us, id LIMIT ?",
            (latest, limit),
        )
        tasks = [codec.task_from_json(*one) for one in found]
        return [
            HeldTask(
                task_id=task.id,
                worker_id=task.lease.worker_id,
                fence=task.lease.fence,
                expires_at=task.lease.expires_at,
            )
            for task in tasks
            if task.lease
        ]

    async def parked(self, *, limit: int, due_by: datetime | None = None) -> list[ParkedTask]:
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

    async def failed(self, tenant: str, *, limit: int) -> list[FailedTask]:
        return await failed.failed(self._database, tenant, limit=limit)

    async def failed_tenants(self, *, limit: int, after: str = "") -> list[str]:
        return await failed.failed_tenants(self._database, limit=limit, after=after)

    async def open_intents(self, *, limit: int, after: str = "") -> list[str]:
        found = await self._database.scan(
            "SELECT id FROM jobs WHERE intents > 0 AND id > ? ORDER BY id LIMIT ?", (after, limit)
        )
        return [job_id for (job_id,) in found]

    async def unrecorded_ends(
        self, *, ended_by: datetime, limit: int, after: str = ""
    ) -> list[str]:
        ended_by_us = codec.to_us(ended_by)
        return await overlooked.unrecorded_ends(
            self._database, ended_by_us=ended_by_us, limit=limit, after=after
        )

    async def untold_parents(self, *, limit: int, after: str = "") -> list[str]:
        return await overlooked.untold_parents(self._database, limit=limit, after=after)

    async def untold_ends(self, *, limit: int, after: str = "") -> list[str]:
        found = await self._database.scan(
            "SELECT id FROM jobs WHERE untold > 0 AND id > ? ORDER BY id LIMIT ?", (after, limit)
        )
        return [job_id for (job_id,) in found]

    async def nudged(self, worker_id: str) -> None:
        seen = self._nudges.setdefault(worker_id, self._count_nudges(worker_id))

        def look() -> int | None:
            count = self._count_nudges(worker_id)
            return count if count != seen else None

        while (count := await self._database.wait_for(Topic.NUDGE, look, wait=_FOREVER)) is None:
            continue
        self._nudges[worker_id] = count

    def _count_nudges(self, worker_id: str) -> int:
        found = self._database.point("SELECT count FROM nudges WHERE worker_id = ?", (worker_id,))
        return found[0][0] if found else 0


def _walk(
    table: str, columns: str, state: TaskState | JobState | None, *, named: bool = False
) -> str:
    """Rows of one tenant, and of one state and name if so wanted, along the index they stand in.

    The names and the state are our own literals; everything else is bound.
    """
    index = "name" if named else "state" if state else "time"
    conditions = (f"AND state = '{state.value}'" if state else "") + (" AND name = ?6" * named)
    # The index is named because SQLite, left alone, takes another for its two bounds in time, and
    # passes over every row of another state.
    return (
        f"SELECT {columns}, created_us, id FROM {table} INDEXED BY {table}_by_{index}"
        f" WHERE tenant = ?1 AND (created_us, id) < (?2, ?3) AND created_us >= ?5 {conditions}"
    )


def _page(found: list[Row], limit: int, listing: str, decode: Callable[..., RowT]) -> Page[RowT]:
    """A page of rows that end with their place."""
    items = tuple(decode(*one[:-2]) for one in found[:limit])
    more = len(found) > limit
    return Page(items, cursor_to(listing, *found[limit - 1][-2:]) if more else None)
