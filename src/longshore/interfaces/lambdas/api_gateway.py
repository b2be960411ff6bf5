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
from longshore.interfaces.rest.errors import MEDIA_TYPE, ApiProblem, problem_document

AsgiMessage = MutableMapping[str, Any]
AsgiApp = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[AsgiMessage]],
        Callable[[AsgiMessage], Awaitable[None]],
    ],
    Awaitable[None],
]
"""An ASGI app."""

# Written as base64, which is a third more, it stays below 6 MB.
_BODY_LIMIT_BYTES = 4_400_000
# Text of this size goes as it is, however many of its characters JSON must escape.
_TEXT_LIMIT_BYTES = 900_000
_GATEWAY_TIMEOUT_S = 28.0
_STREAM_LIMIT_S = 20.0
_STREAM_IDLE_S = 1.0
_CANCEL_TIMEOUT_S = 0.5
_EVENT_STREAM = b"text/event-stream"

_TIMED_OUT = ApiProblem(
    503,
    "timed-out",
    "this took too long to answer here; the same request may be sent again",
    headers={"Retry-After": "1"},
)
_TOO_LARGE = ApiProblem(
    400,
    "response-too-large",
    f"the answer has more than {_BODY_LIMIT_BYTES} bytes, which cannot be sent here; ask for less "
    "at once, by `limit`",
)


async def handle_request(app: AsgiApp, event: Any, *, timeout_s: float) -> dict[str, Any]:
    """The app's answer to a request, as the gateway wants it.

    Raises:
        UsageError: it is not a request of a gateway with payload 2.0.
    """
    scope, body = _scope_of(event)
    answer = _Response()
    asked = asyncio.ensure_future(app(scope, _RequestBody(body), answer.send))
    try:
        await _wait_for_response(asked, answer, min(timeout_s, _GATEWAY_TIMEOUT_S))
    finally:
        late = not asked.done()
        asked.cancel()
        await asyncio.wait({asked}, timeout=_CANCEL_TIMEOUT_S)
    request_id = event["requestContext"].get("requestId", "")
    if answer.too_large:
        return _problem_response(_TOO_LARGE, request_id)
    if late and not answer.is_stream:
        return _problem_response(_TIMED_OUT, request_id)
    if not late:
        asked.result()  # what the app raises is for whoever looks after the function
    return answer.document()


async def _wait_for_response(
    request: asyncio.Future[Any], response: _Response, timeout_s: float
) -> None:
    now = asyncio.get_running_loop().time
    begun = now()
    while not request.done() and not response.too_large and not response.full:
        ends = begun + (min(timeout_s, _STREAM_LIMIT_S) if response.is_stream else timeout_s)
        waits_s = ends - now()
        if response.is_stream and response.body:
            waits_s = min(waits_s, _STREAM_IDLE_S)
        if waits_s <= 0:
            return
        response.changed.clear()
        moved = asyncio.ensure_future(response.changed.wait())
        await asyncio.wait({request, moved}, timeout=waits_s, return_when=asyncio.FIRST_COMPLETED)
        moved.cancel()
        if response.is_stream and response.body and not response.changed.is_set():
            return  # nothing more has come


class _RequestBody:
    """A request's body, which is here already."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def __call__(self) -> AsgiMessage:
        body, self._body = self._body, None
        if body is None:
            # Nobody leaves before the answer is there.
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body, "more_body": False}


class _Response:
    """What the app has answered so far."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.too_large = self.full = False
        self.changed = asyncio.Event()

    @property
    def is_stream(self) -> bool:
        """Whether it goes on for as long as there is something to tell."""
        return any(
            name == b"content-type" and value.startswith(_EVENT_STREAM)
            for name, value in self.headers
        )

    async def send(self, message: AsgiMessage) -> None:
        """What the app sends."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(name.lower(), value) for name, value in message["headers"]]
        else:
            self._add(message.get("body", b""))
        self.changed.set()

    def _add(self, chunk: bytes) -> None:
        if self.full or len(self.body) + len(chunk) > _BODY_LIMIT_BYTES:
            # A stream is taken up again behind the last piece that fitted.
            self.full = self.is_stream and bool(self.body)
            self.too_large = not self.full
        else:
            self.body += chunk

    def document(self) -> dict[str, Any]:
        """As the gateway reads it."""
        headers: dict[str, str] = {}
        cookies: list[str] = []
        for name, value in ((name.decode(), value.decode()) for name, value in self.headers):
            if name == "set-cookie":
                cookies.append(value)
            elif name != "content-length" or not self.is_stream:
                headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return _response_document(self.status, headers, bytes(self.body), cookies)


def _response_document(
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


def _problem_response(refused: ApiProblem, request_id: str) -> dict[str, Any]:
    headers = {"content-type": MEDIA_TYPE, **{k.lower(): v for k, v in refused.headers.items()}}
    body = json.dumps(problem_document(refused, request_id)).encode()
    return _response_document(refused.status, headers, body, [])


def _scope_of(event: Any) -> tuple[AsgiMessage, bytes]:
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
        scope: AsgiMessage = {
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
