"""Reads the JSON body of a request, with limits for everything that a client controls.

The framework's parser has no limit of size or depth, takes the last of two equal keys, and accepts
NaN. Compressed bodies are decompressed here, up to the same limit of size.
"""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from longshore.errors import Problem
from longshore.interfaces.document_files import UnreadableDocument, parse_json
from longshore.interfaces.rest.errors import ApiProblem

ModelT = TypeVar("ModelT", bound=BaseModel)

_JSON = "application/json"
_GZIP_BITS = 16 + zlib.MAX_WBITS
# Longer numbers take quadratic time to parse.


async def read_json_body(request: Request) -> Any:
    """The body as a document.

    Raises:
        ApiProblem: it is not JSON, too large, or its encoding is not supported.
    """
    return _parse(await _read_body(request, request.app.state.body_bytes))


async def read_optional_json_body(request: Request) -> Any:
    """The body as a document; an empty body is an empty object."""
    if (data := await _read_body(request, request.app.state.body_bytes)) == b"":
        return {}
    return _parse(data)


def parse_model(model: type[ModelT], document: Any) -> ModelT:
    """The document as a model.

    Raises:
        ApiProblem: with everything that is wrong with it.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        errors = [
            Problem(".".join(str(part) for part in entry["loc"]), entry["msg"])
            for entry in error.errors()
        ]
        raise ApiProblem(422, "invalid", "the request has problems", errors) from None


def _parse(data: bytes) -> Any:
    try:
        return parse_json(data.decode())
    except (UnicodeDecodeError, UnreadableDocument) as error:
        raise _malformed_body(str(error)) from None


async def _read_body(request: Request, limit: int) -> bytes:
    kind = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
    if kind != _JSON and not kind.endswith("+json"):
        raise ApiProblem(415, "media-type", f"expected {_JSON}, not {kind[:100]!r}")
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("identity", "gzip"):
        message = f"expected a body as it is or packed by gzip, not by {packing[:50]!r}"
        raise ApiProblem(415, "encoding", message, headers={"Accept-Encoding": "gzip"})
    unpack = zlib.decompressobj(_GZIP_BITS) if packing == "gzip" else None
    data = bytearray()
    async for piece in request.stream():
        data += piece if unpack is None else _decompress(unpack, piece, limit + 1 - len(data))
        if len(data) > limit:
            raise ApiProblem(413, "too-large", f"the body has more than {limit} bytes")
    if unpack is not None and not unpack.eof:
        raise _malformed_body("its gzip stream is cut short")
    return bytes(data)


def _decompress(decompressor: Any, chunk: bytes, limit: int) -> bytes:
    try:
        # Stop at the limit: a few compressed bytes can expand to gigabytes.
        return bytes(decompressor.decompress(chunk, max(limit, 1)))
    except zlib.error:
        raise _malformed_body("it is not packed by gzip, although it says so") from None


def _malformed_body(reason: str) -> ApiProblem:
    return ApiProblem(400, "malformed", f"the body is not a JSON document: {reason}")
