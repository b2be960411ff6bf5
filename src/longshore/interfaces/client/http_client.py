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
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

import httpx

from longshore.core.budgets import Budget
from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.definitions.reader import DEFINITIONS, split_job_file
from longshore.core.events.codec import camel_case
from longshore.core.ids import split_task_id
from longshore.core.maximums import MAX_JOBS_PER_BATCH
from longshore.errors import LongshoreError
from longshore.interfaces.client.transport import (
    BodyTooLarge,
    HttpTransport,
    QueryValue,
    StreamMessage,
)
from longshore.interfaces.request_ids import draw_request_id
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
_PAGES = (d.JobPage, d.TaskPage, d.DeadLetterPage)
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
    those that send several requests.
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
        self, kind: type[PageT], path: str, *, limit: int, cursor: str | None = None, **query: Any
    ) -> PageT:
        """A page of up to ``limit`` items, collected from the smaller pages of the server."""
        field, *_ = kind.__struct_fields__
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

    submit_file = Application.submit_file  # by submit_many

    async def submit_many(
        self, files: Sequence[Submission]
    ) -> list[d.AcceptedJobDocument | LongshoreError]:
        return await self._submit_batch(
            [
                {"job": _job_file(file), "requestId": file.request_id or draw_request_id()}
                for file in files
            ]
        )

    async def _submit_batch(
        self, jobs: Sequence[Mapping[str, Any]]
    ) -> list[d.AcceptedJobDocument | LongshoreError]:
        """The answers to jobs, in their order; too many for one request are sent in halves."""
        if not jobs:
            return []
        if len(jobs) <= MAX_JOBS_PER_BATCH:
            body = {"jobs": jobs}
            try:
                sent = await self._send(d.BatchAnswersDocument, "jobs/batch", body, repeatable=True)
            except LongshoreError as error:
                if len(jobs) == 1 or not isinstance(error, BodyTooLarge):
                    return [error] * len(jobs)
            else:
                return [
                    answer.job or self.error_of(cast("d.ProblemDocument", answer.problem))
                    for answer in sent.answers
                ]
        half = len(jobs) // 2
        return [*await self._submit_batch(jobs[:half]), *await self._submit_batch(jobs[half:])]

    async def get_job(self, job_id: str, *, limit: int = 100) -> d.JobDetailDocument:
        job = await self._get(
            d.JobDetailDocument, _entity(job_id), limit=min(limit, _MAX_PAGE_SIZE)
        )
        missing = limit - len(job.tasks)
        if job.cursor is not None and missing > 0:
            page = await self.list_tasks(job_id=job_id, limit=missing, cursor=job.cursor)
            job.tasks, job.cursor = [*job.tasks, *page.tasks], page.cursor
        return job

    # Artifacts, output, events ------------------------------------------------------------------

    async def open_artifact(self, task_id: str, name: str) -> ArtifactContent:
        path = f"{_entity(task_id)}/artifacts/{quote(name)}"
        content = (await self.request("GET", path, repeatable=True)).content

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        return ArtifactContent(size=len(content), chunks=chunks())

    # Health -------------------------------------------------------------------------------------

    async def check_ready(self) -> d.ProbeDocument:
        return await self._get(d.ProbeDocument, f"{self.url}/ready")

    # Dead letters -------------------------------------------------------------------------------

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


def _job_file(file: Submission) -> Any:
    """The document of a job file, with the definitions that come with it."""
    in_file, job, problems = split_job_file(file.document)
    if not file.own or problems or not isinstance(job, Mapping):
        return file.document  # the server reports what is wrong with it
    return {**job, DEFINITIONS: [d.definition_request(item) for item in (*file.own, *in_file)]}


def _method(operation: Callable[..., Any], request: HttpRequest) -> Callable[..., Awaitable[Any]]:
    """The method that sends the request of an operation."""
    signature = inspect.signature(operation)
    answer: Any = request.document

    @functools.wraps(operation)
    async def send(client: HttpClient, *args: Any, **options: Any) -> Any:
        call = signature.bind(client, *args, **options)
        call.apply_defaults()
        del call.arguments["self"]
        path = request.path.format_map(
            {name: _path_part(name, call.arguments[name]) for name in call.arguments}
        ).lstrip("/")
        request_id = call.arguments.pop("request_id", None)
        fields: dict[str, Any] = {}
        for name, value in call.arguments.items():
            if value is not None and f"{{{name}}}" not in request.path:
                fields |= _fields_of(name, value)
        if answer is d.StreamItem:
            return _read_stream(client.stream(path, **fields))
        if answer in _PAGES:
            return await client._list(answer, path, **fields)
        response = await client.request(
            request.method,
            path,
            None if request.method == "GET" else fields.get("document", fields),
            query=fields if request.method == "GET" else {},
            request_id=request_id,
            repeatable=request.repeatable,
        )
        return d.decode(response.content, answer) if answer else None

    return send


for _name, _request in HTTP_REQUESTS.items():
    setattr(HttpClient, _name, _method(getattr(Application, _name), _request))


async def _read_stream(messages: AsyncIterator[StreamMessage]) -> AsyncIterator[d.StreamItem]:
    """The items of a stream, without the output that comes again after a reconnect."""
    positions: dict[str, tuple[int, int]] = {}
    async for message in messages:
        data = d.decode(message.data, _STREAM_DOCUMENTS[message.kind])
        if isinstance(data, d.OutputChunkDocument):
            position = (data.attempt, data.sequence)
            if position <= positions.get(data.task_id, (0, 0)):
                continue
            positions[data.task_id] = position
        yield d.StreamItem(kind=message.kind, id=message.id, data=data)  # type: ignore[arg-type]


def _segment(text: str) -> str:
    """Text as one segment of a path, with any characters."""
    return quote(text, safe="") or "-"


def _path_part(name: str, value: Any) -> str:
    """A parameter in a path; a job or task has its own path, and None has none."""
    if value is None:
        return ""
    is_entity = name in ("job_id", "task_id", "entity_id")
    return _entity(value) if is_entity else _segment(str(value))


def _entity(entity_id: str, *parts: str) -> str:
    """The path of a job or task, or of a part of it."""
    job_id, key = split_task_id(entity_id)
    task = ("tasks", _segment(key)) if key else ()
    return "/".join(["jobs", _segment(job_id), *task, *parts])


def _fields_of(name: str, value: Any) -> dict[str, Any]:
    """A parameter as fields of a query or a body."""
    match value:
        case DeadLetterFilter():
            return _filter_fields(value)
        case Budget():
            return d.to_dict(d.from_record(d.BudgetDocument, value))
        case datetime():
            return {camel_case(name): value.isoformat()}
    return {"status" if name == "state" else camel_case(name): value}


def _filter_fields(dead_filter: DeadLetterFilter) -> dict[str, str | None]:
    return {
        "queue": dead_filter.queue,
        "name": dead_filter.definition,
        "category": dead_filter.category.value if dead_filter.category else None,
        "jobId": dead_filter.job_id,
        "since": dead_filter.since.isoformat() if dead_filter.since else None,
    }
