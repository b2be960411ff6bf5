"""HTTP requests to a server: retried where that is safe, with errors as exceptions.

A problem that the server answers with becomes the error that ``Application`` would have raised, so
that callers get the same error from a server as from a data folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from longshore.errors import (
    AlreadyExists,
    BackendUnavailable,
    CommandRefused,
    ConfigurationError,
    InvalidJob,
    LongshoreError,
    NotFound,
    OutcomeUnknown,
    Problem,
    UsageError,
)
from longshore.services.documents import ProblemDocument, decode

_PROBLEM_TYPE_PREFIX = "urn:longshore:problem:"
_MAX_TRIES = 4
_NOT_BEGUN = (429, 503)
_FIRST_WAIT_S = 0.25
_MAX_WAIT_S = 10.0
# How often a stream that was cut off is requested again before an error is raised.
_STREAM_TRIES = 8

# A stream is silent while its task is, except for a comment every few seconds.
_STREAM_TIMEOUT = httpx.Timeout(10.0, read=60.0)
QueryValue = str | int | bool | None


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


@dataclass(frozen=True, slots=True)
class HttpTransport:
    """The connection to one server."""

    client: httpx.AsyncClient
    url: str

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, QueryValue] = {},
        request_id: str | None = None,
        repeatable: bool = False,
    ) -> httpx.Response:
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
            except httpx.HTTPError as error:
                refused = isinstance(error, httpx.ConnectError)
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
            except httpx.HTTPError as error:
                failures += 1
                if failures >= _STREAM_TRIES:
                    raise self._connection_error(error) from error
            except BackendUnavailable:
                failures += 1
                if failures >= _STREAM_TRIES:
                    raise
            else:
                failures += 1  # it ended without an end message: the server stopped
            await asyncio.sleep(min(_FIRST_WAIT_S * 2**failures, _MAX_WAIT_S))

    def _connection_error(self, error: httpx.HTTPError, *, unknown: bool = False) -> LongshoreError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
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

    async def _error(self, answer: httpx.Response) -> LongshoreError:
        try:
            problem = decode(await answer.aread(), ProblemDocument)
        except ValueError:
            detail = f"HTTP {answer.status_code}"
            problem = ProblemDocument(
                type="", title="", status=answer.status_code, detail=detail, request_id=""
            )
        return self.error_of(problem)

    def error_of(self, problem: ProblemDocument) -> LongshoreError:
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
            case ((403 | 409), _):
                return _RemoteRefusal("", detail)
            case 413, "too-large":
                return BodyTooLarge(f"{self.url}: {detail}")
            case 422, "request-id-used":
                return _RemoteAlreadyExists("request", detail)
            case 422, _ if problem.errors:
                return InvalidJob([Problem(entry.path, entry.message) for entry in problem.errors])
            case _ if status == 429 or status >= httpx.codes.INTERNAL_SERVER_ERROR:
                return BackendUnavailable(f"{self.url}: {detail}")
            case _ if kind:
                return UsageError(f"{self.url}: {detail}")
        return ConfigurationError([f"{self.url} does not answer as Longshore would ({detail})"])


def _without_none(query: Mapping[str, QueryValue]) -> dict[str, str | int]:
    return {name: value for name, value in query.items() if value is not None}


def _retry_after_s(text: str | None) -> float:
    try:
        return max(float(text or 0), 0.0)
    except ValueError:
        return 0.0


async def _read_messages(answer: httpx.Response) -> AsyncIterator[StreamMessage]:
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
