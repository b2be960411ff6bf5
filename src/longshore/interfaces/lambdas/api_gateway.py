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
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

from longshore.errors import UsageError
from longshore.interfaces.lambdas.container import Answer, handler
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

_TIMED_OUT = "the request took too long; it is safe to send it again"
_TOO_LARGE = (
    f"the response has more than {_BODY_LIMIT_BYTES} bytes; request fewer items with `limit`"
)


@contextlib.asynccontextmanager
async def open_app() -> AsyncIterator[ASGIApp]:
    """The REST API of the installation that the environment names."""
    async with open_services_with_secrets() as services:
        api = services.settings.api
        # A function has no machine key, which elsewhere names the tenant of the operators.
        services.api_keys.set_operator_tenant(services.settings.tenant)
        yield create_app(services, api)


@handler(open_app)
async def api(app: ASGIApp, event: Any) -> Answer:
    """Answer one request."""
    return await handle_request(app, event)


async def handle_request(
    app: ASGIApp, event: Any, *, timeout_s: float = _GATEWAY_TIMEOUT_S
) -> Answer:
    """The app's response to a request, in the form that the gateway expects.

    Raises:
        UsageError: the event is not a request of a gateway with payload 2.0.
    """
    scope, body = _scope_of(event)
    # After the body the app waits for a disconnect: the gateway never disconnects before the end.
    received: asyncio.Queue[Message] = asyncio.Queue()
    received.put_nowait({"type": "http.request", "body": body, "more_body": False})
    sent: asyncio.Queue[Message | None] = asyncio.Queue()
    request = asyncio.ensure_future(app(scope, received.get, sent.put))
    request.add_done_callback(lambda _: sent.put_nowait(None))
    try:
        response = await _response_of(sent, timeout_s)
    except ApiProblem as problem:
        answer = problem_response(event["requestContext"].get("requestId", ""), problem)
        return _document(answer.status_code, answer.headers, bytes(answer.body))
    else:
        if request.done():
            request.result()  # an error of the app is an error of the function
        return response
    finally:
        request.cancel()
        await asyncio.wait({request}, timeout=_CANCEL_TIMEOUT_S)


async def _response_of(sent: asyncio.Queue[Message | None], timeout_s: float) -> Answer:
    """The response in the messages that an app sends, the last of which is None.

    Raises:
        ApiProblem: it takes too long or is too large.
    """
    now = asyncio.get_running_loop().time
    started = now()
    status, headers, body = 500, dict[str, str](), bytearray()
    is_stream = False
    while True:
        limit = started + (min(timeout_s, _STREAM_LIMIT_S) if is_stream else timeout_s)
        if is_stream and body:
            limit = min(limit, now() + _STREAM_IDLE_S)
        try:
            async with asyncio.timeout_at(limit):
                message = await sent.get()
        except TimeoutError:
            if is_stream:
                break
            headers = {"Retry-After": "1"}
            raise ApiProblem(503, "timed-out", _TIMED_OUT, headers=headers) from None
        if message is None:
            break
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            is_stream = headers.get("content-type", "").startswith(_EVENT_STREAM)
            continue
        chunk = message.get("body", b"")
        if len(body) + len(chunk) > _BODY_LIMIT_BYTES:
            if is_stream and body:
                break  # the client resumes it after the last chunk that fitted
            raise ApiProblem(400, "response-too-large", _TOO_LARGE)
        body += chunk
    if is_stream:
        headers.pop("content-length", None)
    return _document(status, headers, bytes(body))


def _document(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """A response in the form that the gateway expects."""
    document: Answer = {"statusCode": status, "headers": dict(headers)}
    if len(body) <= _TEXT_LIMIT_BYTES and "content-encoding" not in headers:
        with contextlib.suppress(UnicodeDecodeError):
            return {**document, "body": body.decode(), "isBase64Encoded": False}
    return {**document, "body": base64.b64encode(body).decode(), "isBase64Encoded": True}


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
