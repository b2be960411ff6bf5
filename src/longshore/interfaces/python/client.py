"""``longshore.AsyncClient``: submit jobs, and see what becomes of them.

A client accepts and asks; it runs nothing, unless it is told to work as well. Jobs are on disk when
``submit`` returns, and go on without the client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast, overload

from longshore.errors import UsageError
from longshore.interfaces.python.calls import Call
from longshore.interfaces.python.embedded import Embedded, opened, settings_for
from longshore.interfaces.python.jobs import AsyncJob
from longshore.interfaces.python.submitting import (
    JobOptions,
    Prepared,
    SubmitOptions,
    Submittable,
    prepared,
)
from longshore.services.crew import Crew

ResultT = TypeVar("ResultT")


class AsyncClient:
    """A door to the jobs in a data folder; open while it is entered.

    Args:
        data_dir: The folder; else what the settings say, as for the command line.
        worker: Also work in this process, on the queues that the settings name.
        settings: By name, such as ``{"worker.concurrency": 8}``; they come before all others.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        worker: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings_for(data_dir, settings)
        self._works = worker
        self._stack = contextlib.AsyncExitStack()
        self._opened: Embedded | None = None
        self._crew: Crew | None = None

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            self._opened = await stack.enter_async_context(opened(self._settings))
            if self._works:
                self._crew = await stack.enter_async_context(self._opened.crew())
                self._opened.rely_on(self._crew)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._crew is not None and error is not None and not isinstance(error, Exception):
            # Somebody wants this program to end now: what runs goes back to the others.
            self._crew.stop_at_once()
        self._opened = self._crew = None
        await self._stack.aclose()

    def door(self) -> Embedded:
        """What answers this client and its jobs.

        Raises:
            UsageError: the client is not open.
        """
        if self._opened is None:
            message = "the client is not open: use it as `with longshore.Client() as client:`"
            raise UsageError(message)
        return self._opened

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
        """Accept a job: a call with all that it needs, several calls, or a document.

        A document is what a job file has: ``{"tasks": […], "definitions": […]}``.

        Args:
            options: ``request_id`` (the same id gives the same job, however often; else a new one
                is made), ``name``, ``queue``, ``priority`` and ``max_attempts`` for tasks that do
                not say it themselves, ``delay`` (like ``5m``, or seconds) or ``run_at``.

        Raises:
            InvalidJob: it cannot be accepted; every problem is listed.
            AlreadyExists: the request id belongs to another job.
            UsageError: a worker could not find a function, or an option cannot be meant.
        """
        request_id = options.pop("request_id", None)
        return await self._send(prepared(work, options), request_id)

    async def submit_many(
        self,
        works: Iterable[Submittable],
        *,
        request_ids: Sequence[str] | None = None,
        **options: Unpack[JobOptions],
    ) -> list[AsyncJob[Any]]:
        """Accept many jobs, quicker than one by one; the same options for all.

        All are checked before any is sent. Each is a job of its own: if one is refused after that,
        the others are accepted all the same, and its error is raised.
        """
        ready = [prepared(work, options) for work in works]
        ids: Sequence[str | None] = [None] * len(ready) if request_ids is None else request_ids
        if len(ids) != len(ready):
            message = f"{len(ready)} jobs need as many request ids, not {len(ids)}"
            raise UsageError(message)
        sent = [self._send(one, id_) for one, id_ in zip(ready, ids, strict=True)]
        # Together, so that their commits share an fsync.
        jobs = await asyncio.gather(*sent, return_exceptions=True)
        for job in jobs:
            if isinstance(job, BaseException):
                raise job
        return cast("list[AsyncJob[Any]]", jobs)

    async def _send(self, ready: Prepared, request_id: str | None) -> AsyncJob[Any]:
        accepted = await self.door().submit(ready.document, ready.definitions, request_id)
        return AsyncJob(self.door, accepted, ready.graph, single=ready.single)

    async def job(self, job_id: str) -> AsyncJob[Any]:
        """A job that was submitted before, by anybody; its results are plain JSON.

        Raises:
            NotFound: there is none.
        """
        return AsyncJob(self.door, await self.door().submitted(job_id))

    @contextlib.asynccontextmanager
    async def working_on(self, job: AsyncJob[Any]) -> AsyncIterator[Crew]:
        """Work on the queues of a job while this is entered."""
        async with self.door().crew(await self.door().queues(job.id)) as crew:
            yield crew
