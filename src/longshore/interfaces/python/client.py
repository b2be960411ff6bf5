"""``longshore.AsyncClient``: submit jobs and follow them.

A client runs no tasks, unless it is opened with ``worker=True``. A job is on disk when ``submit``
returns, and continues without the client.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast, overload

from longshore.errors import LongshoreError, UsageError
from longshore.interfaces.python.calls import (
    Call,
    JobOptions,
    SubmitOptions,
    Submittable,
    prepare_job,
)
from longshore.interfaces.python.jobs import AsyncJob, Connection
from longshore.services.app import Caller
from longshore.services.submit import Submission
from longshore.services.worker.group import WorkerGroup
from longshore.settings import load_settings

ResultT = TypeVar("ResultT")


class AsyncClient:
    """Submits jobs to a data folder and follows them; open inside its ``with`` block.

    Args:
        data_dir: The folder; default: as for the command line.
        worker: Also run a worker in this process, for the queues of the settings.
        settings: Values by name, such as ``{"worker.concurrency": 8}``; they override all others.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        worker: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        flags = dict(settings or {})
        if data_dir is not None:
            flags["data_dir"] = str(data_dir)
        self._settings = load_settings(flags)
        self._runs_worker = worker
        self._stack = contextlib.AsyncExitStack()
        self._open_connection: Connection | None = None

    async def __aenter__(self) -> Self:
        from longshore.wiring.services import open_services

        async with contextlib.AsyncExitStack() as stack:
            services = await stack.enter_async_context(open_services(self._settings))
            worker_group = services.worker_group() if self._runs_worker else None
            if worker_group is not None:
                await stack.enter_async_context(worker_group)
            caller = Caller(tenant=services.settings.tenant, name="user")
            operations = services.application(caller)
            self._open_connection = Connection(services, operations, worker_group)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        worker_group = self.connection().worker_group
        if worker_group is not None and not isinstance(error, Exception | None):
            # The program is being stopped: release running attempts to other workers now.
            worker_group.stop_now()
        self._open_connection = None
        await self._stack.aclose()

    def connection(self) -> Connection:
        """The open data folder.

        Raises:
            UsageError: the client is not open.
        """
        if self._open_connection is None:
            message = "the client is not open: use it as `with longshore.Client() as client:`"
            raise UsageError(message)
        return self._open_connection

    @property
    def is_blocking(self) -> bool:
        """Whether ``submit`` can run without an event loop."""
        connection = self._open_connection
        return connection is not None and connection.services.backend.blocking

    @overload
    async def submit(
        self, work: Call[ResultT], **options: Unpack[SubmitOptions]
    ) -> AsyncJob[ResultT]: ...
    @overload
    async def submit(
        self, work: Sequence[Call[ResultT]], **options: Unpack[SubmitOptions]
    ) -> AsyncJob[list[ResultT]]: ...
    @overload
    async def submit(
        self, work: Mapping[str, Any], **options: Unpack[SubmitOptions]
    ) -> AsyncJob[Any]: ...
    async def submit(self, work: Submittable, **options: Unpack[SubmitOptions]) -> AsyncJob[Any]:
        """Submit a job: a call with its dependencies, several calls, or a document.

        A document has the form of a job file: ``{"tasks": […], "definitions": […]}``.

        Args:
            options: ``request_id`` (the same id always gives the same job; default: a new
                one), ``name``, ``queue``, ``priority`` and ``max_attempts`` for tasks that do
                not set their own, ``delay`` (like ``5m``, or seconds) or ``run_at``.

        Raises:
            InvalidJob: the job is not valid; every problem is listed.
            AlreadyExists: the request id belongs to another job.
            UsageError: a worker could not find a function, or an option is not valid.
        """
        request_id = options.pop("request_id", None)
        others = cast("JobOptions", options)
        (job,) = await self.submit_many([work], request_ids=[request_id], **others)
        return job

    async def submit_many(
        self,
        submissions: Iterable[Submittable],
        *,
        request_ids: Sequence[str | None] | None = None,
        **options: Unpack[JobOptions],
    ) -> list[AsyncJob[Any]]:
        """Submit many jobs with the same options, many in one transaction.

        All are checked before the first is submitted. If one is refused after that, the others are
        accepted, and its error is raised. The same request ids give the same jobs, so the call can
        be repeated.
        """
        ready = [prepare_job(work, options) for work in submissions]
        ids = [None] * len(ready) if request_ids is None else request_ids
        if len(ids) != len(ready):
            raise UsageError(f"{len(ready)} jobs need as many request ids, not {len(ids)}")
        pairs = zip(ready, ids, strict=True)
        files = [Submission(job.document, id_, job.definitions) for job, id_ in pairs]
        answers = await self.connection().operations.submit_many(files)
        for answer in answers:
            if isinstance(answer, LongshoreError):
                raise answer
        return [
            AsyncJob(
                self.connection, item.job_id, item.request_id, created=item.created, prepared=job
            )
            for job, item in zip(ready, answers, strict=True)
            if not isinstance(item, LongshoreError)
        ]

    async def job(self, job_id: str) -> AsyncJob[Any]:
        """A job that was submitted before, by any client; its results are plain JSON.

        Raises:
            NotFound: there is no such job.
        """
        row = await self.connection().job(job_id)
        return AsyncJob(self.connection, job_id, row.spec.request_id)

    @contextlib.asynccontextmanager
    async def work_on(self, job: AsyncJob[Any]) -> AsyncIterator[WorkerGroup]:
        """Run a worker for the queues of a job inside the ``with`` block."""
        connection = self.connection()
        tasks = await connection.tasks_of(await connection.job(job.id))
        queues = dict.fromkeys(task.spec.queue for task in tasks)
        async with connection.services.worker_group(tuple(queues)) as worker_group:
            yield worker_group
