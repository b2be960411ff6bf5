"""Reading a request's JSON body, which comes from strangers: bounded in every direction.

The framework's own reading has no limit of size or depth, takes the last of two equal keys, and
lets NaN pass. Compressed bodies are unpacked here, as far as the same limit of size allows.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from longshore.interfaces.rest.problems import Refused, Wrong

ShapeT = TypeVar("ShapeT", bound=BaseModel)

_JSON = "application/json"
_GZIP_BITS = 16 + zlib.MAX_WBITS
# Longer ones cost quadratic time to read, and nobody counts so far.
_MOST_DIGITS = 400


async def json_body(request: Request) -> Any:
    """The body as a document.

    Raises:
        Refused: it is no JSON, too large, or packed in a way that is not known here.
    """
    return _parsed(await _data(request, request.app.state.body_bytes))


async def optional_json_body(request: Request) -> Any:
    """Likewise; an empty body is an empty object."""
    if (data := await _data(request, request.app.state.body_bytes)) == b"":
        return {}
    return _parsed(data)


def shaped(shape: type[ShapeT], document: Any) -> ShapeT:
    """The document as what it should be.

    Raises:
        Refused: with everything that does not fit.
    """
    try:
        return shape.model_validate(document)
    except ValidationError as error:
        wrong = [
            Wrong(".".join(str(part) for part in one["loc"]), one["msg"]) for one in error.errors()
        ]
        raise Refused(422, "invalid", "the request has problems", wrong) from None


def _parsed(data: bytes) -> Any:
    try:
        document = json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_int=_whole,
        )
        if b"\\u" in data:
            # Half a character can be written so, and nothing here could store or send it.
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise _malformed("a text has half of a pair of surrogates") from None
    except ValueError as error:
        raise _malformed(str(error)) from None
    return document


async def _data(request: Request, limit: int) -> bytes:
    kind = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
    if kind != _JSON and not kind.endswith("+json"):
        raise Refused(415, "media-type", f"expected {_JSON}, not {kind[:100]!r}")
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("identity", "gzip"):
        message = f"expected a body as it is or packed by gzip, not by {packing[:50]!r}"
        raise Refused(415, "encoding", message, headers={"Accept-Encoding": "gzip"})
    unpack = zlib.decompressobj(_GZIP_BITS) if packing == "gzip" else None
    data = bytearray()
    async for piece in request.stream():
        data += piece if unpack is None else _unpacked(unpack, piece, limit + 1 - len(data))
        if len(data) > limit:
            raise Refused(413, "too-large", f"the body has more than {limit} bytes")
    if unpack is not None and not unpack.eof:
        raise _malformed("its gzip stream is cut short")
    return bytes(data)


def _unpacked(unpack: Any, piece: bytes, most: int) -> bytes:
    try:
        # No more than would be refused anyway: a few bytes can stand for gigabytes.
        return bytes(unpack.decompress(piece, max(most, 1)))
    except zlib.error:
        raise _malformed("it is not packed by gzip, although it says so") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in made if names.count(name) > 1)
        message = f"the field {twice[:64]!r} is there twice"
        raise ValueError(message)
    return made


def _no_constant(name: str) -> Any:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        message = f"a number has more than {_MOST_DIGITS} digits"
        raise ValueError(message)
    return int(digits)


def _malformed(why: str) -> Refused:
    return Refused(400, "malformed", f"the body is not a JSON document: {why}")
