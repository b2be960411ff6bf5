"""The client that commands use: operations in a data folder or on a server, as JSON values.

``operations`` is ``Application`` or its HTTP client; both answer with the same documents. This
module is the one place where documents become JSON values for commands.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from longshore.core.budgets import Budget
from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.ids import split_task_id
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import CommandRefused
from longshore.interfaces.cli import entity_refs
from longshore.interfaces.cli.entity_refs import EntityRef
from longshore.services import documents as d
from longshore.services.output_follow import TaskOutputChunk
from longshore.services.worker.group import WorkerGroup

if TYPE_CHECKING:
    from longshore.interfaces.client.http_client import HttpClient
    from longshore.services.app import Application
    from longshore.wiring.services import Services

Document = dict[str, Any]

_PAGE_SIZE = 1_000
_OUTPUT_PAGE_SIZE = 200


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """A job that was accepted, and whether this request created it."""

    document: Document
    created: bool

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return str(self.document["jobId"])


class ApiClient:
    """Operations as commands use them.

    Args:
        scope: Where jobs are looked up, for messages.
        now: The current time, to show ages.
        services: The services of the data folder; None: ``operations`` is a server's.
    """

    def __init__(
        self,
        operations: Application | HttpClient,
        scope: str,
        now: Callable[[], datetime],
        services: Services | None = None,
    ) -> None:
        self.operations = operations
        self.services = services
        self.now = now
        self._scope = scope

    async def resolve(self, text: str) -> EntityRef:
        """The job or task that a text names.

        Raises:
            MissingResource: there is none.
            UsageError: there are several; the message lists them.
        """

        async def find(prefix: str) -> list[str]:
            return (await self.operations.find_ids(prefix, limit=entity_refs.MAX_IDS)).ids

        return await entity_refs.resolve(find, self._scope, text)

    # Jobs, tasks, events, output ----------------------------------------------------------------

    async def jobs(self, *, state: JobState | None, limit: int, cursor: str | None) -> Document:
        """A page of jobs, newest first."""
        return d.to_dict(await self.operations.list_jobs(state=state, limit=limit, cursor=cursor))

    async def job(self, job_id: str) -> Document:
        """A job with all its tasks."""
        job = await self.operations.get_job(job_id)
        while job.cursor is not None:
            page = await self.operations.list_tasks(
                job_id=job_id, limit=_PAGE_SIZE, cursor=job.cursor
            )
            job.tasks, job.cursor = [*job.tasks, *page.tasks], page.cursor
        document = d.to_dict(job)
        del document["cursor"]
        return document

    async def tasks(
        self, *, job_id: str | None, state: TaskState | None, limit: int, cursor: str | None
    ) -> Document:
        """A page of tasks."""
        return d.to_dict(
            await self.operations.list_tasks(job_id=job_id, state=state, limit=limit, cursor=cursor)
        )

    async def task(self, task_id: str) -> Document:
        """A task."""
        return d.to_dict(await self.operations.get_task(task_id))

    async def task_keys(self, job_id: str) -> list[str]:
        """The keys of a job's tasks."""
        return list((await self.operations.task_statuses(job_id)).statuses)

    async def events(
        self, ref: EntityRef, *, include_tasks: bool, follow: bool
    ) -> AsyncIterator[Document]:
        """The events of a job or task; with ``include_tasks`` those of a job's tasks too."""
        if follow:
            stream = (
                await self.operations.follow_job_events(ref.job_id, tasks=include_tasks)
                if ref.task_id is None
                else await self.operations.follow_task_events(ref.task_id)
            )
            async for item in stream:
                if isinstance(item.data, d.EventDocument):
                    yield d.to_dict(item.data)
            return
        pages = (
            self._job_events(ref.job_id, tasks=include_tasks)
            if ref.task_id is None
            else self._task_events(ref.task_id)
        )
        async for event in pages:
            yield d.to_dict(event)

    async def _job_events(self, job_id: str, *, tasks: bool) -> AsyncIterator[d.EventDocument]:
        cursor: str | None = ""
        while cursor is not None:
            page = await self.operations.list_job_events(
                job_id, tasks=tasks, limit=_PAGE_SIZE, cursor=cursor
            )
            for event in page.events:
                yield event
            cursor = page.cursor

    async def _task_events(self, task_id: str) -> AsyncIterator[d.EventDocument]:
        after = 0
        while page := (
            await self.operations.list_task_events(task_id, after=after, limit=_PAGE_SIZE)
        ).events:
            for event in page:
                yield event
            after = page[-1].sequence

    async def output(
        self, ref: EntityRef, *, follow: bool, attempt: int | None
    ) -> AsyncIterator[TaskOutputChunk]:
        """The output of a job or task."""
        async for chunk in self._output(ref, follow=follow, attempt=attempt):
            yield TaskOutputChunk(chunk.task_id, d.output_chunk(chunk))

    async def _output(
        self, ref: EntityRef, *, follow: bool, attempt: int | None
    ) -> AsyncIterator[d.OutputChunkDocument]:
        if ref.task_id is not None and not follow:
            after = "0.0"
            while page := (
                await self.operations.read_output(
                    ref.task_id, attempt=attempt, after=after, limit=_OUTPUT_PAGE_SIZE
                )
            ).output:
                for chunk in page:
                    yield chunk
                after = page[-1].id
            return
        stream = (
            await self.operations.follow_job_output(ref.job_id, follow=follow, attempt=attempt)
            if ref.task_id is None
            else await self.operations.follow_task_output(ref.task_id, attempt=attempt)
        )
        async for item in stream:
            if isinstance(item.data, d.OutputChunkDocument):
                yield item.data

    async def artifact(self, task_id: str, attempt: int, name: str) -> bytes:
        """A file that an attempt stored, such as ``artifacts/report.csv``."""
        content = await self.operations.open_artifact(task_id, f"attempt-{attempt}/{name}")
        return await content.read()

    async def why(self, ref: EntityRef) -> Document:
        """Why a job or task does not run."""
        return d.to_dict(await self.operations.why(ref.task_id or ref.job_id))

    async def health(self, task_id: str) -> Document:
        """The health of a task."""
        return d.to_dict(await self.operations.task_health(task_id))

    async def check_health(self) -> Document:
        """Check all running tasks."""
        return d.to_dict(await self.operations.run_health_check())

    async def submit(self, document: Any, request_id: str) -> SubmitResult:
        """Accept a job file."""
        accepted = await self.operations.submit_file(document, request_id=request_id)
        return SubmitResult(d.to_dict(accepted), accepted.created)

    async def add_tasks(self, job_id: str, document: Any, request_id: str) -> Document:
        """Add tasks to a job."""
        return d.to_dict(await self.operations.add_tasks(job_id, document, request_id=request_id))

    async def cancel(self, ref: EntityRef, *, reason: str | None) -> Document:
        """Cancel a job or task."""
        if ref.task_id is not None:
            return d.to_dict(await self.operations.cancel_task(ref.task_id, reason=reason))
        return d.to_dict(await self.operations.cancel_job(ref.job_id, reason=reason))

    async def resume(self, ref: EntityRef) -> Document:
        """Run failed and cancelled tasks of a job, or one task, again.

        Raises:
            CommandRefused: none of them can run again.
        """
        keys = [split_task_id(ref.task_id)[1]] if ref.task_id else None
        resumed = await self.operations.resume(ref.job_id, keys)
        if not resumed.tasks:
            raise CommandRefused(ref.task_id or ref.job_id, next(iter(resumed.refused.values())))
        return d.to_dict(resumed)

    async def approve(self, task_id: str) -> Document:
        """Approve a result in review."""
        return d.to_dict(await self.operations.approve(task_id))

    async def revise(self, task_id: str, feedback: str) -> Document:
        """Send a result in review back."""
        return d.to_dict(await self.operations.revise(task_id, feedback))

    async def budget(self, ref: EntityRef | None) -> Document:
        """The budget of a job or task; None: of today."""
        return d.to_dict(await self.operations.get_budget(_entity_id(ref)))

    async def add_budget(self, ref: EntityRef | None, more: Budget, *, request_id: str) -> Document:
        """Add to a budget."""
        return d.to_dict(
            await self.operations.add_budget(_entity_id(ref), more, request_id=request_id)
        )

    # Workers of this machine --------------------------------------------------------------------

    def worker_group(self, queues: tuple[str, ...]) -> WorkerGroup | None:
        """A worker for these queues in this process; None: other workers serve them."""
        # Other workers may have settings that this process lacks, such as an agent's credentials.
        if self.services is None or self.worker_command(queues) is None:
            return None
        return self.services.worker_group(queues)

    def worker_command(self, queues: Sequence[str]) -> str | None:
        """The command that starts a worker for these queues, or any, if there is none."""
        if self.services is None:
            return None  # the operator of the server starts workers
        live = self.services.worker_registry.live_workers().values()
        served = {queue for served_queues in live for queue in served_queues}
        missing = [queue for queue in queues if queue not in served]
        if not missing and (queues or served):
            return None
        named = "".join(f" --queue {queue}" for queue in missing)
        by_default = set(missing) <= set(self.services.settings.worker.queues)
        return f"longshore worker --burst{'' if by_default else named}"

    # Dead letters -------------------------------------------------------------------------------

    async def list_dead_letters(
        self, dead_filter: DeadLetterFilter, *, limit: int, cursor: str | None
    ) -> Document:
        """A page of dead letters."""
        return d.to_dict(
            await self.operations.list_dead_letters(dead_filter, limit=limit, cursor=cursor)
        )

    async def matching_dead_letters(self, dead_filter: DeadLetterFilter) -> AsyncIterator[Document]:
        """All dead letters that match."""
        cursor: str | None = None
        while True:
            page = await self.operations.list_dead_letters(
                dead_filter, limit=_PAGE_SIZE, cursor=cursor
            )
            for letter in page.dead_letters:
                yield d.to_dict(letter)
            cursor = page.cursor
            if cursor is None:
                return

    async def get_dead_letter(self, letter_id: str) -> Document:
        """A dead letter with its history."""
        return d.to_dict(await self.operations.get_dead_letter(letter_id))

    async def replay_dead_letters(self, task_ids: Sequence[str]) -> Document:
        """Run dead tasks again."""
        return d.to_dict(await self.operations.replay_dead_letters(task_ids))

    async def discard_dead_letter(self, letter_id: str) -> None:
        """Delete a dead message."""
        await self.operations.discard_dead_letter(letter_id)

    # Queues, definitions, keys ------------------------------------------------------------------

    async def paused_queues(self) -> list[Document]:
        """The queues that are paused or held."""
        return [d.to_dict(queue) for queue in (await self.operations.list_paused_queues()).paused]

    async def pause_queue(self, queue: str, *, reason: str | None) -> Document:
        """Pause a queue."""
        return d.to_dict(await self.operations.pause_queue(queue, reason=reason))

    async def resume_queue(self, queue: str) -> Document:
        """Resume a queue.

        Raises:
            CommandRefused: it is not paused.
        """
        return d.to_dict(await self.operations.resume_queue(queue))

    async def definitions(self) -> list[Document]:
        """The newest version of each definition."""
        stored = (await self.operations.list_definitions()).definitions
        return [d.to_dict(definition) for definition in stored]

    async def definition(self, name: str, version: int | None) -> Document:
        """A version of a definition; None: the newest."""
        return d.to_dict(await self.operations.get_definition(name, version=version))

    async def put_definition(self, document: Mapping[str, Any]) -> Document:
        """Store the next version of a definition."""
        return d.to_dict(await self.operations.put_definition(document))

    async def delete_definition(self, name: str) -> None:
        """Delete a definition."""
        await self.operations.delete_definition(name)

    async def list_keys(self) -> list[Document]:
        """The tenant's API keys."""
        return [d.to_dict(key) for key in (await self.operations.list_keys()).keys]

    async def create_key(self, name: str, scopes: Sequence[str]) -> Document:
        """Create an API key."""
        return d.to_dict(await self.operations.create_key(name, scopes))

    async def revoke_key(self, key_id: str) -> Document:
        """Revoke an API key."""
        return d.to_dict(await self.operations.revoke_key(key_id))


def _entity_id(ref: EntityRef | None) -> str | None:
    return None if ref is None else ref.task_id or ref.job_id
