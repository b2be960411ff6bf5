"""The data folder as the Python client uses it, and the values that it returns.

The values are plain dataclasses that stay valid after the client is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from longshore.core.events.event import Event
from longshore.core.ids import task_id_of
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import BackendUnavailable, CommandRefused
from longshore.services import documents as d
from longshore.services.app import POLL_INTERVAL, Application, Caller
from longshore.services.queries import FeedCursor
from longshore.services.worker.group import WorkerGroup
from longshore.settings import Settings, load

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """A task's status; ``value`` is its result as JSON if it has completed."""

    status: TaskStatus
    cancelled_by: str | None = None
    value: Any = None


def client_settings(data_dir: str | Path | None, flags: Mapping[str, Any] | None) -> Settings:
    """The settings of a client, from the same sources as those of the command line."""
    values = dict(flags or {})
    if data_dir is not None:
        values["data_dir"] = str(data_dir)
    return load(values).settings


@contextlib.asynccontextmanager
async def open_connection(settings: Settings) -> AsyncIterator[Connection]:
    """The data folder; it is created if it does not exist."""
    from longshore.wiring.services import open_services

    async with contextlib.AsyncExitStack() as stack:
        try:
            services = await stack.enter_async_context(open_services(settings))
        except OSError as error:
            folder = str(settings.data_dir.absolute())
            message = f"the data folder {folder!r} cannot be used: {error.strerror}"
            raise BackendUnavailable(message) from error
        caller = Caller(tenant=settings.tenant, name=_USER)
        yield Connection(services, Application(services, caller))


class Connection:
    """The operations of a data folder, with values that the Python client shows.

    Results, dependencies and events are read as Python values; everything else goes through
    ``Application``.
    """

    def __init__(self, services: Services, operations: Application) -> None:
        self.services = services
        self.operations = operations
        self._queries = services.queries
        self._tenant = services.settings.tenant
        self._worker_group: WorkerGroup | None = None

    def watch_worker_group(self, worker_group: WorkerGroup) -> None:
        """Let waiting operations fail if this worker group fails."""
        self._worker_group = worker_group

    async def while_worker_runs(self, work: Awaitable[AnyT]) -> AnyT:
        """The result of ``work``; raises at once if the watched worker group fails."""
        return await (
            work if self._worker_group is None else self._worker_group.run_alongside(work)
        )

    async def job(self, job_id: str) -> JobRow:
        return await self._queries.job(self._tenant, job_id)

    async def status(self, job_id: str) -> JobStatus:
        """A job and each of its tasks."""
        job = await self.job(job_id)
        return JobStatus.from_rows(job, await self._queries.tasks_of(job))

    async def queues(self, job_id: str) -> tuple[str, ...]:
        """The queues of a job's tasks."""
        tasks = await self._queries.tasks_of(await self.job(job_id))
        return tuple(dict.fromkeys(task.spec.queue for task in tasks))

    async def outcome(self, job_id: str, key: str) -> TaskOutcome:
        """The state of a task, and its result if it has completed."""
        row = await self._queries.task(self._tenant, task_id_of(job_id, key))
        value = None
        if row.state is TaskState.COMPLETED:
            value = await self.services.documents.load(row.result)
        by = row.cancel.by if row.cancel else None
        return TaskOutcome(status=TaskStatus.from_row(row), cancelled_by=by, value=value)

    async def task_keys(self, job_id: str) -> dict[str, bool]:
        """The keys of a job's tasks, each with whether another task depends on it."""
        graph = await self._queries.graph(await self.job(job_id))
        parents = {number for numbers in graph.parents for number in numbers}
        return {key: number in parents for number, key in enumerate(graph.keys)}

    async def first_failed_key(self, job_id: str) -> str | None:
        """The key of the first task that failed, or else of the first that was cancelled."""
        job = await self.job(job_id)
        graph = await self._queries.graph(job)
        return next((graph.keys[number] for number in (*job.failed, *job.cancelled)), None)

    async def output(
        self, job_id: str, *, key: str | None, follow: bool
    ) -> AsyncIterator[JobOutputChunk]:
        """The output of a job's tasks, or of one; with ``follow`` until the job ends."""
        stream = await self.operations.follow_job_output(job_id, follow=follow)
        async with contextlib.aclosing(cast("AsyncGenerator[d.StreamItem]", stream)) as items:
            while (item := await self.while_worker_runs(anext(items, None))) is not None:
                chunk = item.data
                if isinstance(chunk, d.OutputChunkDocument) and key in (None, chunk.task_id):
                    yield JobOutputChunk.from_document(chunk)

    async def events(self, job_id: str, *, follow: bool) -> AsyncIterator[Event]:
        """The events of a job and its tasks; with ``follow`` until the job ends."""
        job = await self.job(job_id)
        stream = self._queries.follow_job(
            job,
            self._queries.job_feed(job, tasks=True),
            FeedCursor(),
            follow=follow,
            poll=POLL_INTERVAL,
        )
        while isinstance(item := await self.while_worker_runs(anext(stream)), tuple):
            yield item[1]

    async def resume(self, job_id: str, keys: Sequence[str]) -> list[str]:
        """Run tasks again, all that failed or were cancelled if none is named.

        Raises:
            CommandRefused: none of them can run again.
        """
        resumed = await self.operations.resume(job_id, keys or None)
        if not resumed.tasks:
            raise CommandRefused(job_id, "; ".join(dict.fromkeys(resumed.refused.values())))
        return resumed.tasks

    def command_hint(self, name: str, subject: str) -> str:
        """A command line that shows more about a job or task of this data folder."""
        folder = self.services.settings.data_dir
        elsewhere = folder != Settings().data_dir
        return f"longshore {name} {subject}" + (f" --data-dir {folder}" if elsewhere else "")
