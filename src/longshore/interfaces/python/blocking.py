"""``longshore.Client`` and ``longshore.run``: the client for programs without an event loop.

A submit runs on the caller's thread, without an event loop: it reads, checks, and commits there.
Every other call runs on an event loop in a thread of its own, and the caller waits for it. The
client can be used from any thread, also where an event loop runs already, which it then blocks.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from longshore.core.events.event import Event
from longshore.core.tasks.states import JobState
from longshore.errors import UsageError
from longshore.interfaces.python.calls import (
    Call,
    JobOptions,
    RunOptions,
    SubmitOptions,
    Submittable,
)
from longshore.interfaces.python.client import AsyncClient
from longshore.interfaces.python.jobs import AsyncJob, JobOutputChunk, JobStatus, Timeout
from longshore.services.resilience import run_without_loop

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")
AnyT = TypeVar("AnyT")

_EXHAUSTED: Any = object()
_inherited: list[Any] = []
"""What a process that was forked must not close."""


class Portal:
    """Runs coroutines on an event loop in its own thread, inside one context manager."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: set[asyncio.Task[Any] | None] = set()
        self._process_id = 0  # of the process in which it is open
        self._exit_request: asyncio.Future[BaseException | None]
        self._ended: Future[None]

    def open(self, entered: AbstractAsyncContextManager[Any]) -> None:
        """Start the loop and enter the context manager there."""
        if self._loop is not None:
            raise UsageError("the client is open already")
        self._process_id = os.getpid()
        self._ended = Future()
        ready: Future[None] = Future()
        threading.Thread(
            target=self._run,
            args=(entered, ready),
            name="longshore-client",
            # A program that does not close the client must still be able to exit.
            daemon=True,
        ).start()
        ready.result()

    def _run(self, entered: AbstractAsyncContextManager[Any], ready: Future[None]) -> None:
        async def main() -> None:
            # One task enters and exits: task groups and cancel scopes require it.
            await entered.__aenter__()
            self._exit_request = asyncio.get_running_loop().create_future()
            self._loop = asyncio.get_running_loop()
            ready.set_result(None)
            error = await self._exit_request
            # The task of an interrupted caller may still be ending, and needs the client.
            await asyncio.gather(*filter(None, self._calls), return_exceptions=True)
            trace = error.__traceback__ if error else None
            await entered.__aexit__(type(error) if error else None, error, trace)

        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            (self._ended if ready.done() else ready).set_exception(error)
        else:
            self._ended.set_result(None)

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked since it was opened, and so has no loop."""
        return self._loop is not None and self._process_id != os.getpid()

    def call(self, work: Coroutine[Any, Any, AnyT]) -> AnyT:
        """Run a coroutine on the loop and wait for its result."""
        if self.is_inherited:
            work.close()
            message = "the job belongs to the parent of this process: use `client.job(id)` here"
            raise UsageError(message)
        if self._loop is None:
            work.close()
            message = "the client is not open: use it as `with longshore.Client() as client:`"
            raise UsageError(message)
        future = asyncio.run_coroutine_threadsafe(self._tracked(work), self._loop)
        try:
            return future.result()
        finally:
            # If this wait was interrupted, the result is not needed any more.
            future.cancel()

    async def _tracked(self, work: Coroutine[Any, Any, AnyT]) -> AnyT:
        call = asyncio.current_task()
        self._calls.add(call)
        try:
            return await work
        finally:
            self._calls.discard(call)

    def iterate(self, source: AsyncIterator[AnyT]) -> Iterator[AnyT]:
        """The items of an asynchronous iterator, which is closed at the end."""

        async def next_item() -> AnyT:
            return await anext(source, _EXHAUSTED)

        async def close() -> None:
            if hasattr(source, "aclose"):
                await source.aclose()

        try:
            while (item := self.call(next_item())) is not _EXHAUSTED:
                yield item
        finally:
            self.call(close())

    def close(self, error: BaseException | None = None) -> None:
        """Exit the context manager with ``error`` and end the loop."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._exit_request.set_result, error)
            self._ended.result()


class Client:
    """Submits jobs to a data folder and follows them: the blocking form of ``AsyncClient``.

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
        self._new_client = partial(AsyncClient, data_dir, worker=worker, settings=settings)
        self._client = self._new_client()
        self._portal = Portal()

    def __enter__(self) -> Self:
        self._portal.open(self._client)
        return self

    def _current_portal(self) -> Portal:
        """The portal of this process; a process that was forked opens the folder again."""
        if self._portal.is_inherited:
            # Never closed: the connections to the database are the parent's.
            _inherited.append((self._client, self._portal))
            self._client, self._portal = self._new_client(), Portal()
            self._portal.open(self._client)
        return self._portal

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._portal.is_inherited:
            self._portal.close(error)

    @overload
    def submit(self, work: Call[ResultT], **options: Unpack[SubmitOptions]) -> Job[ResultT]: ...
    @overload
    def submit(
        self, work: Sequence[Call[ResultT]], **options: Unpack[SubmitOptions]
    ) -> Job[list[ResultT]]: ...
    @overload
    def submit(self, work: Mapping[str, Any], **options: Unpack[SubmitOptions]) -> Job[Any]: ...
    def submit(self, work: Any, **options: Unpack[SubmitOptions]) -> Job[Any]:
        """Accept a job; see ``AsyncClient.submit``."""
        portal = self._current_portal()
        return Job(portal, self._run(self._client.submit(work, **options)))

    def submit_many(
        self,
        submissions: Iterable[Submittable],
        *,
        request_ids: Sequence[str] | None = None,
        **options: Unpack[JobOptions],
    ) -> list[Job[Any]]:
        """Accept many jobs; see ``AsyncClient.submit_many``."""
        portal = self._current_portal()
        sent = self._client.submit_many(submissions, request_ids=request_ids, **options)
        return [Job(portal, job) for job in self._run(sent)]

    def _run(self, work: Coroutine[Any, Any, AnyT]) -> AnyT:
        return run_without_loop(work) if self._client.is_blocking else self._portal.call(work)

    def job(self, job_id: str) -> Job[Any]:
        """A job that was submitted before; see ``AsyncClient.job``."""
        portal = self._current_portal()
        return Job(portal, portal.call(self._client.job(job_id)))


class Job(Generic[ResultT]):
    """A submitted job; see ``AsyncJob``, whose methods these are."""

    def __init__(self, portal: Portal, job: AsyncJob[ResultT]) -> None:
        self.id = job.id
        self.request_id = job.request_id
        self.created = job.created  # False: the same request had been accepted before
        self._portal = portal
        self._job = job

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def key_of(self, task: str | Call[Any]) -> str:
        """The key of a task in this job."""
        return self._job.key_of(task)

    def status(self) -> JobStatus:
        """The job and each of its tasks as they are now."""
        return self._portal.call(self._job.status())

    def wait(self, timeout: Timeout = None) -> JobState:
        """Wait until the job has ended; raises TimeoutError after ``timeout``."""
        return self._portal.call(self._job.wait(timeout))

    @overload
    def result(self, *, timeout: Timeout = ...) -> ResultT: ...
    @overload
    def result(self, task: Call[OtherT], *, timeout: Timeout = ...) -> OtherT: ...
    @overload
    def result(self, task: str, *, timeout: Timeout = ...) -> Any: ...
    def result(self, task: Any = None, *, timeout: Timeout = None) -> Any:
        """Wait for the result; raises TaskFailedError if there will be none."""
        return self._portal.call(self._job.result(task, timeout=timeout))

    def results(self, timeout: Timeout = None) -> dict[str, Any]:
        """The results of all tasks by their keys, when the job has ended."""
        return self._portal.call(self._job.results(timeout))

    def output(
        self, task: str | Call[Any] | None = None, *, follow: bool = True
    ) -> Iterator[JobOutputChunk]:
        """The output of the tasks so far, then new output until the job ends."""
        return self._portal.iterate(self._job.output(task, follow=follow))

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """The events of the job and its tasks, in the order of recording."""
        return self._portal.iterate(self._job.events(follow=follow))

    def cancel(self, reason: str | None = None) -> None:
        """End the job; raises CommandRefused if it has ended."""
        self._portal.call(self._job.cancel(reason))

    def resume(self, *tasks: str | Call[Any]) -> list[str]:
        """Run failed and cancelled tasks again. Returns the keys of those that run again."""
        return self._portal.call(self._job.resume(*tasks))


@overload
def run(work: Call[ResultT], **options: Unpack[RunOptions]) -> ResultT: ...
@overload
def run(work: Sequence[Call[ResultT]], **options: Unpack[RunOptions]) -> list[ResultT]: ...
@overload
def run(work: Mapping[str, Any], **options: Unpack[RunOptions]) -> Any: ...
def run(work: Any, **options: Unpack[RunOptions]) -> Any:
    """Submit a job, work in this process until it has ended, and return its result.

    The tasks run in children of this process; workers that serve the same queues help. If this
    program dies, the job stays accepted: a worker continues it, and so does the same call with
    the same ``request_id``.

    Args:
        options: ``data_dir`` and ``settings`` as for ``Client``, and the options of
            ``Client.submit``.

    Raises:
        TaskFailedError: a task failed; it names the task.
    """
    with Client(options.pop("data_dir", None), settings=options.pop("settings", None)) as client:
        return client._portal.call(_run(client._client, work, options))


async def _run(client: AsyncClient, work: Any, options: SubmitOptions) -> Any:
    job = await client.submit(work, **options)
    if not (await client.connection().job(job.id)).state.terminal:
        async with client.work_on(job) as worker_group:
            try:
                await worker_group.run_alongside(job.wait())
            except asyncio.CancelledError:
                # The caller was interrupted: release running attempts to other workers now.
                worker_group.stop_now()
                raise
    return await job.result()
