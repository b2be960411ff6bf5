"""Checks the host name of each request, gives the request an id, and writes the access log.

A page in a browser can send requests to a server on the same machine, also under another name (DNS
rebinding). So a request must name one of the server's hosts, and a page of another origin is
refused, with any key.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longshore.interfaces.rest.errors import ApiProblem, problem_response

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
ANY_HOST = "*"
_LOGGED_CHARACTERS = 300
_REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,64}")


class HostCheckMiddleware:
    """ASGI middleware. ``hosts`` are names without ports; ``*`` lets all in."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], access_log: bool = False) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._access_log or scope["type"] != "http":
            await self._answer(scope, receive, send)
            return
        now = asyncio.get_running_loop().time
        started, status, size = now(), 0, 0

        async def count(message: Message) -> None:
            nonlocal status, size
            status = message.get("status", status)
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self._answer(scope, receive, count)
        finally:
            self._log(scope, status, size, round((now() - started) * 1000))

    def _log(self, scope: Scope, status: int, size: int, elapsed_ms: int) -> None:
        """Write the entry of a request. What a client sent is left out or made printable."""
        state = scope["state"]
        path = scope.get("raw_path", scope["path"].encode()).partition(b"?")[0][:_LOGGED_CHARACTERS]
        fields = {
            "key": state.get("key_id"),
            "tenant": state.get("tenant"),
            "method": _printable(scope["method"][:_LOGGED_CHARACTERS]),
            "route": getattr(scope.get("route"), "path", None),
            "path": _printable(path.decode("latin-1")),
            "status": status,
            "elapsed_ms": elapsed_ms,
            "bytes": size,
            "request_id": state.get("request_id"),
        }
        logger.info("api.request", extra=fields)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        sent = headers.get(REQUEST_ID_HEADER, "")
        request_id = sent if _REQUEST_ID_PATTERN.fullmatch(sent) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id

        begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                answered[REQUEST_ID_HEADER] = request_id
                answered["x-content-type-options"] = "nosniff"
                answered.setdefault("cache-control", "no-store")
            await send(message)

        if (problem := self._problem_of(headers)) is not None:
            refusal = problem_response(request_id, problem)
            await refusal(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:  # the edge of a request: the log has it, the client gets its id
            logger.exception("request.failed", extra={"request_id": request_id})
            if begun:
                raise  # the server can only cut the answer off
            detail = f"something broke here; the log has it under {request_id}"
            failure = problem_response(request_id, ApiProblem(500, "internal-error", detail))
            await failure(scope, receive, send_with_headers)

    def _problem_of(self, headers: Headers) -> ApiProblem | None:
        # Two servers may disagree where such a request ends, so that one reads a second request.
        if "content-length" in headers and "transfer-encoding" in headers:
            detail = "the request has both Content-Length and Transfer-Encoding"
            return ApiProblem(400, "malformed", detail, headers={"connection": "close"})
        why = self._refusal_reason(headers)
        return None if why is None else ApiProblem(421, "misdirected", why)

    def _refusal_reason(self, headers: Headers) -> str | None:
        if ANY_HOST in self._hosts:
            return None
        host = _hostname_of(f"//{headers.get('host', '')}")
        if host not in self._hosts:
            return f"this server does not go by the name {host!r}; see the setting api.hosts"
        origin = headers.get("origin")
        if origin is not None and _hostname_of(origin) not in self._hosts:
            return "requests from pages of other origins are not answered"
        return None


def _printable(text: str) -> str:
    return "".join(char if "!" <= char <= "~" else "?" for char in text)


def _hostname_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
