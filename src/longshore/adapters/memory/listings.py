"""The ledger's listings in memory: sorted anew for each page, because it is simple and right."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from longshore.adapters.memory.store import MemoryStore
from longshore.core.pages import Page, decode_cursor, encode_cursor
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState

RowT = TypeVar("RowT", TaskRow, JobRow)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class MemoryListings:
    """The part of ``ports.ledger.Ledger`` that lists and finds."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def list_tasks(
        self,
        tenant: str,
        *,
        job_id: str | None = None,
        state: TaskState | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TaskRow]:
        rows = [
            row
            for row in self._store.tasks.values()
            if row.spec.tenant == tenant
            and (job_id is None or row.spec.job_id == job_id)
            and (state is None or row.state is state)
        ]
        if job_id is None:
            return _newest("tasks", rows, limit, cursor)
        return _by_number(rows, limit, cursor)

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
        rows = [
            row
            for row in self._store.jobs.values()
            if row.spec.tenant == tenant
            and (state is None or row.state is state)
            and (name is None or row.spec.name == name)
            and (created_from is None or row.spec.created_at >= created_from)
            and (created_before is None or row.spec.created_at < created_before)
        ]
        return _newest("jobs", rows, limit, cursor)

    async def task_states(self, job_id: str) -> dict[str, TaskState]:
        rows = self._store.tasks.values()
        return {row.spec.key: row.state for row in rows if row.spec.job_id == job_id}

    async def find_ids(self, tenant: str, prefix: str, *, limit: int = 10) -> list[str]:
        rows: list[TaskRow | JobRow] = [*self._store.tasks.values(), *self._store.jobs.values()]
        found = [row.id for row in rows if row.spec.tenant == tenant and row.id.startswith(prefix)]
        return sorted(found)[:limit]


def _newest(listing: str, rows: Iterable[RowT], limit: int, cursor: str | None) -> Page[RowT]:
    ordered = sorted(rows, key=_age, reverse=True)
    if cursor is not None:
        place = tuple(decode_cursor(listing, cursor, (int, str)))
        ordered = [row for row in ordered if _age(row) < place]
    items = tuple(ordered[:limit])
    return Page(items, encode_cursor(listing, *_age(items[-1])) if len(ordered) > limit else None)


def _by_number(rows: Iterable[TaskRow], limit: int, cursor: str | None) -> Page[TaskRow]:
    ordered = sorted(rows, key=lambda row: row.spec.number)
    if cursor is not None:
        (place,) = decode_cursor("tasks by number", cursor, (int,))
        ordered = [row for row in ordered if row.spec.number > place]
    items = tuple(ordered[:limit])
    more = len(ordered) > limit
    return Page(items, encode_cursor("tasks by number", items[-1].spec.number) if more else None)


def _age(row: TaskRow | JobRow) -> tuple[int, str]:
    return (row.spec.created_at - _EPOCH) // _MICROSECOND, row.id
