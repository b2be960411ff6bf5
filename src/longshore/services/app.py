"""The application: every operation of Longshore once, for one caller.

REST, the command line, the Python client and the Lambda functions call these operations; the HTTP
client (``interfaces.client``) has the same methods with the same documents. Operations check that
jobs and tasks belong to the caller's tenant, and that the caller may start the tasks that an
operation would start. Which operations a key allows is checked by the interface that received the
key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypeVar

from longshore.core.api_keys import NO_LIMITS, ApiScope, WorkLimits
from longshore.core.budgets import Budget
from longshore.core.dead_letters import DeadLetter, DeadLetterFilter
from longshore.core.definitions.definition import (
    BUILTIN_DEFINITIONS,
    Definition,
    unlisted_secrets,
)
from longshore.core.definitions.reader import read_definition, split_job_file
from longshore.core.documents import attempt_file_key, validate_key
from longshore.core.events.codec import properties_of, properties_of_body
from longshore.core.events.event import Event
from longshore.core.events.types import TaskHealthCheck
from longshore.core.ids import split_task_id, task_id_of
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.core.text.durations import parse_duration
from longshore.errors import (
    CommandRefused,
    InvalidJob,
    LongshoreError,
    NotAllowed,
    NotFound,
    Problem,
    UsageError,
)
from longshore.ports.backend import Backend
from longshore.ports.events import EventQueryResult
from longshore.ports.ledger import Ledger
from longshore.ports.output import OutputPosition
from longshore.services import documents as d
from longshore.services import followers
from longshore.services.api_keys import KEYS_ENTITY_ID, ApiKeys
from longshore.services.budgets import BudgetOperations
from longshore.services.dead_letters import DeadLetters, read_post_mortem
from longshore.services.explain import Explainer
from longshore.services.followers import EventFeed, follow_events, job_feed, task_feed
from longshore.services.health import ENTITY_ID, HealthCheck
from longshore.services.operator_commands import OperatorCommands
from longshore.services.reads import get_job_of, get_task_of, iter_tasks
from longshore.services.resilience import Readiness
from longshore.services.retention import JobRetention
from longshore.services.spill import DocumentStore, derived_files
from longshore.services.submit import AcceptedTasks, Producer, Submission

POLL_INTERVAL = timedelta(milliseconds=100)
"""How often a reader that follows events looks for new ones."""

_HEALTH_CHECK_ENTITY = f"{TaskHealthCheck.ENTITY.value}#{ENTITY_ID}"
_KEYS_ENTITY = f"SYSTEM#{KEYS_ENTITY_ID}"
_RESUMABLE = (TaskState.FAILED, TaskState.CANCELLED)
_START = "0.0"
_NOTHING_TO_RESUME = "nothing to resume: no task failed or was cancelled"
_NO_FILTER = DeadLetterFilter()
_SHOWN_NAME_CHARACTERS = 100
_SHOWN_ID_CHARACTERS = 300


class NoResult(CommandRefused):
    """A task has no result (yet)."""

    def __str__(self) -> str:
        return self.reason


AnswerType = type[d.ApiDocument] | type[d.StreamItem] | None


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The request that carries out an operation on a server.

    Args:
        document: The type of the answer, or of the items of a stream; None: there is no answer.
        path: A placeholder names a parameter of the operation, and is left out if that is None. The
            other parameters are the query of a GET request, or else the body.
        repeatable: Carrying it out twice is the same as once.
    """

    document: AnswerType
    method: str
    path: str
    repeatable: bool


HTTP_REQUESTS: Final[dict[str, HttpRequest]] = {}
"""The request of each operation that is one request with one answer."""
OperationT = TypeVar("OperationT", bound=Callable[..., Any])


def over_http(
    document: AnswerType, method: str, path: str, *, repeatable: bool = False
) -> Callable[[OperationT], OperationT]:
    """Declare the request of an operation, from which the HTTP client has its method."""

    def declare(operation: OperationT) -> OperationT:
        HTTP_REQUESTS[operation.__name__] = HttpRequest(
            document, method, path, repeatable or method == "GET"
        )
        return operation

    return declare


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls, and what the caller may see beyond the tenant's jobs."""

    tenant: str
    name: str  # as events show it
    is_admin: bool = True  # sees events about keys
    is_operator: bool = True  # sees dead messages, which belong to no tenant
    may_define: bool = True  # may submit jobs with definitions
    limits: WorkLimits = NO_LIMITS  # of the tasks that the caller may start


class ApplicationServices(Protocol):
    """What the application needs; ``wiring.services.Services`` has it."""

    @property
    def backend(self) -> Backend: ...
    @property
    def documents(self) -> DocumentStore: ...
    @property
    def producer(self) -> Producer: ...
    @property
    def operator_commands(self) -> OperatorCommands: ...
    @property
    def budget_operations(self) -> BudgetOperations: ...
    @property
    def explainer(self) -> Explainer: ...
    @property
    def dead_letters(self) -> DeadLetters: ...
    @property
    def health_check(self) -> HealthCheck: ...
    @property
    def retention(self) -> JobRetention: ...
    @property
    def api_keys(self) -> ApiKeys: ...
    @property
    def task_secrets(self) -> Collection[str] | None:
        """The secrets that definitions may give to tasks; None: only the workers know."""
        ...

    @property
    def readiness(self) -> Readiness: ...
    @property
    def environment(self) -> str:
        """The deployment environment, part of every event document."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactContent:
    """A stored file: its size in bytes, and its content in chunks."""

    size: int
    chunks: AsyncIterator[bytes]

    async def read(self) -> bytes:
        """The whole content."""
        return b"".join([chunk async for chunk in self.chunks])


@dataclass(frozen=True)
class Application:
    """The operations of one caller.

    A task is named by its global id, ``{job_id}_{task key}``. Every method raises ``NotFound`` for
    a job or task that the caller's tenant does not have, and ``UsageError`` for a cursor that does
    not belong to the listing.

    Args:
        poll: How often a reader that follows events looks for new ones.
    """

    services: ApplicationServices
    caller: Caller
    poll: timedelta = POLL_INTERVAL

    @property
    def _backend(self) -> Backend:
        return self.services.backend

    @property
    def _ledger(self) -> Ledger:
        return self.services.backend.ledger

    @property
    def _commands(self) -> OperatorCommands:
        return self.services.operator_commands

    @property
    def _tenant(self) -> str:
        return self.caller.tenant

    @property
    def _user(self) -> str:
        return self.caller.name

    # Jobs and tasks -----------------------------------------------------------------------------

    @over_http(d.AcceptedJobDocument, "POST", "jobs")
    async def submit(
        self, document: Any, *, request_id: str | None = None
    ) -> d.AcceptedJobDocument:
        """Accept a job. The same request id always gives the same job.

        Raises:
            InvalidJob: the document is not a job; every problem is listed.
            AlreadyExists: the request id belongs to a job with another document.
            NotAllowed: the caller may not start one of its tasks.
            UsageError: the request id is not valid.
        """
        return accepted_document(
            await self.services.producer.submit(
                self._tenant, request_id or None, document, limits=self.caller.limits
            )
        )

    @property
    def may_block(self) -> bool:
        """Whether ``submit``, ``submit_many`` and ``add_tasks`` can run without an event loop."""
        return self._backend.blocking

    async def submit_file(
        self,
        document: Any,
        *,
        request_id: str | None = None,
        definitions: Sequence[Definition] = (),
    ) -> d.AcceptedJobDocument:
        """Accept a job file: a job together with definitions, which are stored first.

        Args:
            definitions: More definitions that come with the job.

        Raises:
            InvalidJob: with every problem of job and definitions; nothing was stored.
            AlreadyExists: the request id belongs to a job with another document.
            NotAllowed: the caller may not start one of its tasks, or not define any.
            UsageError: the request id is not valid.
        """
        (answer,) = await self.submit_many([Submission(document, request_id, definitions)])
        if isinstance(answer, LongshoreError):
            raise answer
        return answer

    async def submit_many(
        self, files: Sequence[Submission]
    ) -> list[d.AcceptedJobDocument | LongshoreError]:
        """Accept many job files. Returns for each one what ``submit_file`` returns or raises."""
        refused: dict[int, LongshoreError] = {}
        submissions = []
        for number, file in enumerate(files):
            own, job, problems = split_job_file(file.document)
            if file.own or job is not file.document:
                try:
                    self._check_may_define()
                except NotAllowed as error:
                    refused[number] = error
                    continue
            id_ = file.request_id or None
            definitions = [*file.own, *own]
            for definition in definitions:
                for problem in self._unlisted_secrets(definition):
                    path = f"definitions.{definition.name}.{problem.path}"
                    problems.append(replace(problem, path=path))
            submissions.append(Submission(job, id_, definitions, problems))
        producer, limits = self.services.producer, self.caller.limits
        answers = iter(await producer.submit_many(self._tenant, submissions, limits=limits))
        return [
            accepted_document(answer) if isinstance(answer, AcceptedTasks) else answer
            for number in range(len(files))
            for answer in [refused.get(number) or next(answers)]
        ]

    @over_http(d.AddedTasksDocument, "POST", "{job_id}/tasks")
    async def add_tasks(
        self, job_id: str, document: Any, *, request_id: str | None = None
    ) -> d.AddedTasksDocument:
        """Add tasks to a job. The same request id adds them once.

        Raises:
            InvalidJob: the document does not describe tasks; every problem is listed.
            CommandRefused: the job has completed or is cancelled.
            AlreadyExists: the request id has added other tasks to the job.
            NotAllowed: the caller may not start one of the tasks.
            UsageError: the request id is not valid.
        """
        added = await self.services.producer.add_tasks(
            self._tenant, job_id, request_id or None, document, limits=self.caller.limits
        )
        return d.AddedTasksDocument(
            job_id=added.job.id,
            status=added.state,
            total_tasks=added.total,
            added_tasks=list(added.keys),
            created=added.created,
        )

    @over_http(d.IdList, "GET", "ids")
    async def find_ids(self, prefix: str, *, limit: int = 10) -> d.IdList:
        """Ids of jobs and tasks that begin with ``prefix``, sorted."""
        ids = await self._ledger.find_ids(self._tenant, prefix, limit=limit)
        return d.IdList(ids=ids)

    @over_http(d.JobPage, "GET", "jobs")
    async def list_jobs(
        self,
        *,
        state: JobState | None = None,
        name: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> d.JobPage:
        """The jobs that match all conditions, newest first."""
        page = await self._ledger.list_jobs(
            self._tenant,
            state=state,
            name=name,
            created_from=created_from,
            created_before=created_before,
            limit=limit,
            cursor=cursor,
        )
        jobs = [await self._job_document(job) for job in page.items]
        return d.JobPage(jobs=jobs, cursor=page.cursor)

    async def get_job(self, job_id: str, *, limit: int = 100) -> d.JobDetailDocument:
        """A job with its first ``limit`` tasks; ``list_tasks`` continues at its cursor."""
        ledger = self._ledger
        job = await self._job(job_id)
        page = await ledger.list_tasks(self._tenant, job_id=job_id, limit=limit)
        states = [row.state for row in page.items]
        if page.cursor is not None:
            states = list((await ledger.task_states(job_id)).values())
        return d.job_document(
            d.JobDetailDocument,
            job,
            page.items,
            states=d.state_counts(states),
            tasks=await self._task_documents(page.items),
            cursor=page.cursor,
        )

    @over_http(d.TaskPage, "GET", "{job_id}/tasks")
    async def list_tasks(
        self,
        *,
        job_id: str | None = None,
        state: TaskState | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> d.TaskPage:
        """The tasks of a job in its order, or the tasks of all jobs, newest first."""
        if job_id is not None:
            await self._job(job_id)
        page = await self._ledger.list_tasks(
            self._tenant, job_id=job_id, state=state, limit=limit, cursor=cursor
        )
        return d.TaskPage(tasks=await self._task_documents(page.items), cursor=page.cursor)

    @over_http(d.TaskDocument, "GET", "{task_id}")
    async def get_task(self, task_id: str) -> d.TaskDocument:
        """A task with its latest event."""
        return await self._task_document(await self._task(task_id))

    @over_http(d.TaskStatusesDocument, "GET", "{job_id}/statuses")
    async def task_statuses(self, job_id: str) -> d.TaskStatusesDocument:
        """The state of every task of a job."""
        await self._job(job_id)
        return d.TaskStatusesDocument(statuses=await self._ledger.task_states(job_id))

    @over_http(d.ResultDocument, "GET", "{task_id}/result")
    async def get_result(self, task_id: str) -> d.ResultDocument:
        """The result of a task.

        Raises:
            NoResult: the task has none.
        """
        row = await self._task(task_id)
        if row.result is None:
            raise NoResult(row.id, f"the task is {row.state.value} and has no result")
        return d.ResultDocument(result=await self.services.documents.load(row.result))

    @over_http(d.JobDocument, "POST", "{job_id}/cancel")
    async def cancel_job(self, job_id: str, *, reason: str | None = None) -> d.JobDocument:
        """Cancel a job: nothing of it starts any more, and running attempts are stopped.

        Raises:
            CommandRefused: the job has ended.
            UsageError: the reason is too long, or not text.
        """
        await self._commands.cancel_job(job_id, by=self._user, reason=reason, tenant=self._tenant)
        return await self._job_document(await self._job(job_id))

    @over_http(d.TaskDocument, "POST", "{task_id}/cancel")
    async def cancel_task(self, task_id: str, *, reason: str | None = None) -> d.TaskDocument:
        """Cancel a task; a running one is ``processing`` until its worker has stopped it.

        Raises:
            CommandRefused: the task has ended.
            UsageError: the reason is too long, or not text.
        """
        row = await self._commands.cancel_task(self._tenant, task_id, by=self._user, reason=reason)
        return await self._task_document(row)

    @over_http(d.ResumeResultDocument, "POST", "{job_id}/resume")
    async def resume(
        self, job_id: str, tasks: Sequence[str] | None = None
    ) -> d.ResumeResultDocument:
        """Run failed and cancelled tasks of a job again.

        Args:
            tasks: Their keys; None: all that failed or were cancelled.

        Raises:
            CommandRefused: no task is named, and none failed or was cancelled.
            NotAllowed: the caller may not start one of them.
        """
        await self._job(job_id)
        keys = tasks
        if keys is None:
            states = await self._ledger.task_states(job_id)
            keys = [key for key, state in states.items() if state in _RESUMABLE]
            if not keys:
                raise CommandRefused(job_id, _NOTHING_TO_RESUME)
        ids = {task_id_of(job_id, key): key for key in keys}
        await self._check_may_start(list(ids))
        resumed = await self._commands.resume(job_id, list(ids), by=self._user, tenant=self._tenant)
        return d.ResumeResultDocument(
            job_id=job_id,
            round=resumed.round,
            tasks=[ids[task_id] for task_id in resumed.tasks],
            refused={ids[task_id]: reason for task_id, reason in resumed.refused.items()},
        )

    @over_http(d.TaskDocument, "POST", "{task_id}/approve")
    async def approve(self, task_id: str, *, attempt: int | None = None) -> d.TaskDocument:
        """Approve a result in review: the task completes.

        Args:
            attempt: The attempt whose result was reviewed; None: the latest.

        Raises:
            CommandRefused: the result of this attempt is not in review.
            NotAllowed: the caller may not start such a task.
        """
        await self._check_may_start([task_id])
        row = await self._commands.approve(self._tenant, task_id, by=self._user, attempt=attempt)
        return await self._task_document(row)

    @over_http(d.RevisedTaskDocument, "POST", "{task_id}/revise")
    async def revise(
        self, task_id: str, feedback: str, *, attempt: int | None = None
    ) -> d.RevisedTaskDocument:
        """Send a result in review back: a new attempt gets the result and the feedback.

        Args:
            attempt: The attempt whose result was reviewed; None: the latest.

        Raises:
            CommandRefused: the result of this attempt is not in review, it was revised too often,
                or the feedback is empty or too long.
            NotAllowed: the caller may not start such a task.
        """
        await self._check_may_start([task_id])
        row = await self._commands.revise(
            self._tenant, task_id, by=self._user, feedback=feedback, attempt=attempt
        )
        (event,) = await self._latest_events([row])
        return d.task_document(d.RevisedTaskDocument, row, event)

    @over_http(d.WhyDocument, "GET", "{entity_id}/why")
    async def why(self, entity_id: str) -> d.WhyDocument:
        """Why a job or task, named by its id, does not run."""
        reasons = await self.services.explainer.why(self._tenant, entity_id)
        return d.WhyDocument(reasons=[d.reason_document(reason) for reason in reasons])

    async def _job(self, job_id: str) -> JobRow:
        return await get_job_of(self._ledger, self._tenant, job_id)

    async def _task(self, task_id: str) -> TaskRow:
        return await get_task_of(self._ledger, self._tenant, task_id)

    async def _check_may_start(self, task_ids: Sequence[str]) -> None:
        """Check that the caller may start these tasks, as far as they exist.

        Raises:
            NotAllowed: the caller may not.
        """
        if limits := self.caller.limits:
            rows = await self._ledger.get_tasks(task_ids)
            limits.check(
                (row.spec.definition, row.spec.queue)
                for row in rows
                if row.spec.tenant == self._tenant
            )

    def _check_may_define(self) -> None:
        """Check that the caller may change definitions.

        Raises:
            NotAllowed: the caller may not.
        """
        if not self.caller.may_define:
            scopes = f"'{ApiScope.OPERATE}' or '{ApiScope.ADMIN}'"
            raise NotAllowed(f"a job with definitions needs a key with the scope {scopes}")
        # Otherwise a definition that the key may use could be made to run anything.
        if self.caller.limits.definitions is not None:
            raise NotAllowed(
                f"this key may only start {self.caller.limits}, and cannot change definitions"
            )

    async def _job_document(self, job: JobRow) -> d.JobDocument:
        tasks: Sequence[TaskRow] = ()
        if job.total == 1 and job.state.terminal:
            ledger = self._ledger
            tasks = (await ledger.list_tasks(job.spec.tenant, job_id=job.id, limit=1)).items
        return d.job_document(d.JobDocument, job, tasks)

    async def _task_document(self, row: TaskRow) -> d.TaskDocument:
        (document,) = await self._task_documents([row])
        return document

    async def _task_documents(self, rows: Sequence[TaskRow]) -> list[d.TaskDocument]:
        events = await self._latest_events(rows)
        return [
            d.task_document(d.TaskDocument, row, event)
            for row, event in zip(rows, events, strict=True)
        ]

    async def _latest_events(self, rows: Sequence[TaskRow]) -> list[Event | None]:
        log = self._backend.events
        return await asyncio.gather(
            *(log.latest(row.spec.tenant, f"TASK#{row.id}") for row in rows)
        )

    async def _event_document(self, event: Event) -> d.EventDocument:
        """An event, with large properties that were moved out of it put back."""
        properties = await self.services.documents.restore(properties_of(event))
        return d.event_document(
            event,
            properties,
            environment=self.services.environment,
        )

    # Artifacts, output, events ------------------------------------------------------------------

    @over_http(d.ArtifactList, "GET", "{task_id}/artifacts")
    async def list_artifacts(
        self, task_id: str, *, limit: int = 100, after: str = ""
    ) -> d.ArtifactList:
        """The files of a task's attempts, by name, after the name ``after``.

        They are the files that the attempts stored, and the result and a summary of the latest one.
        """
        row = await self._task(task_id)
        blobs, prefix = self._backend.blobs, _artifact_prefix(row)
        sizes = {name: file.size for name, file in derived_files(row).items() if name > after}
        for key in await blobs.list_keys(prefix, after=prefix + after, limit=limit):
            if (size := await blobs.size(key)) is not None:
                sizes[key.removeprefix(prefix)] = size
        return d.ArtifactList(
            artifacts=[
                d.ArtifactDocument(name=name, bytes=sizes[name]) for name in sorted(sizes)[:limit]
            ]
        )

    async def open_artifact(self, task_id: str, name: str) -> ArtifactContent:
        """A file of an attempt, such as ``attempt-1/artifacts/report.csv``; see
        ``list_artifacts``.

        Raises:
            NotFound: there is no such file.
            UsageError: no file can have this name.
        """
        row, blobs = await self._task(task_id), self._backend.blobs
        key = validate_key(_artifact_prefix(row) + name)
        if (size := await blobs.size(key)) is not None:
            return ArtifactContent(size=size, chunks=blobs.stream(key))
        file = derived_files(row).get(name)
        if file is None:
            raise NotFound("artifact", name[:_SHOWN_ID_CHARACTERS])
        chunks = blobs.stream(file.key) if file.key else _chunks_of(file.text or "")
        return ArtifactContent(size=file.size, chunks=chunks)

    @over_http(d.OutputPage, "GET", "{task_id}/output")
    async def read_output(
        self, task_id: str, *, attempt: int | None = None, after: str = _START, limit: int = 100
    ) -> d.OutputPage:
        """Stored output of a task: of all attempts in order, or of one, after a chunk's id."""
        row = await self._task(task_id)
        position = max(_output_position(after), OutputPosition(attempt or 0, 0))
        chunks = await self._backend.output.read(row.id, after=position, limit=limit)
        return d.OutputPage(
            output=[
                d.output_chunk_document(row.spec.job_id, row.spec.key, chunk)
                for chunk in chunks
                if attempt in (None, chunk.attempt)
            ]
        )

    @over_http(d.StreamItem, "GET", "{task_id}/output/stream")
    async def follow_task_output(
        self, task_id: str, *, attempt: int | None = None, after: str = _START
    ) -> AsyncIterator[d.StreamItem]:
        """Output of a task, stored and new, until the task or the attempt has ended."""
        row = await self._task(task_id)

        async def stream() -> AsyncIterator[d.StreamItem]:
            position = max(_output_position(after), OutputPosition(attempt or 0, 0))
            current = row
            async for current, chunks in followers.follow_task(
                self._backend, row.id, after=position, poll_interval=self.poll
            ):
                for chunk in chunks:
                    if attempt in (None, chunk.attempt):
                        data = d.output_chunk_document(row.spec.job_id, row.spec.key, chunk)
                        yield d.StreamItem(kind="output", id=data.id, data=data)
                if attempt is not None and current.attempt > attempt and not chunks:
                    break
            yield _stream_end(current)

        return stream()

    @over_http(d.StreamItem, "GET", "{job_id}/output/stream")
    async def follow_job_output(
        self, job_id: str, *, follow: bool = True, attempt: int | None = None
    ) -> AsyncIterator[d.StreamItem]:
        """Output of all tasks of a job by time; with ``follow`` until the job has ended."""
        await self._job(job_id)

        async def stream() -> AsyncIterator[d.StreamItem]:
            async for key, chunk in followers.read_job_output(
                self._backend, job_id, follow=follow, attempt=attempt
            ):
                yield d.StreamItem(kind="output", data=d.output_chunk_document(job_id, key, chunk))
            yield _stream_end(await self._ledger.get_job(job_id))

        return stream()

    @over_http(d.EventPage, "GET", "events")
    async def list_events(
        self,
        *,
        app: str | None = None,
        event_type: str | None = None,
        entity: str | None = None,
        job_id: str | None = None,
        limit: int = 100,
        cursor: str = "",
    ) -> d.EventPage:
        """The tenant's events that match all conditions, in the order of recording.

        Events about keys are shown to administrators only, so a page may have fewer events than
        its limit.
        """
        filters = {"app": app, "event_type": event_type, "entity": entity, "job_id": job_id}

        async def fetch(limit: int, cursor: str | None) -> EventQueryResult:
            return await self._backend.events.query(
                self._tenant, **filters, limit=limit, cursor=cursor
            )

        return await self._event_page(
            EventFeed(repr(tuple(filters.values())), fetch), cursor, limit
        )

    @over_http(d.EventPage, "GET", "{job_id}/events")
    async def list_job_events(
        self, job_id: str, *, tasks: bool = True, limit: int = 100, cursor: str = ""
    ) -> d.EventPage:
        """The events of a job; with ``tasks`` those of its tasks too."""
        feed = job_feed(self._backend, await self._job(job_id), tasks=tasks)
        return await self._event_page(feed, cursor, limit)

    @over_http(d.TaskEventPage, "GET", "{task_id}/events")
    async def list_task_events(
        self, task_id: str, *, after: int = 0, limit: int = 100
    ) -> d.TaskEventPage:
        """The events of a task with a sequence above ``after``."""
        row = await self._task(task_id)
        events = await self._backend.events.history(
            self._tenant, f"TASK#{row.id}", after=after, limit=limit
        )
        return d.TaskEventPage(events=[await self._event_document(event) for event in events])

    @over_http(d.StreamItem, "GET", "{job_id}/events/stream")
    async def follow_job_events(
        self, job_id: str, *, tasks: bool = True, cursor: str = ""
    ) -> AsyncIterator[d.StreamItem]:
        """The events of a job, stored and new, until the job has ended."""
        feed = job_feed(self._backend, await self._job(job_id), tasks=tasks)
        start = feed.decode(cursor)
        return await self._event_stream(feed, start, feed.encode)

    @over_http(d.StreamItem, "GET", "{task_id}/events/stream")
    async def follow_task_events(
        self, task_id: str, *, after: str = "0"
    ) -> AsyncIterator[d.StreamItem]:
        """The events of a task after an id, stored and new, until the task has ended."""
        feed = task_feed(self._backend, await self._task(task_id))
        return await self._event_stream(feed, after, str)

    async def _event_stream(
        self, feed: EventFeed, cursor: str | None, encode: Callable[[str], str]
    ) -> AsyncIterator[d.StreamItem]:
        # A cursor that is not valid is refused here, before a stream begins.
        await feed.read(limit=1, cursor=cursor)
        return self._stream_items(feed, cursor, encode)

    async def _stream_items(
        self, feed: EventFeed, cursor: str | None, encode: Callable[[str], str]
    ) -> AsyncIterator[d.StreamItem]:
        clock = self._backend.clock
        async for item in follow_events(feed, cursor, clock=clock, poll=self.poll):
            if isinstance(item, tuple):
                position, event = item
                data = await self._event_document(event)
                yield d.StreamItem(kind="event", id=encode(position), data=data)
            else:
                yield _stream_end(item)

    async def _event_page(self, feed: EventFeed, cursor: str, limit: int) -> d.EventPage:
        start = feed.decode(cursor)
        page = await feed.read(limit=limit, cursor=start)
        end = feed.encode(page.cursors[-1] if page.cursors else start)
        return d.EventPage(
            events=[
                await self._event_document(event)
                for event in page.items
                if self.caller.is_admin or event.entity != _KEYS_ENTITY
            ],
            cursor=end if page.more else None,
            end=end,
        )

    # Health -------------------------------------------------------------------------------------

    @over_http(d.TaskHealthDocument, "GET", "{task_id}/health")
    async def task_health(self, task_id: str) -> d.TaskHealthDocument:
        """The health of a task now. Nothing is recorded and no alert is sent."""
        row = await self._task(task_id)
        return d.task_health_document(row, await self.services.health_check.check_task(row))

    @over_http(d.HealthCheckDocument, "GET", "health-check")
    async def last_health_check(self) -> d.HealthCheckDocument:
        """The latest health check of the tenant's running tasks.

        Raises:
            NotFound: there was none yet.
        """
        event = await self._backend.events.latest(self._tenant, _HEALTH_CHECK_ENTITY)
        if event is None:
            raise NotFound("health check", self._tenant)
        properties = await self.services.documents.restore(properties_of(event))
        if part := properties.get("part"):
            # Twice as many, because the parts of two checks may alternate.
            events = await self._backend.events.history(
                self._tenant, _HEALTH_CHECK_ENTITY, after=max(0, event.sequence - 2 * part)
            )
            parts = {
                other["part"]: other["tasks"]
                for other in map(properties_of, events)
                if other.get("parts") == properties["parts"]
                and other["summary"] == properties["summary"]
            }
            properties["tasks"] = [task for number in sorted(parts) for task in parts[number]]
        return d.health_check_document(properties, event.at)

    @over_http(d.HealthCheckDocument, "POST", "health-check")
    async def run_health_check(self) -> d.HealthCheckDocument:
        """Check the tenant's running tasks now, record the result and send alerts."""
        report = await self.services.health_check.check_tenant(self._tenant)
        return d.health_check_document(properties_of_body(report.event()), report.at)

    async def check_ready(self) -> d.ProbeDocument:
        """Check that the store takes writes; see ``services.resilience.Readiness``.

        Raises:
            BackendUnavailable: it does not; the message is the reason.
        """
        await self.services.readiness.check()
        return d.ProbeDocument()

    # Dead letters -------------------------------------------------------------------------------

    @over_http(d.DeadLetterPage, "GET", "dead-letters")
    async def list_dead_letters(
        self,
        dead_filter: DeadLetterFilter = _NO_FILTER,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> d.DeadLetterPage:
        """Dead letters, the latest first."""
        page = await self.services.dead_letters.list_page(
            self._tenant, self._visible(dead_filter), limit=limit, cursor=cursor
        )
        return d.DeadLetterPage(
            dead_letters=[
                d.dead_letter_document(d.DeadLetterDocument, letter) for letter in page.items
            ],
            count=page.total,
            cursor=page.cursor,
        )

    @over_http(d.DeadLetterCountsDocument, "GET", "dead-letters/counts")
    async def count_dead_letters(
        self, dead_filter: DeadLetterFilter = _NO_FILTER
    ) -> d.DeadLetterCountsDocument:
        """The number of dead letters by queue and category."""
        return await self.services.dead_letters.count(self._tenant, self._visible(dead_filter))

    @over_http(d.PostMortemDocument, "GET", "dead-letters/{letter_id}")
    async def get_dead_letter(self, letter_id: str) -> d.PostMortemDocument:
        """A dead letter with its attempts and the last lines of its output.

        Raises:
            NotFound: the tenant has no such dead letter.
        """
        letter = await self._dead_letter(letter_id)
        task = await self._task_document(letter.row) if letter.row else None
        return await read_post_mortem(self._backend, letter, task)

    async def replay_dead_letters(
        self, selected: Sequence[str] | DeadLetterFilter
    ) -> d.ReplayResultDocument:
        """Run dead tasks again: those with these ids, or all that match.

        Tasks that are no longer dead letters are skipped.

        Raises:
            NotFound: there is no such task.
            NotAllowed: the caller may not start one of them.
        """
        if self.caller.limits:
            if isinstance(selected, DeadLetterFilter):
                letters = self.services.dead_letters.iter_matching(self._tenant, selected)
                selected = [letter.id async for letter in letters if letter.replayable]
            await self._check_may_start(selected)
        return await self.services.dead_letters.replay(self._tenant, selected, by=self._user)

    @over_http(d.DeadLetterDocument, "DELETE", "dead-letters/{letter_id}")
    async def discard_dead_letter(self, letter_id: str) -> d.DeadLetterDocument:
        """Delete a dead message. A task cannot be discarded.

        Raises:
            NotFound: the tenant has no such dead letter.
            CommandRefused: it is a task.
        """
        letter = await self._dead_letter(letter_id)
        discarded = await self.services.dead_letters.discard(self._tenant, letter, by=self._user)
        return d.dead_letter_document(d.DeadLetterDocument, discarded)

    def _visible(self, dead_filter: DeadLetterFilter) -> DeadLetterFilter:
        return replace(dead_filter, include_orphans=self.caller.is_operator)

    async def _dead_letter(self, letter_id: str) -> DeadLetter:
        letter = await self.services.dead_letters.get(self._tenant, letter_id)
        if letter.row is None and not self.caller.is_operator:
            raise NotFound("dead letter", letter_id[:_SHOWN_ID_CHARACTERS])
        return letter

    # Definitions --------------------------------------------------------------------------------

    @over_http(d.DefinitionList, "GET", "task-definitions")
    async def list_definitions(self) -> d.DefinitionList:
        """The newest version of each definition, by name, without those that are built in."""
        return _definition_list(await self._backend.definitions.list(self._tenant))

    @over_http(d.DefinitionDocument, "GET", "task-definitions/{name}")
    async def get_definition(
        self, name: str, *, version: int | None = None
    ) -> d.DefinitionDocument:
        """A version of a definition; None: the newest.

        Raises:
            NotFound: there is none.
        """
        definition = await self._backend.definitions.get(self._tenant, name, version=version)
        if definition is None and version is None:
            definition = BUILTIN_DEFINITIONS.get(name)
        if definition is None:
            raise NotFound("definition", name[:_SHOWN_NAME_CHARACTERS])
        return d.definition_document(definition)

    @over_http(d.DefinitionList, "GET", "task-definitions/{name}/versions")
    async def list_definition_versions(
        self, name: str, *, limit: int = 50, after: int = 0
    ) -> d.DefinitionList:
        """All versions of a definition above ``after``, also when it was deleted.

        Raises:
            NotFound: it never had a version.
        """
        stored: list[Definition] = []
        store = self._backend.definitions
        # Versions are counted without a gap, so the first one that is missing is the end.
        for version in range(after + 1, after + 1 + limit):
            definition = await store.get(self._tenant, name, version=version)
            if definition is None:
                break
            stored.append(definition)
        if not stored and await store.get(self._tenant, name, version=1) is None:
            raise NotFound("definition", name[:_SHOWN_NAME_CHARACTERS])
        return _definition_list(stored)

    @over_http(d.DefinitionDocument, "PUT", "task-definitions/{name}", repeatable=True)
    async def put_definition(self, name: str, document: Any) -> d.DefinitionDocument:
        """Store the next version of a definition; the same content again stores nothing.

        Args:
            document: Its name may be left out. Its version is ignored, so that a definition that
                was read can be stored again.

        Raises:
            InvalidJob: with everything that is wrong with it.
            NotAllowed: the caller may only use some definitions.
        """
        self._check_may_define()
        if isinstance(document, Mapping):
            if document.get("name", name) != name:
                raise InvalidJob([Problem("name", f"expected {name!r}, the name in the request")])
            fields = {field: value for field, value in document.items() if field != "version"}
            document = {**fields, "name": name}
        definition = read_definition(document)
        if problems := self._unlisted_secrets(definition):
            raise InvalidJob(problems)
        return d.definition_document(await self._backend.definitions.put(self._tenant, definition))

    def _unlisted_secrets(self, definition: Definition) -> list[Problem]:
        listed = self.services.task_secrets
        return [] if listed is None else unlisted_secrets(definition, listed)

    @over_http(None, "DELETE", "task-definitions/{name}")
    async def delete_definition(self, name: str) -> None:
        """Delete a definition: new jobs cannot use it, accepted jobs keep their version.

        Raises:
            NotFound: there is none.
            NotAllowed: the caller may only use some definitions.
        """
        self._check_may_define()
        if not await self._backend.definitions.delete(self._tenant, name):
            raise NotFound("definition", name[:_SHOWN_NAME_CHARACTERS])

    # Queues, budgets, keys ----------------------------------------------------------------------

    @over_http(d.PausedQueueList, "GET", "queues")
    async def list_paused_queues(self) -> d.PausedQueueList:
        """The queues that are paused or held."""
        pauses = await self._backend.queue_controls.list_pauses()
        return d.PausedQueueList(
            paused=[d.from_record(d.PausedQueueDocument, pause) for pause in pauses]
        )

    @over_http(d.PausedQueueDocument, "POST", "queues/{name}/pause", repeatable=True)
    async def pause_queue(self, name: str, *, reason: str | None = None) -> d.PausedQueueDocument:
        """Pause a queue; the pause that is in effect, which may be an earlier one.

        Raises:
            UsageError: the name or the reason is not valid.
        """
        return d.from_record(
            d.PausedQueueDocument,
            await self._commands.pause_queue(name, by=self._user, reason=reason),
        )

    @over_http(d.PausedQueueDocument, "POST", "queues/{name}/resume")
    async def resume_queue(self, name: str) -> d.PausedQueueDocument:
        """Resume a queue; the pause or hold that ended.

        Raises:
            CommandRefused: the queue is neither paused nor held.
            UsageError: the name is not valid.
        """
        ended = await self._commands.resume_queue(name, by=self._user)
        if ended is None:
            raise CommandRefused(name, "the queue is not paused")
        return d.from_record(d.PausedQueueDocument, ended)

    @over_http(d.PrunedJobsDocument, "POST", "jobs/prune", repeatable=True)
    async def prune_jobs(self, older_than: str, *, dry_run: bool = False) -> d.PrunedJobsDocument:
        """Remove the tenant's jobs that ended so long ago, up to some number in one call.

        Args:
            older_than: A duration, such as ``30d``.
            dry_run: Only count them.

        Raises:
            UsageError: it is not a duration; the backend cannot remove jobs.
        """
        try:
            age = parse_duration(older_than)
            jobs, more = await self.services.retention.prune(self._tenant, age, dry_run=dry_run)
        except (ValueError, OverflowError) as error:
            raise UsageError(f"olderThan: {error}") from error
        return d.PrunedJobsDocument(jobs=jobs, more=more)

    @over_http(d.BudgetStatusDocument, "GET", "{entity_id}/budget")
    async def get_budget(self, entity_id: str | None = None) -> d.BudgetStatusDocument:
        """The budget of a job or task, named by its id; None: the tenant's budget of today."""
        status = await self.services.budget_operations.get(self._tenant, entity_id)
        return d.budget_status_document(status)

    @over_http(d.BudgetStatusDocument, "POST", "{entity_id}/budget")
    async def add_budget(
        self, amount: Budget, entity_id: str | None = None, *, request_id: str | None = None
    ) -> d.BudgetStatusDocument:
        """Add to a budget, the tenant's of today or that of a job or task.

        Tasks that are parked because it is used up continue. The same request id adds once.

        Raises:
            CommandRefused: the job or task has ended.
            NotAllowed: the caller may not start a task that is parked.
            UsageError: it has no such budget, nothing is added, or the request id is not valid.
        """
        if self.caller.limits and entity_id is not None:
            job_id, key = split_task_id(entity_id)
            parked = iter_tasks(self._ledger, self._tenant, TaskState.PARKED, job_id=job_id)
            parked_ids = [row.id async for row in parked]
            await self._check_may_start([entity_id] if key else parked_ids)
        budgets, by = self.services.budget_operations, self._user
        request_id = request_id or self.services.producer.new_request_id()
        status = await budgets.add(self._tenant, entity_id, amount, by=by, request_id=request_id)
        return d.budget_status_document(status)

    @over_http(d.KeyList, "GET", "keys")
    async def list_keys(self) -> d.KeyList:
        """The tenant's API keys, oldest first, revoked ones too, without their secrets."""
        records = await self.services.api_keys.list(self._tenant)
        return d.KeyList(keys=[d.key_document(record, d.KeyDocument) for record in records])

    @over_http(d.NewKeyDocument, "POST", "keys")
    async def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        expires: str | None = None,
        definitions: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        tenant: str | None = None,
    ) -> d.NewKeyDocument:
        """Create an API key. Its secret is in this answer only.

        Args:
            expires: A duration such as ``30d``, after which the key is refused; None: never.
            definitions: Whose tasks the key may start; None: any.
            queues: In which queues the key may start tasks; None: any.
            tenant: Whose key; another tenant's only for an operator of the installation.

        Raises:
            UsageError: the name is empty or too long, there is no scope, the duration or a limit is
                wrong, or the caller may not create keys of that tenant.
        """
        tenant = tenant or self._tenant
        if tenant != self._tenant and not self.caller.is_operator:
            raise UsageError(
                "a key of another tenant needs a key of the tenant that operates this installation"
            )
        try:
            lifetime = None if expires is None else parse_duration(expires)
        except ValueError as error:
            raise UsageError(f"expires: {error}") from None
        api_keys, warning = self.services.api_keys, None
        if self.caller.is_operator:
            # Who operates the installation decides whether tenants may share its workers.
            warning = await api_keys.shared_workers_warning(tenant)
        record, secret = await api_keys.create(
            tenant,
            name=name,
            scopes={ApiScope(scope) for scope in scopes},
            by=self._user,
            expires=lifetime,
            limits=WorkLimits(
                definitions=None if definitions is None else frozenset(definitions),
                queues=None if queues is None else frozenset(queues),
            ),
        )
        return d.key_document(record, d.NewKeyDocument, key=secret, warning=warning)

    @over_http(d.KeyDocument, "DELETE", "keys/{key_id}", repeatable=True)
    async def revoke_key(self, key_id: str) -> d.KeyDocument:
        """Revoke an API key at once.

        Raises:
            NotFound: the tenant has no such key.
        """
        record = await self.services.api_keys.revoke(self._tenant, key_id, by=self._user)
        return d.key_document(record, d.KeyDocument)


def accepted_document(accepted: AcceptedTasks) -> d.AcceptedJobDocument:
    """The answer to a submit."""
    job = accepted.job
    return d.AcceptedJobDocument(
        job_id=job.id,
        request_id=job.request_id,
        created_at=d.format_timestamp(job.created_at),
        status=accepted.state,
        total_tasks=accepted.total,
        root_tasks=list(accepted.keys),
        created=accepted.created,
    )


async def _chunks_of(text: str) -> AsyncIterator[bytes]:
    yield text.encode(errors="replace")


def _artifact_prefix(task: TaskRow) -> str:
    return attempt_file_key(task.id, 0, "").removesuffix("attempt-0/")


def _output_position(text: str) -> OutputPosition:
    attempt, _, sequence = text.partition(".")
    return OutputPosition(int(attempt), int(sequence))


def _stream_end(row: JobRow | TaskRow | None) -> d.StreamItem:
    status = row.state.value if row else None
    return d.StreamItem(kind="end", data=d.StreamEndDocument(status=status))


def _definition_list(definitions: Sequence[Definition]) -> d.DefinitionList:
    return d.DefinitionList(
        definitions=[d.definition_document(definition) for definition in definitions]
    )
