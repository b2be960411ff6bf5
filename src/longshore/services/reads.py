"""Reads that several services share: rows of a tenant, damaged rows, and lists in pages."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, Definition
from longshore.core.events.event import Event
from longshore.core.ids import split_task_id
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendUnavailable, NotFound
from longshore.ports.backend import Backend
from longshore.ports.events import EventLog
from longshore.ports.ledger import Ledger
from longshore.services.resilience import log_and_continue

logger = logging.getLogger(__name__)

AT_ONCE = 500
_SHOWN_ID_CHARACTERS = 300

ItemT = TypeVar("ItemT")


async def get_job_of(ledger: Ledger, tenant: str | None, job_id: str) -> JobRow:
    """Returns the row of a tenant's job; ``tenant`` None: of any tenant.

    Raises:
        NotFound: there is no such job, or it is another tenant's.
    """
    row = await ledger.get_job(job_id)
    if row is None or tenant not in (None, row.spec.tenant):
        raise NotFound("job", job_id[:_SHOWN_ID_CHARACTERS])
    return row


async def get_task_of(ledger: Ledger, tenant: str | None, task_id: str) -> TaskRow:
    """Returns the row of a tenant's task; ``tenant`` None: of any tenant.

    Raises:
        NotFound: there is no such task, or it is another tenant's.
    """
    row = await ledger.get_task(task_id)
    if row is None or tenant not in (None, row.spec.tenant):
        raise NotFound("task", task_id[:_SHOWN_ID_CHARACTERS])
    return row


async def was_removed(backend: Backend, row_id: str) -> bool:
    """Whether retention has removed this job, or the job of this task, and left a tombstone."""
    job_id, _ = split_task_id(row_id)
    return backend.retention is not None and await backend.retention.is_removed(job_id)


async def get_definition(
    backend: Backend, tenant: str, name: str, version: int
) -> Definition | None:
    """Returns a version of a definition; version 0 is a built-in one."""
    if version == 0:
        return BUILTIN_DEFINITIONS.get(name)
    return await backend.definitions.get(tenant, name, version=version)


async def iter_tasks(
    ledger: Ledger, tenant: str, state: TaskState, *, job_id: str | None = None
) -> AsyncIterator[TaskRow]:
    """Yields the tasks of a tenant, or of one job, that are in a state."""
    cursor: str | None = None
    while True:
        page = await ledger.list_tasks(
            tenant, job_id=job_id, state=state, limit=AT_ONCE, cursor=cursor
        )
        for row in page.items:
            yield row
        if (cursor := page.cursor) is None:
            return


async def iter_history(
    events: EventLog, tenant: str, entity: str, *, after: int = 0
) -> AsyncIterator[Event]:
    """Yields the events of an entity with a sequence above ``after``, the oldest first."""
    while page := await events.history(tenant, entity, after=after, limit=AT_ONCE):
        for event in page:
            yield event
        after = page[-1].sequence


async def iter_pages(fetch: Callable[..., Awaitable[list[str]]]) -> AsyncIterator[list[str]]:
    """Yields sorted names in pages; ``fetch(after=, limit=)`` returns one page."""
    after = ""
    while page := await fetch(after=after, limit=AT_ONCE):
        yield page
        after = page[-1]


async def list_all(fetch: Callable[..., Awaitable[list[ItemT]]]) -> list[ItemT]:
    """Returns all items from one call of ``fetch(limit=)``: pages could skip items that move."""
    limit = AT_ONCE
    while len(items := await fetch(limit=limit)) >= limit:
        limit *= 2
    return items


async def read_rows(ledger: Ledger, task_ids: Sequence[str]) -> tuple[list[TaskRow], set[str]]:
    """Returns the rows of these tasks that exist, and the ids of damaged rows.

    Raises:
        BackendUnavailable: the ledger cannot be reached.
    """
    rows: list[TaskRow] = []
    unreadable: set[str] = set()
    for start in range(0, len(task_ids), AT_ONCE):
        ids = task_ids[start : start + AT_ONCE]
        try:
            rows += await ledger.get_tasks(ids)
        except BackendUnavailable:
            raise
        except Exception:  # one of these rows is damaged; reading each shows which
            logger.exception("rows.read_failed")
            for task_id in ids:
                unreadable.add(task_id)
                with log_and_continue(logger, "row.read_failed", task_id=task_id):
                    row = await ledger.get_task(task_id)
                    unreadable.discard(task_id)
                    rows += [row] if row is not None else []
    return rows, unreadable
