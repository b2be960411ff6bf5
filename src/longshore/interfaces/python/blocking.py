"""``longshore.Client`` and ``longshore.run``: the client for programs without an event loop.

The asynchronous client runs on an event loop in its own thread; each call here runs one of its
coroutines and waits for it. It can be used from any thread, also where an event loop runs already,
which it then blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from longshore.core.events.event import Event
from longshore.core.tasks.states import JobState
from longshore.interfaces.python.calls import Call
from longshore.interfaces.python.client import AsyncClient
from longshore.interfaces.python.jobs import AsyncJob, Timeout
from longshore.interfaces.python.portal import Portal
from longshore.interfaces.python.status import JobOutputChunk, JobStatus
from longshore.interfaces.python.submission import JobOptions, SubmitOptions, Submittable

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")


class Client:
    """Submits jobs to a data folder and follows them; the synchronous form of ``AsyncClient``.

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
        self._client = AsyncClient(data_dir, worker=worker, settings=settings)
        self._portal = Portal()

    def __enter__(self) -> Self:
        self._portal.open(self._client)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        return Job(self._portal, self._portal.call(self._client.submit(work, **options)))

    def submit_many(
        self,
        submissions: Iterable[Submittable],
        *,
        request_ids: Sequence[str] | None = None,
        **options: Unpack[JobOptions],
    ) -> list[Job[Any]]:
        """Accept many jobs; see ``AsyncClient.submit_many``."""
        sent = self._client.submit_many(submissions, request_ids=request_ids, **options)
        return [Job(self._portal, job) for job in self._portal.call(sent)]

    def job(self, job_id: str) -> Job[Any]:
        """A job that was submitted before; see ``AsyncClient.job``."""
        return Job(self._portal, self._portal.call(self._client.job(job_id)))


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
        """What a task is called inside this job."""
        return self._job.key_of(task)

    def status(self) -> JobStatus:
        """The job and each of its tasks as they are now."""
        return self._portal.call(self._job.status())

    def wait(self, timeout: Timeout = None) -> JobState:
        """Return when the job has ended; raises TimeoutError if it has not within ``timeout``."""
        return self._portal.call(self._job.wait(timeout))

    @overload
    def result(self, *, timeout: Timeout = ...) -> ResultT: ...
    @overload
    def result(self, task: Call[OtherT], *, timeout: Timeout = ...) -> OtherT: ...
    @overload
    def result(self, task: str, *, timeout: Timeout = ...) -> Any: ...
    def result(self, task: Any = None, *, timeout: Timeout = None) -> Any:
        """The result, as soon as it is there; raises TaskFailedError if there will be none."""
        return self._portal.call(self._job.result(task, timeout=timeout))

    def results(self, timeout: Timeout = None) -> dict[str, Any]:
        """The results of all tasks by their keys, when the job has ended."""
        return self._portal.call(self._job.results(timeout))

    def output(
        self, task: str | Call[Any] | None = None, *, follow: bool = True
    ) -> Iterator[JobOutputChunk]:
        """What the tasks printed so far, and then what they print, to the end."""
        return self._portal.iterate(self._job.output(task, follow=follow))

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """What happened to the job and its tasks, in the order in which it was recorded."""
        return self._portal.iterate(self._job.events(follow=follow))

    def cancel(self, reason: str | None = None) -> None:
        """End the job; raises CommandRefused if it has ended."""
        self._portal.call(self._job.cancel(reason))

    def resume(self, *tasks: str | Call[Any]) -> list[str]:
        """Run failed and cancelled tasks again. Returns the keys of those that run again."""
        return self._portal.call(self._job.resume(*tasks))


@overload
def run(
    work: Call[ResultT],
    *,
    data_dir: str | Path | None = ...,
    settings: Mapping[str, Any] | None = ...,
    **options: Unpack[SubmitOptions],
) -> ResultT: ...
@overload
def run(
    work: Sequence[Call[ResultT]],
    *,
    data_dir: str | Path | None = ...,
    settings: Mapping[str, Any] | None = ...,
    **options: Unpack[SubmitOptions],
) -> list[ResultT]: ...
@overload
def run(
    work: Mapping[str, Any],
    *,
    data_dir: str | Path | None = ...,
    settings: Mapping[str, Any] | None = ...,
    **options: Unpack[SubmitOptions],
) -> Any: ...
def run(
    work: Any,
    *,
    data_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[SubmitOptions],
) -> Any:
    """Submit a job, work in this process until it has ended, and return its result.

    The tasks run in children of this process; workers that serve the same queues help. If this
    program dies, the job stays accepted: a worker continues it, and so does the same call with
    the same ``request_id``.

    Raises:
        TaskFailedError: a task failed; it names the task.
    """
    client = AsyncClient(data_dir, settings=settings)
    portal = Portal()
    portal.open(client)
    try:
        result = portal.call(_run(client, work, options))
    except BaseException as error:
        portal.close(error)
        raise
    portal.close()
    return result


async def _run(client: AsyncClient, work: Any, options: SubmitOptions) -> Any:
    job = await client.submit(work, **options)
    if not (await client.connection().state(job.id)).terminal:
        async with client.work_on(job) as worker_group:
            try:
                await worker_group.run_alongside(job.wait())
            except asyncio.CancelledError:
                # The caller was interrupted: release running attempts to other workers now.
                worker_group.stop_now()
                raise
    return await job.result()
