"""The HTTP client: the operations of ``services.app.Application``, carried out by a server.

Methods, parameters, documents and errors are those of ``Application``: a problem that the server
answers with becomes the error that ``Application`` would have raised. A request is sent again where
that is safe. A listing may be longer than a page of the server: its pages are collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

import httpx2

from longshore.core.budgets import Budget
from longshore.core.dead_letters import DeadLetterFilter
from longshore.core.definitions.reader import DEFINITIONS, split_job_file
from longshore.core.events.codec import camel_case
from longshore.core.ids import split_task_id
from longshore.core.maximums import MAX_JOBS_PER_BATCH
from longshore.errors import (
    AlreadyExists,
    BackendUnavailable,
    CommandRefused,
    ConfigurationError,
    InvalidJob,
    LongshoreError,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    Problem,
    UsageError,
)
from longshore.interfaces.request_ids import draw_request_id
from longshore.services import documents as d
from longshore.services.app import HTTP_REQUESTS, Application, ArtifactContent, HttpRequest
from longshore.services.submit import Submission

QueryValue = str | int | bool | None

_TIMEOUT_S = 30.0
_PROBLEM_TYPE_PREFIX = "urn:longshore:problem:"
_MAX_TRIES = 4
_NOT_BEGUN = (429, 503)
_FIRST_WAIT_S = 0.25
_MAX_WAIT_S = 10.0
# How often a stream that was cut off is requested again before an error is raised.
_STREAM_TRIES = 8

# A stream is silent while its task is, except for a comment every few seconds.
_STREAM_TIMEOUT = httpx2.Timeout(10.0, read=60.0)
_MAX_PAGE_SIZE = 100
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


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One message of a stream; ``data`` is JSON."""

    kind: str
    id: str | None
    data: str


class _RemoteNotFound(NotFound):
    def __str__(self) -> str:
        return self.name


class _RemoteRefusal(CommandRefused):
    def __str__(self) -> str:
        return self.reason


class _RemoteAlreadyExists(AlreadyExists):
    def __str__(self) -> str:
        return self.name


class BodyTooLarge(UsageError):
    """The body of a request is larger than the server allows."""


@contextlib.asynccontextmanager
async def open_http_client(
    url: str, key: str, *, user_agent: str, trust_env: bool
) -> AsyncIterator[HttpClient]:
    """A client of the server at ``url``.

    Args:
        trust_env: Whether to use proxies that the environment names.

    Raises:
        ConfigurationError: the key cannot be sent.
    """
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(
            [f"the API key for {url} has characters that no key has: was it copied completely?"]
        )
    async with httpx2.AsyncClient(
        base_url=f"{url}/v1/",
        headers={"x-api-key": key, "user-agent": user_agent},
        timeout=_TIMEOUT_S,
        trust_env=trust_env,
    ) as client:
        yield HttpClient(client, url)


class HttpClient(_Operations):
    """The operations of the caller that the client's key belongs to.

    An operation that is one request (``HTTP_REQUESTS``) has its method from there; written here are
    those that send several requests.
    """

    def __init__(self, client: httpx2.AsyncClient, url: str) -> None:
        self.client = client
        self.url = url

    # Requests -----------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, QueryValue] = {},
        request_id: str | None = None,
        repeatable: bool = False,
    ) -> httpx2.Response:
        """The response of the server, if it is a success.

        A request that may be repeated is sent again after a connection error. One that the server
        has not begun to carry out (429, 503) is always sent again.

        Args:
            request_id: makes the server carry out the request once, however often it is sent.
            repeatable: carrying it out twice is the same as once.

        Raises:
            LongshoreError: the error that the server answered with.
            BackendUnavailable: the server cannot be reached.
            OutcomeUnknown: the connection broke, and the request must not be repeated.
        """
        headers = {"Idempotency-Key": request_id} if request_id else {}
        repeatable = repeatable or request_id is not None
        request = self.client.build_request(
            method, path, params=_without_none(query), json=body, headers=headers
        )
        wait = _FIRST_WAIT_S
        for tries_left in range(_MAX_TRIES - 1, -1, -1):
            try:
                response = await self.client.send(request)
            except httpx2.HTTPError as error:
                refused = isinstance(error, httpx2.ConnectError)
                if not tries_left or not repeatable or refused:
                    raise self._connection_error(error, unknown=not repeatable) from error
            else:
                if response.is_success:
                    return response
                if response.status_code not in _NOT_BEGUN or not tries_left:
                    raise await self._error(response)
                wait = max(wait, _retry_after_s(response.headers.get("retry-after")))
            await asyncio.sleep(min(wait, _MAX_WAIT_S))
            wait *= 2
        raise AssertionError  # the last try returns or raises

    async def stream(self, path: str, **query: QueryValue) -> AsyncIterator[StreamMessage]:
        """The messages of a stream, the last one of the kind ``end``.

        A stream that was cut off is requested again, after the last message with an id; messages
        without ids come again from the first.
        """
        failures = 0
        headers = {"accept": "text/event-stream"}
        while True:
            try:
                async with self.client.stream(
                    "GET",
                    path,
                    params=_without_none(query),
                    headers=headers,
                    timeout=_STREAM_TIMEOUT,
                ) as answer:
                    if not answer.is_success:
                        raise await self._error(answer)
                    async for message in _read_messages(answer):
                        failures = 0
                        if message.id is not None:
                            headers["Last-Event-ID"] = message.id
                        yield message
                        if message.kind == "end":
                            return
            except (httpx2.HTTPError, BackendUnavailable) as error:
                if failures + 1 >= _STREAM_TRIES:
                    if isinstance(error, BackendUnavailable):
                        raise
                    raise self._connection_error(error) from error
            # Also if it ended without an end message: the server stopped.
            failures += 1
            await asyncio.sleep(min(_FIRST_WAIT_S * 2**failures, _MAX_WAIT_S))

    def _connection_error(
        self, error: httpx2.HTTPError, *, unknown: bool = False
    ) -> LongshoreError:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            message = f"no server answers at {self.url}; is `longshore up` running there?"
            return BackendUnavailable(message)
        kind = type(error).__name__
        if unknown:
            message = (
                f"{self.url} did not answer ({kind}), and whether it was done is not known; "
                "look before you ask again"
            )
            return OutcomeUnknown(message)
        return BackendUnavailable(f"{self.url} did not answer ({kind})")

    async def _error(self, answer: httpx2.Response) -> LongshoreError:
        try:
            problem = d.decode(await answer.aread(), d.ProblemDocument)
        except ValueError:
            detail = f"HTTP {answer.status_code}"
            problem = d.ProblemDocument(
                type="", title="", status=answer.status_code, detail=detail, request_id=""
            )
        return self.error_of(problem)

    def error_of(self, problem: d.ProblemDocument) -> LongshoreError:
        """The error that ``Application`` would have raised."""
        status, detail = problem.status, problem.detail
        kind = problem.type.removeprefix(_PROBLEM_TYPE_PREFIX)
        match status, kind:
            case ((401 | 421), _):
                advice = "LONGSHORE_API_KEY or `longshore contexts add` gives another key"
                return ConfigurationError(
                    [f"{self.url}: {detail}" + (f"; {advice}" if status == 401 else "")]
                )
            case 404, "not-found":
                return _RemoteNotFound("thing", detail)
            case 403, _:
                return NotAllowed(detail)
            case 409, _:
                return _RemoteRefusal("", detail)
            case 413, "too-large":
                return BodyTooLarge(f"{self.url}: {detail}")
            case 422, "request-id-used":
                return _RemoteAlreadyExists("request", detail)
            case 422, _ if problem.errors:
                return InvalidJob([Problem(entry.path, entry.message) for entry in problem.errors])
            case _ if status == 429 or status >= httpx2.codes.INTERNAL_SERVER_ERROR:
                return BackendUnavailable(f"{self.url}: {detail}")
            case _ if kind:
                return UsageError(f"{self.url}: {detail}")
        return ConfigurationError([f"{self.url} does not answer as Longshore would ({detail})"])

    async def _get(self, kind: type[DocumentT], path: str, **query: QueryValue) -> DocumentT:
        response = await self.request("GET", path, query=query, repeatable=True)
        return self.decode(response, kind)

    async def _post(
        self, kind: type[DocumentT], path: str, body: Any, *, repeatable: bool = False
    ) -> DocumentT:
        response = await self.request("POST", path, body, repeatable=repeatable)
        return self.decode(response, kind)

    def decode(self, response: httpx2.Response, kind: type[DocumentT]) -> DocumentT:
        """Returns the document in a response.

        Raises:
            ConfigurationError: the answer is not from a Longshore server of a compatible version.
        """
        try:
            return d.decode(response.content, kind)
        except ValueError as error:
            content_type = response.headers.get("content-type") or "no content type"
            raise ConfigurationError(
                [
                    f"{self.url} answered with something that Longshore does not send "
                    f"({content_type}): check that it is the address of a Longshore server, and "
                    "that its version is not older or newer than this one"
                ]
            ) from error

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
                sent = await self._post(d.BatchAnswersDocument, "jobs/batch", body, repeatable=True)
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

    async def replay_dead_letters(
        self, selected: Sequence[str] | DeadLetterFilter
    ) -> d.ReplayResultDocument:
        if isinstance(selected, DeadLetterFilter):
            body: Any = {"matching": _filter_fields(selected)}
            return await self._post(d.ReplayResultDocument, "dead-letters/replay", body)
        result = d.ReplayResultDocument(replayed=[], skipped=[])
        for start in range(0, len(selected), _MAX_PAGE_SIZE):
            body = {"ids": list(selected[start : start + _MAX_PAGE_SIZE])}
            part = await self._post(d.ReplayResultDocument, "dead-letters/replay", body)
            result.replayed += part.replayed
            result.skipped += part.skipped
        return result


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
        return client.decode(response, answer) if answer else None

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


def _entity(entity_id: str) -> str:
    """The path of a job or task."""
    job_id, key = split_task_id(entity_id)
    return f"jobs/{_segment(job_id)}" + (f"/tasks/{_segment(key)}" if key else "")


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


def _without_none(query: Mapping[str, QueryValue]) -> dict[str, str | int]:
    return {name: value for name, value in query.items() if value is not None}


def _retry_after_s(text: str | None) -> float:
    try:
        return max(float(text or 0), 0.0)
    except ValueError:
        return 0.0


async def _read_messages(answer: httpx2.Response) -> AsyncIterator[StreamMessage]:
    """The server-sent events of a response, as the HTML standard defines them."""
    kind, id_ = "message", None
    data: list[str] = []
    async for line in answer.aiter_lines():
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            if data:
                yield StreamMessage(kind, id_, "\n".join(data))
            kind, id_, data = "message", None, []
        elif name == "event":
            kind = value
        elif name == "id":
            id_ = value
        elif name == "data":
            data.append(value)
