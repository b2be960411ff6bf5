"""Retention in memory: the reference for what can be removed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from longshore.core.documents import job_blob_prefixes
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.testing.memory.keyed_stores import MemoryBlobStore
from longshore.testing.memory.ledger import MemoryStore
from longshore.testing.memory.logs import MemoryOutputLog

_ALL = 2**62


class MemoryRetention:
    """See ``ports.retention.Retention``."""

    def __init__(self, store: MemoryStore, output: MemoryOutputLog, blobs: MemoryBlobStore) -> None:
        self._store = store
        self._output = output
        self._blobs = blobs
        self._with_blobs: dict[str, None] = {}  # removed jobs whose blobs may be there
        self.paused = False  # by a backup, which copies blobs after rows

    async def ended_jobs(
        self, *, ended_by: datetime, limit: int, tenant: str | None = None
    ) -> list[str]:
        ended = (
            row.id
            for row in self._store.jobs.values()
            if tenant in (None, row.spec.tenant) and self._has_ended(row, ended_by)
        )
        return sorted(ended)[:limit]

    def _has_ended(self, job: JobRow, ended_by: datetime) -> bool:
        return (
            job.updated_at <= ended_by
            and job.state is not JobState.RUNNING
            and not (job.intents or job.end_unreported)
            and all(
                row.state is TaskState.WAITING
                or (row.state.terminal and row.spec.number in job.ended)
                for row in self._tasks_of(job)
            )
        )

    def _tasks_of(self, job: JobRow) -> list[TaskRow]:
        return [row for row in self._store.tasks.values() if row.spec.job_id == job.id]

    async def remove_jobs(
        self, job_ids: Sequence[str], *, ended_by: datetime, remember_until: datetime
    ) -> list[str]:
        jobs = [self._store.jobs[job_id] for job_id in job_ids if job_id in self._store.jobs]
        ended = [job for job in jobs if self._has_ended(job, ended_by)]
        for job in ended:
            rows = self._tasks_of(job)
            self._store.remove(job, rows)
            self._output.remove(row.id for row in rows)
            self._store.removed[job.id] = remember_until
            self._with_blobs[job.id] = None
        return [job.id for job in ended]

    async def remove_remains(self, *, now: datetime, limit: int) -> int:
        if self.paused:
            return 0
        expired = [job_id for job_id, until in self._store.removed.items() if until <= now]
        due = list(self._with_blobs | dict.fromkeys(expired))[:limit]
        for job_id in due:
            for prefix in job_blob_prefixes(job_id):
                for key in await self._blobs.list_keys(prefix, limit=_ALL):
                    await self._blobs.delete(key)
            self._with_blobs.pop(job_id, None)
            if self._store.removed[job_id] <= now:
                del self._store.removed[job_id]
        return len(due)

    async def remove_other_events(self, *, before: datetime, limit: int) -> int:
        return self._store.remove_other_events(before, limit)

    async def is_removed(self, job_id: str) -> bool:
        return job_id in self._store.removed
