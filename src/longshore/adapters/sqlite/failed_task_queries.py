"""What failed for good: the health check's questions, each answered from the edge of one index.

However many tasks have failed in the course of the years, no more of them are looked at than are
asked for.
"""

from __future__ import annotations

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.core.tasks.error_categories import ErrorCategory
from longshore.ports.ledger import FailedTask

# A body that is damaged is no reason not to tell that its task failed. The index is named because
# SQLite, left alone, may take one that holds tasks of every state.
_FAILED = (
    "SELECT id, queue, iif(json_valid(body), body ->> '$.failure.category', NULL),"
    " coalesce(finished_us, 0) FROM tasks INDEXED BY tasks_failed"
    " WHERE tenant = ? AND state = 'failed' ORDER BY finished_us DESC, id DESC LIMIT ?"
)
# From one tenant to the next, past all of its tasks at once.
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


async def failed_tasks(database: Database, tenant: str, *, limit: int) -> list[FailedTask]:
    """See ``ports.ledger.Ledger``."""
    return [
        FailedTask(
            task_id=task_id,
            queue=queue,
            category=ErrorCategory(category) if category in _CATEGORIES else None,
            failed_at=codec.from_us(finished_us),
        )
        for task_id, queue, category, finished_us in await database.scan(_FAILED, (tenant, limit))
    ]


async def failed_tenants(database: Database, *, limit: int, after: str) -> list[str]:
    """See ``ports.ledger.Ledger``."""
    return [tenant for (tenant,) in await database.scan(_TENANTS, (after, limit))]
