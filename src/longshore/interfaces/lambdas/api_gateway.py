"""The handler ``api``: requests of an API Gateway (HTTP API, payload 2.0) to the REST API.

A response is returned as a whole: it has at most 6 MB as AWS encodes it, and the gateway waits for
30 s. So a stream is a long poll here. It ends when nothing more has come for a moment, or after a
timeout, without the event ``end``; a client connects again with ``Last-Event-ID``, as after any
broken connection, and misses nothing. The output of a whole job cannot be resumed and starts anew
each time: read the output of its tasks instead.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

from longshore.errors import UsageError
from longshore.interfaces.lambdas.container import Container, LambdaContext, handler, seconds_left
from longshore.interfaces.rest.app import create_app
from longshore.interfaces.rest.errors import ApiProblem, problem_response
from longshore.wiring.lambdas import open_services_with_secrets

# As base64, which is a third larger, it stays below 6 MB.
_BODY_LIMIT_BYTES = 4_400_000
# Text up to this size is sent as text, even if JSON must escape every character.
_TEXT_LIMIT_BYTES = 900_000
_GATEWAY_TIMEOUT_S = 28.0
_STREAM_LIMIT_S = 20.0
_STREAM_IDLE_S = 1.0
_CANCEL_TIMEOUT_S = 0.5
_EVENT_STREAM = "text/event-stream"

_TIMED_OUT = ApiProblem(
    503,
    "timed-out",
    "the request took too long; it is safe to send it again",
    headers={"Retry-After": "1"},
)
_TOO_LARGE = ApiProblem(
    400,
    "response-too-large",
    f"the response has more than {_BODY_LIMIT_BYTES} bytes; request fewer items with `limit`",
)


@contextlib.asynccontextmanager
async def open_app() -> AsyncIterator[ASGIApp]:
    """The REST API of the installation that the environment names."""
    async with open_services_with_secrets() as services:
        api = services.settings.api
        # A function has no machine key, which elsewhere names the tenant of the operators.
        services.api_keys.set_operator_tenant(services.settings.tenant)
        yield create_app(services, hosts=api.hosts, body_bytes=api.body_bytes)


@handler(open_app)
def api(container: Container[ASGIApp], event: Any, context: LambdaContext) -> dict[str, Any]:
    """Answer one request."""
    timeout_s = seconds_left(context)
    return container.run(lambda app: handle_request(app, event, timeout_s=timeout_s), context)


async def handle_request(app: ASGIApp, event: Any, *, timeout_s: float) -> dict[str, Any]:
    """The app's response to a request, in the form that the gateway expects.

    Raises:
        UsageError: the event is not a request of a gateway with payload 2.0.
    """
    scope, body = _scope_of(event)
    response = _Response()
    # After the body the app waits for a disconnect: the gateway never disconnects before the end.
    messages: asyncio.Queue[Message] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
    request = asyncio.ensure_future(app(scope, messages.get, response.send))
    try:
        await _wait_for_response(request, response, min(timeout_s, _GATEWAY_TIMEOUT_S))
    finally:
        late = not request.done()
        request.cancel()
        await asyncio.wait({request}, timeout=_CANCEL_TIMEOUT_S)
    request_id = event["requestContext"].get("requestId", "")
    if response.too_large:
        return _problem_document(_TOO_LARGE, request_id)
    if late and not response.is_stream:
        return _problem_document(_TIMED_OUT, request_id)
    if not late:
        request.result()  # an error of the app is an error of the function
    if response.is_stream:
        response.headers.pop("content-length", None)
    return _document(response.status, response.headers, bytes(response.body))


async def _wait_for_response(
    request: asyncio.Future[Any], response: _Response, timeout_s: float
) -> None:
    now = asyncio.get_running_loop().time
    started = now()
    while not request.done() and not response.too_large and not response.full:
        limit_s = min(timeout_s, _STREAM_LIMIT_S) if response.is_stream else timeout_s
        left_s = started + limit_s - now()
        if response.is_stream and response.body:
            left_s = min(left_s, _STREAM_IDLE_S)
        if left_s <= 0:
            return
        response.changed.clear()
        changed = asyncio.ensure_future(response.changed.wait())
        await asyncio.wait({request, changed}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        if response.is_stream and response.body and not response.changed.is_set():
            return  # the stream is idle


@dataclass(slots=True)
class _Response:
    """What the app has sent so far."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    too_large: bool = False
    full: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith(_EVENT_STREAM)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode().lower(): value.decode() for name, value in message["headers"]
            }
        else:
            self._add(message.get("body", b""))
        self.changed.set()

    def _add(self, chunk: bytes) -> None:
        if self.full or len(self.body) + len(chunk) > _BODY_LIMIT_BYTES:
            # The client resumes a stream after the last chunk that fitted.
            self.full = self.is_stream and bool(self.body)
            self.too_large = not self.full
        else:
            self.body += chunk


def _document(status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """A response in the form that the gateway expects."""
    document: dict[str, Any] = {"statusCode": status, "headers": dict(headers)}
    if len(body) <= _TEXT_LIMIT_BYTES and "content-encoding" not in headers:
        with contextlib.suppress(UnicodeDecodeError):
            return {**document, "body": body.decode(), "isBase64Encoded": False}
    return {**document, "body": base64.b64encode(body).decode(), "isBase64Encoded": True}


def _problem_document(problem: ApiProblem, request_id: str) -> dict[str, Any]:
    response = problem_response(request_id, problem)
    return _document(response.status_code, response.headers, bytes(response.body))


def _scope_of(event: Any) -> tuple[Message, bytes]:
    """The ASGI scope of a request, and its body."""
    try:
        request, http = event["requestContext"], event["requestContext"]["http"]
        path, stage = event["rawPath"], request.get("stage", "$default")
        # The gateway leaves the name of a named stage in the path.
        root = f"/{stage}" if path.startswith(f"/{stage}/") else ""
        path = path.removeprefix(root)
        headers = [
            (name.lower().encode(), value.encode("latin-1", errors="replace"))
            for name, value in event.get("headers", {}).items()
        ]
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
            "server": (request.get("domainName", "localhost"), 443),
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        message = "expected a request of an API Gateway, an HTTP API with payload format 2.0"
        raise UsageError(message) from error
    return scope, body
