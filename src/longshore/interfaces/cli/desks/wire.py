"""Requests to a server: sent with the key, tried again where that is safe, answered or explained.

What a server refuses becomes the error that the services themselves would have raised, so that a
command ends with the same sentence and the same exit code wherever it asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from longshore.core.dag import Problem
from longshore.errors import (
    AlreadyExists,
    BackendUnavailable,
    CommandRefused,
    ConfigurationError,
    InvalidJob,
    LongshoreError,
    NotFound,
    OutcomeUnknown,
    UsageError,
)

_KIND = "urn:longshore:problem:"
_TRIES = 4
_FIRST_WAIT_S = 0.25
_LONGEST_WAIT_S = 10.0
# For how long a stream that was cut off is asked for again before somebody is told.
_STREAM_TRIES = 8

# A stream is silent for as long as its task is, but for a sign of life every few seconds.
_PATIENT = httpx.Timeout(10.0, read=60.0)
_ADVICE = {
    401: "; LONGSHORE_API_KEY or `longshore contexts add` gives another key",
}

Query = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Told:
    """One message of a stream."""

    kind: str
    id: str | None
    data: Any


class _Gone(NotFound):
    def __str__(self) -> str:
        return self.name


class _Refusal(CommandRefused):
    def __str__(self) -> str:
        return self.reason


class _Taken(AlreadyExists):
    def __str__(self) -> str:
        return self.name


class Wire:
    """One server."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    async def get(self, path: str, **query: str | int | None) -> Any:
        """What is there."""
        return await self.send("GET", path, query=query, repeatable=True)

    async def send(self, method: str, path: str, body: Any = None, **how: Any) -> Any:
        """What a request was answered with; ``how`` it is sent, ``answer`` says."""
        answer = await self.answer(method, path, body, **how)
        return answer.json() if answer.content else None

    async def answer(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Query | None = None,
        request_id: str | None = None,
        repeatable: bool = False,
    ) -> httpx.Response:
        """The answer to a request, with its status.

        Args:
            request_id: makes the server do it once, however often it is asked.
            repeatable: doing it twice is as good as once.
        """
        headers = {"Idempotency-Key": request_id} if request_id else {}
        again = repeatable or request_id is not None
        request = self._client.build_request(
            method, path, params=_given(query), json=body, headers=headers
        )
        wait = _FIRST_WAIT_S
        for left in reversed(range(_TRIES)):
            try:
                answer = await self._client.send(request)
            except httpx.HTTPError as error:
                if not left or not again or isinstance(error, httpx.ConnectError):
                    raise self._unreached(error, unknown=not again) from error
            else:
                if answer.is_success:
                    return answer
                error_ = await self._error(answer)
                # Either was refused before anything was done.
                if answer.status_code not in (429, 503) or not left:
                    raise error_
                wait = max(wait, _seconds(answer.headers.get("retry-after")))
            await asyncio.sleep(min(wait, _LONGEST_WAIT_S))
            wait *= 2
        raise AssertionError  # the last try returns or raises

    async def stream(self, path: str, **query: str | int | None) -> AsyncIterator[Told]:
        """Messages until the server says that there are no more; cut off, it goes on.

        Messages that have no id come again then, from the first.
        """
        failures = 0
        headers = {"accept": "text/event-stream"}
        while True:
            try:
                async with self._client.stream(
                    "GET", path, params=_given(query), headers=headers, timeout=_PATIENT
                ) as answer:
                    if not answer.is_success:
                        raise await self._error(answer)
                    async for told in _messages(answer):
                        failures = 0
                        if told.kind == "end":
                            return
                        if told.id is not None:
                            headers["Last-Event-ID"] = told.id
                        yield told
            except httpx.HTTPError as error:
                failures += 1
                if failures >= _STREAM_TRIES:
                    raise self._unreached(error) from error
            except BackendUnavailable:
                failures += 1
                if failures >= _STREAM_TRIES:
                    raise
            else:
                failures += 1  # it ended without a word: a server that stops does so
            await asyncio.sleep(min(_FIRST_WAIT_S * 2**failures, _LONGEST_WAIT_S))

    def _unreached(self, error: httpx.HTTPError, *, unknown: bool = False) -> LongshoreError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            message = f"no server answers at {self._url}; is `longshore up` running there?"
            return BackendUnavailable(message)
        kind = type(error).__name__
        if unknown:
            message = (
                f"{self._url} did not answer ({kind}), and whether it was done is not known; "
                "look before you ask again"
            )
            return OutcomeUnknown(message)
        return BackendUnavailable(f"{self._url} did not answer ({kind})")

    async def _error(self, answer: httpx.Response) -> LongshoreError:
        try:
            problem = json.loads(await answer.aread())
            detail, kind = str(problem["detail"]), str(problem["type"]).removeprefix(_KIND)
        except (ValueError, KeyError, TypeError):
            detail, kind, problem = f"HTTP {answer.status_code}", "", {}
        status = answer.status_code
        match status, kind:
            case ((401 | 421), _):
                advice = "LONGSHORE_API_KEY or `longshore contexts add` gives another key"
                return ConfigurationError(
                    [f"{self._url}: {detail}" + (f"; {advice}" if status == 401 else "")]
                )
            case 404, "not-found":
                return _Gone("thing", detail)
            case ((403 | 409), _):
                return _Refusal("", detail)
            case 422, "request-id-used":
                return _Taken("request", detail)
            case 422, _ if problem.get("errors"):
                return InvalidJob([Problem(**one) for one in problem["errors"]])
            case 429, _:
                return BackendUnavailable(f"{self._url}: {detail}")
            case _ if status >= httpx.codes.INTERNAL_SERVER_ERROR:
                return BackendUnavailable(f"{self._url}: {detail}")
            case _ if kind:
                return UsageError(f"{self._url}: {detail}")
        return ConfigurationError([f"{self._url} does not answer as Longshore would ({detail})"])


def _given(query: Query | None) -> dict[str, str | int]:
    return {name: value for name, value in (query or {}).items() if value is not None}


def _seconds(text: str | None) -> float:
    try:
        return max(float(text or 0), 0.0)
    except ValueError:
        return 0.0


async def _messages(answer: httpx.Response) -> AsyncIterator[Told]:
    """Server-sent events, as the HTML standard has them."""
    kind, id_ = "message", None
    data: list[str] = []
    async for line in answer.aiter_lines():
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            if data:
                yield Told(kind, id_, json.loads("\n".join(data)))
            kind, data = "message", []
        elif name == "event":
            kind = value
        elif name == "id":
            id_ = value
        elif name == "data":
            data.append(value)
