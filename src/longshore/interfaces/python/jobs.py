"""A submitted job: wait, results, output, events, cancel, resume.

What it returns are plain dataclasses that stay valid after the client is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from longshore.core.events.event import Event
from longshore.core.ids import task_id_of
from longshore.core.jobs.graph import Graph
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.core.text.durations import parse_duration
from longshore.errors import CommandRefused, TaskCancelledError, TaskFailedError, UsageError
from longshore.interfaces.python.calls import Call, PreparedJob
from longshore.services import documents as d
from longshore.services.app import POLL_INTERVAL, Application
from longshore.services.followers import follow_events, job_feed
from longshore.services.reads import get_job_of, get_task_of
from longshore.services.worker.group import WorkerGroup
from longshore.settings import Settings

if TYPE_CHECKING:
    from longshore.interfaces.python.functions import TaskFunction
    from longshore.wiring.services import Services

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")
AnyT = TypeVar("AnyT")

Timeout = str | float | timedelta | None
"""How long to wait, like ``5m``, a timedelta, or seconds; None: for ever."""

_FIRST_POLL = timedelta(milliseconds=5)
_MAX_POLL = timedelta(milliseconds=100)
_SHOWN_KEYS = 5


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


@dataclass(frozen=True, slots=True)
class Connection:
    """An open data folder.

    Results, dependencies and events are read as Python values; everything else goes through
    ``Application``.
    """

    services: Services
    operations: Application
    worker_group: WorkerGroup | None
    """Operations that wait fail if this worker group fails."""

    async def while_worker_runs(self, work: Awaitable[AnyT]) -> AnyT:
        """The result of ``work``; raises at once if the watched worker group fails."""
        return await (work if self.worker_group is None else self.worker_group.run_alongside(work))

    async def job(self, job_id: str) -> JobRow:
        return await get_job_of(self.services.backend.ledger, self.services.settings.tenant, job_id)

    async def tasks_of(self, job: JobRow) -> list[TaskRow]:
        """The rows of all tasks of a job, in the job's order."""
        keys = (await self.services.documents.load_graph(job)).keys
        ids = [task_id_of(job.id, key) for key in keys]
        return await self.services.backend.ledger.get_tasks(ids)


class AsyncJob(Generic[ResultT]):
    """A job of a client; usable while the client is open."""

    def __init__(
        self,
        connection: Callable[[], Connection],
        job_id: str,
        request_id: str,
        *,
        created: bool = False,
        prepared: PreparedJob | None = None,
    ) -> None:
        self.id = job_id
        self.request_id = request_id
        self.created = created  # False: the request id was submitted before
        self._connection = connection
        self._graph = None if prepared is None else prepared.graph
        self._single = prepared is not None and prepared.is_single_call

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def key_of(self, task: str | Call[Any]) -> str:
        """The key of a task in this job.

        Raises:
            UsageError: the call is not one of this job.
        """
        if isinstance(task, str):
            return task
        if self._graph is None or task not in self._graph.keys:
            raise UsageError(f"{task!r} is not a task of {self.id}")
        return self._graph.keys[task]

    @cached_property
    def _functions(self) -> Mapping[str, TaskFunction[..., Any, Any]]:
        """The function of each task, by key, if this client built the job."""
        return self._graph.tasks if self._graph else {}

    async def status(self) -> JobStatus:
        """The job and each of its tasks as they are now."""
        job = await self._row()
        return JobStatus.from_rows(job, await self._connection().tasks_of(job))

    async def _row(self) -> JobRow:
        return await self._connection().job(self.id)

    async def _task_row(self, key: str) -> TaskRow:
        services, task_id = self._connection().services, task_id_of(self.id, key)
        return await get_task_of(services.backend.ledger, services.settings.tenant, task_id)

    async def _graph_of(self, job: JobRow) -> Graph:
        return await self._connection().services.documents.load_graph(job)

    async def wait(self, timeout: Timeout = None) -> JobState:
        """Wait until the job has ended, in any state.

        Raises:
            TimeoutError: it has not ended within ``timeout``.
        """

        async def look() -> JobState | None:
            state = (await self._row()).state
            return state if state.terminal else None

        return await self._with_timeout(timeout, lambda: self._poll(look))

    async def _poll(self, look: Callable[[], Awaitable[AnyT | None]]) -> AnyT:
        """The first result of ``look`` that is not None."""
        pause = _FIRST_POLL
        while (result := await look()) is None:
            await self._connection().services.backend.clock.sleep(pause)
            pause = min(pause * 2, _MAX_POLL)
        return result

    async def _with_timeout(self, timeout: Timeout, work: Callable[[], Awaitable[AnyT]]) -> AnyT:
        limit = None if timeout is None else parse_duration(timeout).total_seconds()
        try:
            async with asyncio.timeout(limit):
                return await self._connection().while_worker_runs(work())
        except TimeoutError:
            raise TimeoutError(f"{self.id} has not ended within {timeout}") from None

    @overload
    async def result(self, *, timeout: Timeout = ...) -> ResultT: ...
    @overload
    async def result(self, task: Call[OtherT], *, timeout: Timeout = ...) -> OtherT: ...
    @overload
    async def result(self, task: str, *, timeout: Timeout = ...) -> Any: ...
    async def result(self, task: str | Call[Any] | None = None, *, timeout: Timeout = None) -> Any:
        """Wait for the job's result: that of the call, or a list for several calls.

        Args:
            task: Any task of the job, by its call or key, instead of the last one.

        Raises:
            TaskFailedError: a task failed, so there will be no result.
            TimeoutError: there is no result within ``timeout``.
        """
        return await self._with_timeout(timeout, lambda: self._result(task))

    async def _result(self, task: str | Call[Any] | None) -> Any:
        if task is not None:
            return await self._result_of(self.key_of(task))
        if self._graph is None:
            return await self._result_of(await self._final_key())
        values = [await self._result_of(self._graph.keys[call]) for call in self._graph.requested]
        return values[0] if self._single else values

    async def _final_key(self) -> str:
        graph = await self._graph_of(await self._row())
        parents = {number for numbers in graph.parents for number in numbers}
        last = [key for number, key in enumerate(graph.keys) if number not in parents]
        if len(last) > 1:
            named = ", ".join(last[:_SHOWN_KEYS]) + (" …" if len(last) > _SHOWN_KEYS else "")
            message = f"{self.id} ends in {len(last)} tasks ({named}): name one, or use results()"
            raise UsageError(message)
        return last[0]

    async def _result_of(self, key: str) -> Any:
        async def look() -> TaskRow | None:
            # The job is read first: if it has ended, a task that has not ended never will.
            over = (await self._row()).state.terminal
            row = await self._task_row(key)
            return row if over or row.state.terminal else None

        row = await self._poll(look)
        if row.state is TaskState.COMPLETED:
            value = await self._connection().services.documents.load(row.result)
            task = self._functions.get(key)
            return value if task is None else task.load_result(value)
        if not row.state.terminal:
            # The task waits behind another one that failed: report that one.
            row = await self._first_failed() or row
        raise self._error(row)

    async def _first_failed(self) -> TaskRow | None:
        """The first task that failed, or else the first that was cancelled."""
        job = await self._row()
        for number in (*job.failed, *job.cancelled):
            return await self._task_row((await self._graph_of(job)).keys[number])
        return None

    def _error(self, row: TaskRow) -> TaskFailedError:
        folder = self._connection().services.settings.data_dir
        elsewhere = f" --data-dir {folder}" if folder != Settings().data_dir else ""
        see = f"longshore logs {row.id}{elsewhere}"
        if row.state is TaskState.CANCELLED:
            message = f"cancelled by {row.cancel.by if row.cancel else 'user'}"
            return TaskCancelledError(row.id, "cancelled", message, see)
        category = row.failure.category.value if row.failure else "unknown"
        return TaskFailedError(
            row.id, category, row.failure.message if row.failure else "failed", see
        )

    async def results(self, timeout: Timeout = None) -> dict[str, Any]:
        """The results of all tasks by their keys, when the job has ended.

        Raises:
            TaskFailedError: the job has not completed; it names the first task that failed.
            TimeoutError: the job has not ended within ``timeout``.
        """
        if await self.wait(timeout) is not JobState.COMPLETED:
            failed = await self._first_failed()
            if failed is not None:
                raise self._error(failed)
        graph = await self._graph_of(await self._row())
        return {key: await self._result_of(key) for key in graph.keys}

    async def output(
        self, task: str | Call[Any] | None = None, *, follow: bool = True
    ) -> AsyncIterator[JobOutputChunk]:
        """The output of the tasks, or of one, so far, and then new output until the job ends.

        Args:
            follow: False: only the output so far.
        """
        key = None if task is None else self.key_of(task)
        connection = self._connection()
        stream = await connection.operations.follow_job_output(self.id, follow=follow)
        async with contextlib.aclosing(cast("AsyncGenerator[d.StreamItem]", stream)) as items:
            while (item := await connection.while_worker_runs(anext(items, None))) is not None:
                chunk = item.data
                if isinstance(chunk, d.OutputChunkDocument) and key in (None, chunk.task_id):
                    yield JobOutputChunk.from_document(chunk)

    async def events(self, *, follow: bool = False) -> AsyncIterator[Event]:
        """The events of the job and its tasks, in the order of recording.

        Args:
            follow: Continue with new events until the job has ended.
        """
        connection, job = self._connection(), await self._row()
        backend = connection.services.backend
        feed = job_feed(backend, job, tasks=True)
        stream = follow_events(feed, follow=follow, clock=backend.clock, poll=POLL_INTERVAL)
        while isinstance(item := await connection.while_worker_runs(anext(stream)), tuple):
            yield item[1]

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel the job: waiting tasks at once, running tasks as soon as they are stopped.

        Raises:
            CommandRefused: the job has ended.
        """
        await self._connection().operations.cancel_job(self.id, reason=reason)

    async def resume(self, *tasks: str | Call[Any]) -> list[str]:
        """Run tasks that failed or were cancelled again, all of them if none is named.

        Completed tasks do not run again. Returns the keys of those that run again.

        Raises:
            CommandRefused: none of them can be resumed.
        """
        keys = [self.key_of(task) for task in tasks]
        resumed = await self._connection().operations.resume(self.id, keys or None)
        if not resumed.tasks:
            raise CommandRefused(self.id, "; ".join(dict.fromkeys(resumed.refused.values())))
        return resumed.tasks
