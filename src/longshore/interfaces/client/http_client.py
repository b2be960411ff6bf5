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
from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, Definition
from longshore.core.definitions.reader import split_job_file
from longshore.core.ids import split_task_id
from longshore.core.jobs.submission import read_job, referenced_definitions
from longshore.core.maximums import MAX_TASKS_PER_JOB
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import InvalidJob, NotFound, Problem
from longshore.interfaces.client.transport import HttpTransport, Query
from longshore.services import documents as d
from longshore.services.app import HTTP_REQUESTS, Application, ArtifactContent, HttpRequest

_TIMEOUT_S = 30.0
_MAX_PAGE_SIZE = 100
_NO_FILTER = DeadLetterFilter()

DocumentT = TypeVar("DocumentT", bound=d.ApiDocument)
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
        yield HttpClient(HttpTransport(client, url))


class HttpClient(_Operations):
    """The operations of the caller that the client's key belongs to.

    An operation that is one request (``HTTP_REQUESTS``) has its method from there; written here are
    those that collect pages, send several requests or read a stream.
    """

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport

    async def _get(self, kind: type[DocumentT], path: str, **query: str | int | None) -> DocumentT:
        response = await self._transport.request("GET", path, query=query, repeatable=True)
        return d.decode(response.content, kind)

    async def _send(
        self, kind: type[DocumentT], method: str, path: str, body: Any = None, **how: Any
    ) -> DocumentT:
        response = await self._transport.request(method, path, body, **how)
        return d.decode(response.content, kind)

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

    async def _validate(
        self, job: Any, own: Sequence[Definition], own_problems: Sequence[Problem]
    ) -> None:
        """Check a job file before anything of it is stored."""
        problems = list(own_problems)
        try:
            read_job(job, limit=MAX_TASKS_PER_JOB)
        except InvalidJob as error:
            problems += error.problems
        exists = dict.fromkeys([definition.name for definition in own], True)
        exists |= dict.fromkeys(BUILTIN_DEFINITIONS, True)
        for path, name in referenced_definitions(job):
            if name not in exists:
                exists[name] = await self._definition_exists(name)
            if not exists[name]:
                problems.append(Problem(path=path, message=f"no definition is called {name!r}"))
        if problems:
            raise InvalidJob(problems)

    async def _definition_exists(self, name: str) -> bool:
        try:
            await self.get_definition(name)
        except NotFound:
            return False
        return True

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
        jobs: list[d.JobDocument] = []
        while True:
            page = await self._get(
                d.JobPage,
                "jobs",
                status=state,
                name=name,
                createdFrom=_time_text(created_from),
                createdBefore=_time_text(created_before),
                limit=min(limit - len(jobs), _MAX_PAGE_SIZE),
                cursor=cursor,
            )
            jobs, cursor = [*jobs, *page.jobs], page.cursor
            if cursor is None or len(jobs) >= limit:
                return d.JobPage(jobs=jobs, cursor=cursor)

    async def get_job(self, job_id: str, *, limit: int = 100) -> d.JobDetailDocument:
        job = await self._get(
            d.JobDetailDocument, _entity_path(job_id), limit=min(limit, _MAX_PAGE_SIZE)
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
        path = f"{_entity_path(job_id)}/tasks" if job_id is not None else "tasks"
        tasks: list[d.TaskDocument] = []
        while True:
            page = await self._get(
                d.TaskPage,
                path,
                status=state,
                limit=min(limit - len(tasks), _MAX_PAGE_SIZE),
                cursor=cursor,
            )
            tasks, cursor = [*tasks, *page.tasks], page.cursor
            if cursor is None or len(tasks) >= limit:
                return d.TaskPage(tasks=tasks, cursor=cursor)

    # Artifacts, output, events ------------------------------------------------------------------

    async def open_artifact(self, task_id: str, name: str) -> ArtifactContent:
        path = f"{_entity_path(task_id)}/artifacts/{quote(name)}"
        content = (await self._transport.request("GET", path, repeatable=True)).content

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        return ArtifactContent(size=len(content), chunks=chunks())

    async def follow_task_output(
        self, task_id: str, *, attempt: int | None = None, after: str = "0.0"
    ) -> AsyncIterator[d.StreamItem]:
        path = f"{_entity_path(task_id)}/output/stream"
        return self._stream(d.OutputChunkDocument, path, attempt=attempt, after=after)

    async def follow_job_output(
        self, job_id: str, *, follow: bool = True, attempt: int | None = None
    ) -> AsyncIterator[d.StreamItem]:
        path = f"{_entity_path(job_id)}/output/stream"
        query: Query = {"follow": _flag(follow), "attempt": attempt}
        return _without_repeats(self._stream(d.OutputChunkDocument, path, **query))

    async def follow_job_events(
        self, job_id: str, *, tasks: bool = True, cursor: str = ""
    ) -> AsyncIterator[d.StreamItem]:
        path = f"{_entity_path(job_id)}/events/stream"
        return self._stream(d.EventDocument, path, tasks=_flag(tasks), cursor=cursor)

    async def follow_task_events(
        self, task_id: str, *, after: int = 0
    ) -> AsyncIterator[d.StreamItem]:
        path = f"{_entity_path(task_id)}/events/stream"
        return self._stream(d.EventDocument, path, after=after)

    async def _stream(
        self,
        kind: type[d.EventDocument | d.OutputChunkDocument],
        path: str,
        **query: str | int | None,
    ) -> AsyncIterator[d.StreamItem]:
        async for message in self._transport.stream(path, **query):
            if message.kind == "end":
                data = d.decode(message.data, d.StreamEndDocument)
                yield d.StreamItem(kind="end", data=data)
            else:
                # The server names each item after the kind of stream.
                item = d.decode(message.data, kind)
                name = "event" if isinstance(item, d.EventDocument) else "output"
                yield d.StreamItem(kind=name, id=message.id, data=item)  # type: ignore[arg-type]

    # Health -------------------------------------------------------------------------------------

    async def check_ready(self) -> d.ProbeDocument:
        return await self._get(d.ProbeDocument, f"{self._transport.url}/ready")

    # Dead letters -------------------------------------------------------------------------------

    async def list_dead_letters(
        self,
        dead_filter: DeadLetterFilter = _NO_FILTER,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> d.DeadLetterPage:
        letters: list[d.DeadLetterDocument] = []
        while True:
            page = await self._get(
                d.DeadLetterPage,
                "dead-letters",
                limit=min(limit - len(letters), _MAX_PAGE_SIZE),
                cursor=cursor,
                **_filter_fields(dead_filter),
            )
            letters, cursor = [*letters, *page.dead_letters], page.cursor
            if cursor is None or len(letters) >= limit:
                return d.DeadLetterPage(dead_letters=letters, count=page.count, cursor=cursor)

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
            part = await self._send(d.ReplayResultDocument, "POST", "dead-letters/replay", body)
            result.replayed += part.replayed
            result.skipped += part.skipped
        return result

    async def replay_matching_dead_letters(
        self, dead_filter: DeadLetterFilter
    ) -> d.ReplayResultDocument:
        matching = {
            name: value for name, value in _filter_fields(dead_filter).items() if value is not None
        }
        body = {"matching": matching}
        return await self._send(d.ReplayResultDocument, "POST", "dead-letters/replay", body)

    # Definitions --------------------------------------------------------------------------------

    async def put_definition(self, document: Mapping[str, Any]) -> d.DefinitionDocument:
        path = f"task-definitions/{_segment(str(document.get('name') or ''))}"
        return await self._send(d.DefinitionDocument, "PUT", path, dict(document), repeatable=True)

    async def delete_definition(self, name: str) -> None:
        await self._transport.request("DELETE", f"task-definitions/{_segment(name)}")

    # Queues, budgets, keys ----------------------------------------------------------------------

    async def get_budget(self, entity_id: str | None = None) -> d.BudgetStatusDocument:
        return await self._get(d.BudgetStatusDocument, _budget_path(entity_id))

    async def add_budget(
        self, entity_id: str | None, amount: Budget, *, request_id: str | None = None
    ) -> d.BudgetStatusDocument:
        body = d.to_dict(d.from_record(d.BudgetDocument, amount))
        path = _budget_path(entity_id)
        return await self._send(d.BudgetStatusDocument, "POST", path, body, request_id=request_id)


def _method(operation: Callable[..., Any], request: HttpRequest) -> Callable[..., Awaitable[Any]]:
    """The method that sends the request of an operation."""

    @functools.wraps(operation)
    async def send(client: HttpClient, *args: Any, **options: Any) -> Any:
        arguments = inspect.signature(operation).bind(client, *args, **options)
        arguments.apply_defaults()
        _, *parameters = arguments.arguments.items()
        values = {name: value for name, value in parameters if value is not None}
        parts = {name: _path_part(name, value) for name, value in values.items()}
        how: dict[str, Any] = {"repeatable": request.repeatable}
        if "request_id" in values:
            how["request_id"] = values.pop("request_id")
        fields = {
            _camel_case(name): _flag(value) if isinstance(value, bool) else value
            for name, value in values.items()
            if f"{{{name}}}" not in request.path
        }
        if request.method == "GET":
            how["query"] = fields
        else:
            how["body"] = fields.get("document", fields)
        path = request.path.format_map(parts)
        response = await client._transport.request(request.method, path, **how)
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
    """A parameter in a path."""
    is_entity = name in ("job_id", "task_id", "entity_id")
    return _entity_path(value) if is_entity else _segment(str(value))


def _camel_case(name: str) -> str:
    first, *words = name.split("_")
    return first + "".join(word.capitalize() for word in words)


def _entity_path(entity_id: str) -> str:
    """The path of a job or task."""
    job_id, key = split_task_id(entity_id)
    path = f"jobs/{_segment(job_id)}"
    return f"{path}/tasks/{_segment(key)}" if key else path


def _budget_path(entity_id: str | None) -> str:
    return "budget" if entity_id is None else f"{_entity_path(entity_id)}/budget"


def _flag(value: bool) -> str:  # noqa: FBT001 - it converts the value
    return "true" if value else "false"


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
