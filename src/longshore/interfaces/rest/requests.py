"""Reads requests: JSON bodies, and parameters that several routes have.

Everything that a client controls has a limit. The framework's parser has no limit of size or depth,
takes the last of two equal keys, and accepts NaN. Compressed bodies are refused. A long body is
parsed in a thread, and has a limit of values: an empty list in JSON has 2 bytes, in memory 56.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Query, Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from longshore.core.ids import task_id_of
from longshore.core.text.json_bounds import has_more_values
from longshore.errors import Problem
from longshore.interfaces.document_files import UnreadableDocument, parse_json
from longshore.interfaces.rest.errors import ApiProblem
from longshore.services.app import Application
from longshore.services.resilience import run_without_loop

ModelT = TypeVar("ModelT", bound=BaseModel)
ResultT = TypeVar("ResultT")

MAX_PAGE_SIZE = 100
MAX_LONG_PAGE_SIZE = 1_000
"""For small items: output chunks, events, ids."""

MAX_JOB_VALUES = 500_000
MAX_BODY_VALUES = 20_000
MAX_BODY_BYTES = 4 * 1024 * 1024
"""Limits of bodies that describe no jobs, which are used on the event loop."""

_JSON = "application/json"
_PARSED_ON_LOOP_BYTES = 256 * 1024
# In memory, one character beyond ASCII makes all characters of a text larger: up to 4 bytes each.
_CHARACTER_BYTES = 2
# The bodies that are read and used at a time: so many times the largest body.
_BODIES_AT_ONCE = 2


async def _read_document(request: Request) -> AsyncIterator[Any]:
    async with _read_body(request, MAX_BODY_BYTES) as data:
        yield await _parse(request, data, MAX_BODY_VALUES)


async def _read_jobs(request: Request) -> AsyncIterator[Any]:
    async with _read_body(request) as data:
        request.state.is_long = len(data) > _PARSED_ON_LOOP_BYTES
        yield await _parse(request, data, MAX_JOB_VALUES)


async def _read_optional_document(request: Request) -> AsyncIterator[Any]:
    async with _read_body(request, MAX_BODY_BYTES) as data:
        yield await _parse(request, data or bytearray(b"{}"), MAX_BODY_VALUES)


async def submit_off_loop(
    request: Request, operations: Application, work: Coroutine[Any, Any, ResultT]
) -> ResultT:
    """The result of a submit. That of a long body runs in a thread, where it takes as long.

    Checking, hashing and writing half a million values would hold the event loop for a second.
    """
    if request.state.is_long and operations.may_block:
        return await asyncio.to_thread(run_without_loop, work)
    return await work


async def _read_job_id(job_id: str) -> str:
    return job_id


async def _join_task_id(job_id: str, task_id: str) -> str:
    return task_id_of(job_id, task_id)


Body = Annotated[Any, Depends(_read_document)]
Jobs = Annotated[Any, Depends(_read_jobs)]
"""A body that describes jobs or tasks; it may be long."""
OptionalBody = Annotated[Any, Depends(_read_optional_document)]
"""A body that may be empty, which is an empty object."""
JobId = Annotated[str, Depends(_read_job_id)]
"""The id of the job that the path names."""
TaskId = Annotated[str, Depends(_join_task_id)]
"""The global id of the task that the path names."""
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description="The largest number of items.")]
LongLimit = Annotated[
    int, Query(ge=1, le=MAX_LONG_PAGE_SIZE, description="The largest number of items.")
]
Cursor = Annotated[
    str | None, Query(max_length=1_000, description="`cursor` of the previous page.")
]
RequestId = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=256,
        description="A request that is sent again with the same key is carried out once.",
    ),
]


def last_event_id(pattern: str) -> Any:
    """The header by which a client continues a stream."""
    return Header(
        alias="Last-Event-ID",
        pattern=pattern,
        description="The last id that the client received; the stream continues after it.",
    )


async def check_query(request: Request) -> None:
    """Refuse a query parameter that the route does not have; the key is checked first."""
    if request.query_params:
        fields = get_flat_params(request.scope["route"].dependant)
        names = [field.alias for field in fields if isinstance(field.field_info, params.Query)]
        unknown = next((name for name in request.query_params if name not in names), None)
        if unknown is not None:
            close = get_close_matches(unknown[:50], names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            problem = Problem(f"query.{unknown[:50]}", f"there is no such parameter{hint}")
            raise ApiProblem(422, "invalid", "the request has problems", [problem])


def parse_model(model: type[ModelT], document: Any) -> ModelT:
    """The document as a model.

    Raises:
        RequestValidationError: with everything that is wrong with it.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


async def _parse(request: Request, data: bytearray, max_values: int) -> Any:
    """The document in a body, which is emptied: it may be large."""
    max_bytes = request.app.state.body_bytes // _CHARACTER_BYTES
    if len(data) <= _PARSED_ON_LOOP_BYTES:
        return _parse_now(data, max_values, max_bytes)
    return await asyncio.to_thread(_parse_now, data, max_values, max_bytes)


def _parse_now(data: bytearray, max_values: int, max_bytes: int) -> Any:
    if has_more_values(data, max_values):
        detail = f"the body has more than {max_values:,} values; divide it"
        raise ApiProblem(413, "too-large", detail)
    if len(data) > max_bytes and not (data.isascii() and rb"\u" not in data):
        detail = f"the body has more than {max_bytes:,} bytes and is not all ASCII; divide it"
        raise ApiProblem(413, "too-large", detail)
    try:
        text = data.decode()
        data.clear()
        return parse_json(text)
    except (UnicodeDecodeError, UnreadableDocument) as error:
        detail = f"the body is not a JSON document: {error}"
        raise ApiProblem(400, "malformed", detail) from None


@contextlib.asynccontextmanager
async def _read_body(request: Request, max_bytes: int = sys.maxsize) -> AsyncIterator[bytearray]:
    """The body; it counts as in flight until the request is answered."""
    state = request.app.state
    kind = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
    if kind != _JSON and not kind.endswith("+json"):
        raise ApiProblem(415, "media-type", f"expected {_JSON}, not {kind[:100]!r}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        message = f"expected a body that is not compressed, not one in {encoding[:50]!r}"
        raise ApiProblem(415, "encoding", message, headers={"Accept-Encoding": "identity"})
    data, size, limit = bytearray(), 0, min(max_bytes, state.body_bytes)
    try:
        async for piece in request.stream():
            data += piece
            size += len(piece)
            state.bytes_in_flight += len(piece)
            if len(data) > limit:
                detail = f"the body has more than {limit} bytes"
                raise ApiProblem(413, "too-large", detail)
            if state.bytes_in_flight > _BODIES_AT_ONCE * state.body_bytes:
                detail = "too many large requests at a time; try again in 1 s"
                raise ApiProblem(503, "busy", detail, headers={"Retry-After": "1"})
        yield data
    finally:
        state.bytes_in_flight -= size
