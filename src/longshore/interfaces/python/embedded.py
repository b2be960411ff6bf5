"""The data folder of this machine as clients use it.

All that a client asks for goes through here, by ids, keys and documents, which is what a server
could be asked for as well. Nothing here knows of functions and their types.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from longshore.core.definition import Definition
from longshore.core.events.event import Event
from longshore.core.graph import Graph
from longshore.core.ids import split_task_id, task_id_of
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import JobState, TaskState
from longshore.core.submission import read_job
from longshore.errors import BackendUnavailable, CommandRefused, NotFound
from longshore.interfaces.job_files import accept_file
from longshore.interfaces.python.status import JobStatus, Outcome, Output, TaskStatus
from longshore.services import following
from longshore.services.crew import Crew
from longshore.settings import Settings, load

if TYPE_CHECKING:
    from longshore.wiring import Services

AnyT = TypeVar("AnyT")

_PAGE = 500
_LOOK_EVERY = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job that was accepted, now or before."""

    job_id: str
    request_id: str
    created: bool  # False: the same request had been accepted before


def settings_for(data_dir: str | Path | None, flags: Mapping[str, Any] | None) -> Settings:
    """The settings that hold for a client, found as the command line finds them."""
    given = dict(flags or {})
    if data_dir is not None:
        given["data_dir"] = str(data_dir)
    return load(given).settings


@contextlib.asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Embedded]:
    """The data folder; created if it is not there."""
    from longshore.wiring import wired

    async with contextlib.AsyncExitStack() as stack:
        try:
            services = await stack.enter_async_context(wired(settings))
        except OSError as error:
            place = str(settings.data_dir.absolute())
            message = f"the data folder {place!r} cannot be used: {error.strerror}"
            raise BackendUnavailable(message) from error
        yield Embedded(services)


class Embedded:
    """Everything a client can ask, answered by the services in this process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._settings = services.settings
        self._backend = services.backend
        self._crew: Crew | None = None

    def crew(self, queues: Sequence[str] | None = None) -> Crew:
        """A worker of this process with all that it needs beside it."""
        settings = self._settings
        if queues is not None:
            worker = settings.worker.model_copy(update={"queues": tuple(queues)})
            settings = settings.model_copy(update={"worker": worker})
        return Crew(
            worker=replace(self._services, settings=settings).worker(),
            dispatcher=self._services.dispatcher if settings.works_alone else None,
            sweeper=self._services.sweeper,
            presence=self._services.presence,
        )

    def rely_on(self, crew: Crew) -> None:
        """Whoever waits for something here waits for this crew as well."""
        self._crew = crew

    async def attended(self, work: Awaitable[AnyT]) -> AnyT:
        """What ``work`` gives; raises at once if the crew that it relies on breaks down."""
        return await (work if self._crew is None else self._crew.during(work))

    async def submit(
        self, document: Any, definitions: Sequence[Definition], request_id: str | None
    ) -> Submitted:
        """Accept a job after storing the definitions that it needs; bad input stores nothing."""
        tenant, limit = self._settings.tenant, self._settings.limits.max_tasks_per_job
        request_id = request_id or self._services.transitions.new_id()
        if definitions:
            read_job(document, limit=limit)
        for definition in definitions:
            await self._store(tenant, definition)
        accepted = await accept_file(
            document,
            tenant=tenant,
            request_id=request_id,
            producer=self._services.producer,
            definitions=self._backend.definitions,
            task_limit=limit,
        )
        return Submitted(job_id=accepted.job.id, request_id=request_id, created=accepted.created)

    async def _store(self, tenant: str, definition: Definition) -> None:
        newest = await self._backend.definitions.get(tenant, definition.name)
        # Nearly always there already, and looking is far cheaper than a write.
        if newest is None or replace(newest, version=0) != definition:
            await self._backend.definitions.put(tenant, definition)

    async def submitted(self, job_id: str) -> Submitted:
        """A job that was accepted before."""
        job = await self._job(job_id)
        return Submitted(job_id=job.id, request_id=job.spec.request_id, created=False)

    async def state(self, job_id: str) -> JobState:
        """The job's state."""
        return (await self._job(job_id)).state

    async def status(self, job_id: str) -> JobStatus:
        """The job and each of its tasks."""
        job = await self._job(job_id)
        return JobStatus.of(job, await self._tasks(job))

    async def queues(self, job_id: str) -> tuple[str, ...]:
        """The queues that the job's tasks go to."""
        tasks = await self._tasks(await self._job(job_id))
        return tuple(dict.fromkeys(task.spec.queue for task in tasks))

    async def outcome(self, job_id: str, key: str) -> Outcome:
        """What a task has come to."""
        row = await self._backend.ledger.task(task_id_of(job_id, key))
        if row is None:
            raise NotFound("task", task_id_of(job_id, key))
        value = None
        if row.state is TaskState.COMPLETED:
            value = await self._services.documents.load(row.result)
        by = row.cancel.by if row.cancel else None
        return Outcome(status=TaskStatus.of(row), cancelled_by=by, value=value)

    async def keys(self, job_id: str) -> dict[str, bool]:
        """The keys of the job's tasks, each with whether another task depends on it."""
        graph = await self._graph(await self._job(job_id))
        above = {number for parents in graph.parents for number in parents}
        return {key: number in above for number, key in enumerate(graph.keys)}

    async def broken(self, job_id: str) -> str | None:
        """The key of the job's first task that failed, or else of the first that was cancelled."""
        job = await self._job(job_id)
        graph = await self._graph(job)
        return next((graph.keys[number] for number in (*job.failed, *job.cancelled)), None)

    async def output(self, job_id: str, *, key: str | None, follow: bool) -> AsyncIterator[Output]:
        """What the job's tasks, or one of them, printed, and print until the job ends."""
        await self._job(job_id)
        found = following.of_job(self._backend, job_id, follow=follow, attempt=None)
        async with contextlib.aclosing(cast("AsyncGenerator[following.Piece]", found)) as pieces:
            while (piece := await self.attended(anext(pieces, None))) is not None:
                if key in (None, piece.key):
                    yield Output.of(piece.key, piece.entry)

    async def events(self, job_id: str, *, follow: bool) -> AsyncIterator[Event]:
        """The events of the job and its tasks as they were recorded, and are until it ends."""
        cursor, given = None, 0
        while True:
            # Looked at before the events are read: what is read after the end is all there is.
            over = not follow or (await self.state(job_id)).terminal
            while True:
                page = await self._backend.events.query(
                    self._settings.tenant, job_id=job_id, limit=_PAGE, cursor=cursor
                )
                for event in page.items[given:]:
                    yield event
                # The last page has no cursor to what will follow: it is read again, and what was
                # given is passed over.
                if page.cursor is None:
                    given = len(page.items)
                    break
                cursor, given = page.cursor, 0
            if over:
                return
            await self.attended(self.pause(_LOOK_EVERY))

    async def cancel(self, job_id: str, *, by: str, reason: str | None) -> None:
        """End the job."""
        await self._services.cancelling.cancel(job_id, by=by, reason=reason)

    async def resume(self, job_id: str, keys: Sequence[str], *, by: str) -> list[str]:
        """Give tasks another round, all that failed or were cancelled if none is named."""
        job = await self._job(job_id)
        if not keys:
            graph = await self._graph(job)
            keys = [graph.keys[number] for number in job.failed | job.cancelled]
        ids = [task_id_of(job_id, key) for key in keys]
        resumed = await self._services.resuming.resume(job_id, ids, by=by)
        if not resumed.tasks:
            reasons = "; ".join(dict.fromkeys(resumed.refused.values()))
            raise CommandRefused(job_id, reasons or f"the job is {job.state}: nothing failed")
        return [split_task_id(task_id)[1] for task_id in resumed.tasks]

    async def pause(self, duration: timedelta) -> None:
        """Wait a little."""
        await self._backend.clock.sleep(duration)

    def command(self, name: str, subject: str) -> str:
        """A command line that tells more about something here."""
        folder = self._settings.data_dir
        elsewhere = folder != Settings().data_dir
        return f"longshore {name} {subject}" + (f" --data-dir {folder}" if elsewhere else "")

    async def _job(self, job_id: str) -> JobRow:
        job = await self._backend.ledger.job(job_id)
        if job is None or job.spec.tenant != self._settings.tenant:
            raise NotFound("job", job_id)
        return job

    async def _graph(self, job: JobRow) -> Graph:
        return Graph.from_json(await self._services.documents.load(job.graph))

    async def _tasks(self, job: JobRow) -> list[TaskRow]:
        graph = await self._graph(job)
        return await self._backend.ledger.tasks([task_id_of(job.id, key) for key in graph.keys])
