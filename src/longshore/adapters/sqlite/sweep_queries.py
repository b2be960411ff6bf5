"""What nobody took note of: the sweeper's questions that need a job and its tasks together.

Bit sets are not for SQL: jobs that may have something to be found are found by an index, and looked
at here one by one. Each look is short, because the reading thread has others to serve; so of very
many running jobs, of which none may have anything, only some are passed over in one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.core.ids import split_task_id
from longshore.core.jobs.numbers import NumberSet

_JOBS_PER_PAGE = 64
_JOBS_PER_SCAN = 1_000
_TASKS_PER_PAGE = 500
_AFTER_ALL_IDS = "\U0010ffff"

# The first job that is left to the next look.
_NEXT_SCAN_START = (
    "SELECT id FROM jobs WHERE state = 'running' AND id >= ? ORDER BY id LIMIT 1 OFFSET ?"
)

# A job knows of all ends if it counts as many as there are.
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


async def unrecorded_ends(
    database: Database, *, ended_by_us: int, limit: int, after: str
) -> list[str]:
    """See ``ports.ledger.Ledger``."""
    found: list[str] = []
    async for job_id, body, mark in _jobs(database, _JOBS_WITH_ENDS, after):
        known = codec.job_from_json(body).ended
        ends = await database.scan(_ENDS, (job_id, ended_by_us, mark))
        found += [task_id for task_id, number in ends if number not in known]
        if len(found) >= limit:
            break
    return found[:limit]


async def unnotified_dependents(database: Database, *, limit: int, after: str) -> list[str]:
    """See ``ports.ledger.Ledger``."""
    found: list[str] = []
    async for job_id, text, mark in _jobs(database, _JOBS_WITH_WAITING_TASKS, after):
        completed = NumberSet.from_text(text)
        while completed and len(found) < limit:
            waiters = await database.scan(_WAITING_TASKS, (job_id, mark, _TASKS_PER_PAGE))
            found += [one for one, awaits in waiters if NumberSet.from_text(awaits) & completed]
            if len(waiters) < _TASKS_PER_PAGE:
                break
            mark = waiters[-1][0]
        if len(found) >= limit:
            break
    return found[:limit]


async def _jobs(database: Database, sql: str, after: str) -> AsyncIterator[tuple[str, str, str]]:
    """Each job with what was asked of it, and the task after which to look."""
    first = begun = split_task_id(after)[0]
    while first != _AFTER_ALL_IDS:
        beyond = await database.scan(_NEXT_SCAN_START, (first, _JOBS_PER_SCAN))
        end = beyond[0][0] if beyond else _AFTER_ALL_IDS
        page = await database.scan(sql, (first, end, _JOBS_PER_PAGE + 1))
        for job_id, asked in page[:_JOBS_PER_PAGE]:
            yield job_id, asked, after if job_id == begun else ""
        first = page[-1][0] if len(page) > _JOBS_PER_PAGE else end
