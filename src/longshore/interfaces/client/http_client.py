"""The HTTP client: the operations of ``services.app.Application``, carried out by a server.

Methods, parameters, documents and errors are those of ``Application``. A listing may be longer
than a page of the server: its pages are collected.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import httpx

from longshore.core.budgets import Budget
from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, NO_DEFINITION, Definition
from longshore.core.definitions.reader import split_job_file
from longshore.core.events.wire import camel_case
from longshore.core.ids import split_task_id
from longshore.core.jobs.submission import read_job, referenced_definitions
from longshore.core.maximums import MAX_TASKS_PER_JOB
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import InvalidJob, LongshoreError, NotFound, Problem
from longshore.interfaces.client.transport import HttpTransport, QueryValue
from longshore.services import documents as d
from longshore.services.app import HTTP_REQUESTS, Application, ArtifactContent, HttpRequest
from longshore.services.submit import Submission

_TIMEOUT_S = 30.0
_MAX_PAGE_SIZE = 100
_NO_FILTER = DeadLetterFilter()
_STREAM_DOCUMENTS: Mapping[str, Any] = {
    "event": d.EventDocument,
    "output": d.OutputChunkDocument,
    "end": d.StreamEndDocument,
}

DocumentT = TypeVar("DocumentT", bound=d.ApiDocument)
PageT = TypeVar("PageT", d.JobPage, d.TaskPage, d.DeadLetterPage)
if TYPE_CHECKING:
    _Operations = Application
else:
    _Operations = object


@contextlib.asynccontextmanager
async def open_http_client(
    url: str, key: str, *, user_agent: str, trust_env: bool
) -> AsyncIterator[HttpClient]:
    """A client of the server at ``url``.

    Args:
        trust_env: Whether to use proxies that the environment names.
    """
    async with httpx.AsyncClient(
        base_url=f"{url}/v1/",
        headers={"x-api-key": key, "user-agent": user_agent},
        timeout=_TIMEOUT_S,
        trust_env=trust_env,
    ) as client:
        yield HttpClient(client, url)


class HttpClient(HttpTransport, _Operations):
    """The operations of the caller that the client's key belongs to.

    An operation that is one request (``HTTP_REQUESTS``) has its method from there; written here are
    those that collect pages, send several requests or read a stream.
    """

    async def _get(self, kind: type[DocumentT], path: str, **query: QueryValue) -> DocumentT:
        response = await self.request("GET", path, query=query, repeatable=True)
        return d.decode(response.content, kind)

    async def _send(
        self,
        kind: type[DocumentT],
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        **how: Any,
    ) -> DocumentT:
        response = await self.request(method, path, body, **how)
        return d.decode(response.content, kind)

    async def _list(
        self,
        kind: type[PageT],
        path: str,
        field: str,
        limit: int,
        cursor: str | None,
        **query: QueryValue,
    ) -> PageT:
        """A page of up to ``limit`` items, collected from the smaller pages of the server."""
        items: list[Any] = []
        while True:
            size = min(limit - len(items), _MAX_PAGE_SIZE)
            page = await self._get(kind, path, limit=size, cursor=cursor, **query)
            items += getattr(page, field)
            cursor = page.cursor
            if cursor is None or len(items) >= limit:
                setattr(page, field, items)
                return page

    # Jobs and tasks -----------------------------------------------------------------------------

    async def submit_file(
        self,
        document: Any,
        *,
        request_id: str | None = None,
        definitions: Sequence[Definition] = (),
    ) -> d.AcceptedJobDocument:
        own, job, problems = split_job_file(document)
        own = [*definitions, *own]
        await self._validate(job, own, problems)
        for definition in own:
            await self.put_definition(d.definition_request(definition))
        return await self.submit(job, request_id=request_id)

    async def submit_many(
        self, files: Sequence[Submission]
    ) -> list[d.AcceptedJobDocument | LongshoreError]:
        return [await self._answer(file) for file in files]

    async def _answer(self, file: Submission) -> d.AcceptedJobDocument | LongshoreError:
        id_, own = file.request_id, file.own
        try:
            return await self.submit_file(file.document, request_id=id_, definitions=own)
        except LongshoreError as error:
            return error

    async def _validate(
        self, job: Any, own: Sequence[Definition], own_problems: Sequence[Problem]
    ) -> None:
        """Check a job file before anything of it is stored."""
        problems = list(own_problems)
        try:
            read_job(job, limit=MAX_TASKS_PER_JOB)
        except InvalidJob as error:
            problems += error.problems
        names = {*BUILTIN_DEFINITIONS, *(definition.name for definition in own)}
        for path, name in referenced_definitions(job):
            try:
                if name not in names:
                    await self.get_definition(name)
            except NotFound:
                problems.append(Problem(path=path, message=NO_DEFINITION.format(name)))
            else:
                names.add(name)
        if problems:
            raise InvalidJob(problems)

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
        return await self._list(
            d.JobPage,
            *("jobs", "jobs", limit, cursor),
            status=state,
            name=name,
            createdFrom=_time_text(created_from),
            createdBefore=_time_text(created_before),
        )

    async def get_job(self, job_id: str, *, limit: int = 100) -> d.JobDetailDocument:
        job = await self._get(
            d.JobDetailDocument, _entity(job_id), limit=min(limit, _MAX_PAGE_SIZE)
        )
        missing = limit - len(job.tasks)
        if job.cursor is not None and missing > 0:
            page = await self.list_tasks(job_id=job_id, limit=missing, cursor=job.cursor)
            job.tasks, job.cursor = [*job.tasks, *page.tasks], page.cursor
        return job

    async def list_tasks(
        self,
        *,
        job_id: str | None = None,
        state: TaskState | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> d.TaskPage:
        path = _entity(job_id, "tasks") if job_id is not None else "tasks"
        return await self._list(d.TaskPage, path, "tasks", limit, cursor, status=state)

    # Artifacts, output, events ------------------------------------------------------------------

    async def open_artifact(self, task_id: str, name: str) -> ArtifactContent:
        path = f"{_entity(task_id)}/artifacts/{quote(name)}"
        content = (await self.request("GET", path, repeatable=True)).content

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        return ArtifactContent(size=len(content), chunks=chunks())

    async def follow_task_output(
        self, task_id: str, *, attempt: int | None = None, after: str = "0.0"
    ) -> AsyncIterator[d.StreamItem]:
        return self._stream(_entity(task_id, "output/stream"), attempt=attempt, after=after)

    async def follow_job_output(
        self, job_id: str, *, follow: bool = True, attempt: int | None = None
    ) -> AsyncIterator[d.StreamItem]:
        path = _entity(job_id, "output/stream")
        return _without_repeats(self._stream(path, follow=follow, attempt=attempt))

    async def follow_job_events(
        self, job_id: str, *, tasks: bool = True, cursor: str = ""
    ) -> AsyncIterator[d.StreamItem]:
        return self._stream(_entity(job_id, "events/stream"), tasks=tasks, cursor=cursor)

    async def follow_task_events(
        self, task_id: str, *, after: int = 0
    ) -> AsyncIterator[d.StreamItem]:
        return self._stream(_entity(task_id, "events/stream"), after=after)

    async def _stream(self, path: str, **query: QueryValue) -> AsyncIterator[d.StreamItem]:
        async for message in self.stream(path, **query):
            data = d.decode(message.data, _STREAM_DOCUMENTS[message.kind])
            yield d.StreamItem(kind=message.kind, id=message.id, data=data)  # type: ignore[arg-type]

    # Health -------------------------------------------------------------------------------------

    async def check_ready(self) -> d.ProbeDocument:
        return await self._get(d.ProbeDocument, f"{self.url}/ready")

    # Dead letters -------------------------------------------------------------------------------

    async def list_dead_letters(
        self,
        dead_filter: DeadLetterFilter = _NO_FILTER,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> d.DeadLetterPage:
        fields = _filter_fields(dead_filter)
        return await self._list(
            d.DeadLetterPage, "dead-letters", "dead_letters", limit, cursor, **fields
        )

    async def count_dead_letters(
        self, dead_filter: DeadLetterFilter = _NO_FILTER
    ) -> d.DeadLetterCountsDocument:
        return await self._get(
            d.DeadLetterCountsDocument, "dead-letters/counts", **_filter_fields(dead_filter)
        )

    async def replay_dead_letters(self, task_ids: Sequence[str]) -> d.ReplayResultDocument:
        result = d.ReplayResultDocument(replayed=[], skipped=[])
        for start in range(0, len(task_ids), _MAX_PAGE_SIZE):
            body = {"ids": list(task_ids[start : start + _MAX_PAGE_SIZE])}
            part = await self._send(d.ReplayResultDocument, "dead-letters/replay", body)
            result.replayed += part.replayed
            result.skipped += part.skipped
        return result

    async def replay_matching_dead_letters(
        self, dead_filter: DeadLetterFilter
    ) -> d.ReplayResultDocument:
        body = {"matching": _filter_fields(dead_filter)}
        return await self._send(d.ReplayResultDocument, "dead-letters/replay", body)

    # Definitions --------------------------------------------------------------------------------

    async def put_definition(self, document: Mapping[str, Any]) -> d.DefinitionDocument:
        return await self._send(
            d.DefinitionDocument,
            f"task-definitions/{_segment(str(document.get('name') or ''))}",
            dict(document),
            method="PUT",
            repeatable=True,
        )

    async def delete_definition(self, name: str) -> None:
        await self.request("DELETE", f"task-definitions/{_segment(name)}")

    # Queues, budgets, keys ----------------------------------------------------------------------

    async def get_budget(self, entity_id: str | None = None) -> d.BudgetStatusDocument:
        return await self._get(d.BudgetStatusDocument, _budget_path(entity_id))

    async def add_budget(
        self, entity_id: str | None, amount: Budget, *, request_id: str | None = None
    ) -> d.BudgetStatusDocument:
        body = d.to_dict(d.from_record(d.BudgetDocument, amount))
        path = _budget_path(entity_id)
        return await self._send(d.BudgetStatusDocument, path, body, request_id=request_id)


def _method(operation: Callable[..., Any], request: HttpRequest) -> Callable[..., Awaitable[Any]]:
    """The method that sends the request of an operation."""
    signature = inspect.signature(operation)

    @functools.wraps(operation)
    async def send(client: HttpClient, *args: Any, **options: Any) -> Any:
        call = signature.bind(client, *args, **options)
        call.apply_defaults()
        _, *parameters = call.arguments.items()
        values = {name: value for name, value in parameters if value is not None}
        path = request.path.format_map({name: _path_part(name, values[name]) for name in values})
        request_id = values.pop("request_id", None)
        fields = {
            camel_case(name): value
            for name, value in values.items()
            if f"{{{name}}}" not in request.path
        }
        response = await client.request(
            request.method,
            path,
            None if request.method == "GET" else fields.get("document", fields),
            query=fields if request.method == "GET" else {},
            request_id=request_id,
            repeatable=request.repeatable,
        )
        return d.decode(response.content, request.document)

    return send


for _name, _request in HTTP_REQUESTS.items():
    setattr(HttpClient, _name, _method(getattr(Application, _name), _request))


async def _without_repeats(stream: AsyncIterator[d.StreamItem]) -> AsyncIterator[d.StreamItem]:
    """The output of a job without the chunks that come again after a reconnect."""
    positions: dict[str, tuple[int, int]] = {}
    async for item in stream:
        if isinstance(chunk := item.data, d.OutputChunkDocument):
            position = (chunk.attempt, chunk.sequence)
            if position <= positions.get(chunk.task_id, (0, 0)):
                continue
            positions[chunk.task_id] = position
        yield item


def _segment(text: str) -> str:
    """Text as one segment of a path, with any characters."""
    return quote(text, safe="") or "-"


def _path_part(name: str, value: Any) -> str:
    """A parameter in a path; a job or task has its own path."""
    is_entity = name in ("job_id", "task_id", "entity_id")
    return _entity(value) if is_entity else _segment(str(value))


def _entity(entity_id: str, *parts: str) -> str:
    """The path of a job or task, or of a part of it."""
    job_id, key = split_task_id(entity_id)
    task = ("tasks", _segment(key)) if key else ()
    return "/".join(["jobs", _segment(job_id), *task, *parts])


def _budget_path(entity_id: str | None) -> str:
    return "budget" if entity_id is None else _entity(entity_id, "budget")


def _time_text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _filter_fields(dead_filter: DeadLetterFilter) -> dict[str, str | None]:
    return {
        "queue": dead_filter.queue,
        "name": dead_filter.definition,
        "category": dead_filter.category.value if dead_filter.category else None,
        "jobId": dead_filter.job_id,
        "since": _time_text(dead_filter.since),
    }
