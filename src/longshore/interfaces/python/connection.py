"""The data folder as the Python client uses it, and the values that it returns.

The values are plain dataclasses that stay valid after the client is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from longshore.core.ids import task_id_of
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.services import documents as d
from longshore.services.app import Application, Caller
from longshore.services.reads import get_job_of
from longshore.services.worker.group import WorkerGroup
from longshore.settings import Settings

if TYPE_CHECKING:
    from longshore.wiring.services import Services

AnyT = TypeVar("AnyT")

_USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """A task at one moment."""

    id: str
    key: str
    state: TaskState
    attempt: int  # 0: none yet
    max_attempts: int
    error: str | None  # of the latest attempt that failed
    category: str | None

    @classmethod
    def from_row(cls, row: TaskRow) -> TaskStatus:
        return cls(
            id=row.id,
            key=row.spec.key,
            state=row.state,
            attempt=row.attempt,
            max_attempts=row.spec.retry.max_attempts,
            error=row.failure.message if row.failure else None,
            category=row.failure.category.value if row.failure else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job at one moment, with its tasks by key."""

    id: str
    name: str | None
    state: JobState
    round: int
    total: int
    completed: int
    failed: int
    cancelled: int
    blocked: int  # behind a task that failed or was cancelled
    created_at: datetime
    finished_at: datetime | None
    tasks: Mapping[str, TaskStatus]

    @classmethod
    def from_rows(cls, row: JobRow, tasks: list[TaskRow]) -> JobStatus:
        return cls(
            id=row.id,
            name=row.spec.name,
            state=row.state,
            round=row.round,
            total=row.total,
            completed=len(row.completed),
            failed=len(row.failed),
            cancelled=len(row.cancelled),
            blocked=len(row.blocked),
            created_at=row.spec.created_at,
            finished_at=row.finished_at,
            tasks={task.spec.key: TaskStatus.from_row(task) for task in tasks},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutputChunk:
    """A chunk of a task's output; it may end in the middle of a line."""

    key: str
    attempt: int
    stream: d.Stream
    data: bytes
    at: datetime

    @classmethod
    def from_document(cls, document: d.OutputChunkDocument) -> JobOutputChunk:
        return cls(
            key=document.task_id,
            attempt=document.attempt,
            stream=document.stream,
            data=document.data,
            at=datetime.fromisoformat(document.at),
        )

    @property
    def text(self) -> str:
        """The chunk as text; invalid bytes are replaced."""
        return self.data.decode(errors="replace")


@contextlib.asynccontextmanager
async def open_connection(settings: Settings) -> AsyncIterator[Connection]:
    """The data folder; it is created if it does not exist."""
    from longshore.wiring.services import open_services

    async with open_services(settings) as services:
        caller = Caller(tenant=settings.tenant, name=_USER)
        yield Connection(services, Application(services, caller), settings.tenant)


@dataclass(slots=True)
class Connection:
    """An open data folder.

    Results, dependencies and events are read as Python values; everything else goes through
    ``Application``.
    """

    services: Services
    operations: Application
    tenant: str
    worker_group: WorkerGroup | None = None
    """Operations that wait fail if this worker group fails."""

    async def while_worker_runs(self, work: Awaitable[AnyT]) -> AnyT:
        """The result of ``work``; raises at once if the watched worker group fails."""
        return await (work if self.worker_group is None else self.worker_group.run_alongside(work))

    async def job(self, job_id: str) -> JobRow:
        return await get_job_of(self.services.backend.ledger, self.tenant, job_id)

    async def tasks_of(self, job: JobRow) -> list[TaskRow]:
        """The rows of all tasks of a job, in the job's order."""
        keys = (await self.services.documents.load_graph(job)).keys
        ids = [task_id_of(job.id, key) for key in keys]
        return await self.services.backend.ledger.get_tasks(ids)
