"""Requests of an API Gateway (HTTP API, payload 2.0), answered by an ASGI app.

An answer goes back whole: nothing is sent on while it is being made, it has at most 6 MB as AWS
writes it, and the gateway waits for 30 s. So a stream is a long poll here. It ends when nothing
more has come for a moment, or when time is over, without the event ``end``; a reader asks again and
sends ``Last-Event-ID``, as it would after any broken connection, and misses nothing. A job's whole
output has no place to go on from and begins anew each time: read its tasks one by one instead.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

from longshore.errors import UsageError
from longshore.interfaces.rest.problems import MEDIA_TYPE, Refused, document_of

Message = MutableMapping[str, Any]
App = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Message]],
        Callable[[Message], Awaitable[None]],
    ],
    Awaitable[None],
]
"""An ASGI app."""

# Written as base64, which is a third more, it stays below 6 MB.
_BODY_LIMIT_BYTES = 4_400_000
# Text of this size goes as it is, however many of its characters JSON must escape.
_TEXT_LIMIT_BYTES = 900_000
_GATEWAY_WAITS_S = 28.0
_STREAM_S = 20.0
_QUIET_S = 1.0
_CALLED_OFF_WITHIN_S = 0.5
_EVENTS = b"text/event-stream"

_LATE = Refused(
    503,
    "late",
    "this took too long to answer here; the same request may be sent again",
    headers={"Retry-After": "1"},
)
_TOO_LARGE = Refused(
    400,
    "answer-too-large",
    f"the answer has more than {_BODY_LIMIT_BYTES} bytes, which cannot be sent here; ask for less "
    "at once, by `limit`",
)


async def answer_to(app: App, event: Any, *, within_s: float) -> dict[str, Any]:
    """The app's answer to a request, as the gateway wants it.

    Raises:
        UsageError: it is not a request of a gateway with payload 2.0.
    """
    scope, body = _scope_of(event)
    answer = _Answer()
    asked = asyncio.ensure_future(app(scope, _Body(body), answer.take))
    try:
        await _until_answered(asked, answer, min(within_s, _GATEWAY_WAITS_S))
    finally:
        late = not asked.done()
        asked.cancel()
        await asyncio.wait({asked}, timeout=_CALLED_OFF_WITHIN_S)
    request_id = event["requestContext"].get("requestId", "")
    if answer.too_large:
        return _refusal(_TOO_LARGE, request_id)
    if late and not answer.is_stream:
        return _refusal(_LATE, request_id)
    if not late:
        asked.result()  # what the app raises is for whoever looks after the function
    return answer.written()


async def _until_answered(asked: asyncio.Future[Any], answer: _Answer, within_s: float) -> None:
    now = asyncio.get_running_loop().time
    begun = now()
    while not asked.done() and not answer.too_large and not answer.full:
        ends = begun + (min(within_s, _STREAM_S) if answer.is_stream else within_s)
        waits_s = ends - now()
        if answer.is_stream and answer.body:
            waits_s = min(waits_s, _QUIET_S)
        if waits_s <= 0:
            return
        answer.moved.clear()
        moved = asyncio.ensure_future(answer.moved.wait())
        await asyncio.wait({asked, moved}, timeout=waits_s, return_when=asyncio.FIRST_COMPLETED)
        moved.cancel()
        if answer.is_stream and answer.body and not answer.moved.is_set():
            return  # nothing more has come


class _Body:
    """A request's body, which is here already."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            # Nobody leaves before the answer is there.
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body, "more_body": False}


class _Answer:
    """What the app has answered so far."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.too_large = self.full = False
        self.moved = asyncio.Event()

    @property
    def is_stream(self) -> bool:
        """Whether it goes on for as long as there is something to tell."""
        return any(
            name == b"content-type" and value.startswith(_EVENTS) for name, value in self.headers
        )

    async def take(self, message: Message) -> None:
        """What the app sends."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(name.lower(), value) for name, value in message["headers"]]
        else:
            self._add(message.get("body", b""))
        self.moved.set()

    def _add(self, piece: bytes) -> None:
        if self.full or len(self.body) + len(piece) > _BODY_LIMIT_BYTES:
            # A stream is taken up again behind the last piece that fitted.
            self.full = self.is_stream and bool(self.body)
            self.too_large = not self.full
        else:
            self.body += piece

    def written(self) -> dict[str, Any]:
        """As the gateway reads it."""
        headers: dict[str, str] = {}
        cookies: list[str] = []
        for name, value in ((name.decode(), value.decode()) for name, value in self.headers):
            if name == "set-cookie":
                cookies.append(value)
            elif name != "content-length" or not self.is_stream:
                headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return _written(self.status, headers, bytes(self.body), cookies)


def _written(
    status: int, headers: Mapping[str, str], body: bytes, cookies: list[str]
) -> dict[str, Any]:
    document: dict[str, Any] = {"statusCode": status, "headers": dict(headers), "cookies": cookies}
    text = None
    if len(body) <= _TEXT_LIMIT_BYTES and "content-encoding" not in headers:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = None
    if text is not None:
        return {**document, "body": text, "isBase64Encoded": False}
    return {**document, "body": base64.b64encode(body).decode(), "isBase64Encoded": True}


def _refusal(refused: Refused, request_id: str) -> dict[str, Any]:
    headers = {"content-type": MEDIA_TYPE, **{k.lower(): v for k, v in refused.headers.items()}}
    body = json.dumps(document_of(refused, request_id)).encode()
    return _written(refused.status, headers, body, [])


def _scope_of(event: Any) -> tuple[Message, bytes]:
    """The request as ASGI has it, and its body."""
    try:
        asked, http = event["requestContext"], event["requestContext"]["http"]
        path, stage = event["rawPath"], asked.get("stage", "$default")
        # With a stage of its own name, the gateway leaves it in the path.
        root = f"/{stage}" if path.startswith(f"/{stage}/") else ""
        path = path.removeprefix(root)
        headers = [
            (name.lower().encode(), value.encode("latin-1", errors="replace"))
            for name, value in event.get("headers", {}).items()
        ]
        if cookies := event.get("cookies"):
            headers.append((b"cookie", "; ".join(cookies).encode("latin-1", errors="replace")))
        text: str = event.get("body") or ""
        body = base64.b64decode(text) if event.get("isBase64Encoded") else text.encode()
        scope: Message = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": http["method"].upper(),
            "scheme": "https",
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": event.get("rawQueryString", "").encode(),
            "headers": headers,
            "client": (http.get("sourceIp", ""), 0),
            "server": (asked.get("domainName", "localhost"), 443),
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        message = "expected a request of an API Gateway, an HTTP API with payload format 2.0"
        raise UsageError(message) from error
    return scope, body
