"""``longshore.Client`` and ``longshore.run``: the same for programs without an event loop.

A thin shell: the asynchronous client lives on an event loop in a thread of its own, and every call
here hands one over and waits for it. So it can be used from any thread, and also where an event
loop runs already, though it blocks that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from longshore.core.events.event import Event
from longshore.core.states import JobState
from longshore.interfaces.python.calls import Call
from longshore.interfaces.python.client import AsyncClient
from longshore.interfaces.python.jobs import AsyncJob, Patience
from longshore.interfaces.python.portal import Portal
from longshore.interfaces.python.status import JobStatus, Output
from longshore.interfaces.python.submitting import JobOptions, SubmitOptions, Submittable

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")


class Client:
    """A door to the jobs in a data folder; open while it is entered. See ``AsyncClient``.

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
        works: Iterable[Submittable],
        *,
        request_ids: Sequence[str] | None = None,
        **options: Unpack[JobOptions],
    ) -> list[Job[Any]]:
        """Accept many jobs; see ``AsyncClient.submit_many``."""
        sent = self._client.submit_many(works, request_ids=request_ids, **options)
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

    def wait(self, timeout: Patience = None) -> JobState:
        """Return when the job has ended; raises TimeoutError if it has not within ``timeout``."""
        return self._portal.call(self._job.wait(timeout))

    @overload
    def result(self, *, timeout: Patience = ...) -> ResultT: ...
    @overload
    def result(self, of: Call[OtherT], *, timeout: Patience = ...) -> OtherT: ...
    @overload
    def result(self, of: str, *, timeout: Patience = ...) -> Any: ...
    def result(self, of: Any = None, *, timeout: Patience = None) -> Any:
        """The result, as soon as it is there; raises TaskFailed if there will be none."""
        return self._portal.call(self._job.result(of, timeout=timeout))

    def results(self, timeout: Patience = None) -> dict[str, Any]:
        """The results of all tasks by their keys, when the job has ended."""
        return self._portal.call(self._job.results(timeout))

    def output(self, of: str | Call[Any] | None = None, *, follow: bool = True) -> Iterator[Output]:
        """What the tasks printed so far, and then what they print, to the end."""
        return self._portal.iterate(self._job.output(of, follow=follow))

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """What happened to the job and its tasks, in the order in which it was recorded."""
        return self._portal.iterate(self._job.events(follow=follow))

    def cancel(self, reason: str | None = None) -> None:
        """End the job; raises CommandRefused if it has ended."""
        self._portal.call(self._job.cancel(reason))

    def resume(self, *tasks: str | Call[Any]) -> list[str]:
        """Give tasks that failed or were cancelled another round; the keys of those that go on."""
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
    program dies, the job stays accepted: a worker goes on with it, and so does this call when it
    is made again with the same ``request_id``.

    Raises:
        TaskFailed: a task failed; it names the task.
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
    if not (await client.door().state(job.id)).terminal:
        async with client.working_on(job) as crew:
            try:
                await crew.during(job.wait())
            except asyncio.CancelledError:
                # Whoever waited was interrupted: what runs goes back to the others now.
                crew.stop_at_once()
                raise
    return await job.result()
