"""The gate before everything: which names this server goes by, and what each request is called.

A page in a browser can send requests to a server on the same machine, also under a name that leads
there (DNS rebinding). So a request must name a host that is ours, and a page of another origin is
turned away, whatever key it may have got hold of.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longshore.interfaces.rest.problems import MEDIA_TYPE, Refused, document_of

logger = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
ANY = "*"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Gate:
    """ASGI middleware. ``hosts`` are names without ports; ``*`` lets all in."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        request_id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id

        begun = False

        async def named(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                answered[REQUEST_ID] = request_id
                answered["x-content-type-options"] = "nosniff"
                answered.setdefault("cache-control", "no-store")
            await send(message)

        if (why := self._refusal(headers)) is not None:
            await _refuse(named, Refused(421, "misdirected", why), request_id)
            return
        try:
            await self._app(scope, receive, named)
        except Exception:  # the edge of a request: the log has it, the client gets its id
            logger.exception("request.broken", extra={"request_id": request_id})
            if begun:
                raise  # the server can only cut the answer off
            detail = f"something broke here; the log has it under {request_id}"
            await _refuse(named, Refused(500, "broken", detail), request_id)

    def _refusal(self, headers: Headers) -> str | None:
        if ANY in self._hosts:
            return None
        host = _name_in(f"//{headers.get('host', '')}")
        if host not in self._hosts:
            return f"this server does not go by the name {host!r}; see the setting api.hosts"
        origin = headers.get("origin")
        if origin is not None and _name_in(origin) not in self._hosts:
            return "requests from pages of other origins are not answered"
        return None


def _name_in(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


async def _refuse(send: Send, refused: Refused, request_id: str) -> None:
    headers = [(b"content-type", MEDIA_TYPE.encode())]
    body = json.dumps(document_of(refused, request_id)).encode()
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
