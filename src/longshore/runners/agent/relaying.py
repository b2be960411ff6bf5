"""Relaying: a question up to the model's API and its answer down, as it comes.

What happens up there is passed down as it is: events one by one, a status as a status, a broken
connection as a broken connection, silence as silence. The agent's command line knows how to deal
with each of them, and says in the end which it was.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from longshore.errors import ConfigurationError
from longshore.runners.agent.credentials import Credential, Mask
from longshore.runners.agent.exchanges import Exchange
from longshore.runners.agent.metering import DocumentMeter, Meter, StreamMeter, retry_after_in

HEADER_LIMIT_BYTES: Final = 64 * 1024
# Between two neighbours, by RFC 9110; and what each side of us settles for itself.
_HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("content-length", "content-encoding", "accept-encoding", "host", "expect"),
    }
)
_NOT_UP: Final = _HOP_BY_HOP | {"x-api-key", "authorization", "cookie"}
# Whoever followed a location would leave by another way.
_NOT_DOWN: Final = _HOP_BY_HOP | {"set-cookie", "location"}
# The command line would show the same credential again, and believes this header.
_FINAL: Final = frozenset({401, 403})
_NOT_AGAIN: Final = "x-should-retry"


class _Left(Exception):
    """Whoever asked is gone."""


class Relay:
    """The upstream side of a gateway; open as long as its ``async with`` lasts.

    Args:
        upstream: Address of the model's API; nothing is sent anywhere else.
        token: Stands in what comes back wherever the upstream has repeated the credential.
        trust_env: Whether the environment says by which proxy to reach the upstream.

    Raises:
        ConfigurationError: the upstream is no address.
    """

    def __init__(
        self, credential: Credential, upstream: str, *, token: str, trust_env: bool
    ) -> None:
        self._credential, self._upstream, self._token = credential, _checked(upstream), token
        self._trust_env = trust_env
        self.trouble: str | None = None
        """What kept the last request from being answered, if it was the connection."""

    def client(self) -> aiohttp.ClientSession:
        """A client that says nothing of its own; to be closed by whoever has opened it."""
        self._session = aiohttp.ClientSession(
            # No limits of time: what is silent up there is to be silent down here.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=self._trust_env,
            skip_auto_headers=("User-Agent", "Content-Type", "Accept"),
            max_line_size=HEADER_LIMIT_BYTES,
            max_field_size=HEADER_LIMIT_BYTES,
        )
        return self._session

    async def forward(
        self, request: web.BaseRequest, path: str, body: bytes, exchange: Exchange | None
    ) -> web.StreamResponse:
        """Post it and pass the answer back; what the exchange has come to is told before its end.

        Args:
            path: Below the upstream's address; the query is the request's.
            exchange: None: nobody pays for it.
        """
        query = request.rel_url.raw_query_string
        url = f"{self._upstream}{path}{query and '?'}{query}"
        self.trouble = None
        try:
            async with self._session.post(
                url, data=body, headers=self._headers_up(request.headers), allow_redirects=False
            ) as answer:
                return await self._pass_back(request, answer, exchange)
        except _Left:
            return web.Response()
        except (aiohttp.ClientError, OSError) as broken:
            self.trouble = self._mask().text(str(broken) or type(broken).__name__)
            return reset(request)

    def _headers_up(self, headers: Mapping[str, str]) -> dict[str, str]:
        passed = {name: value for name, value in headers.items() if name.lower() not in _NOT_UP}
        # So that the figures can be read, and no event waits until a block is full.
        return {**passed, "accept-encoding": "identity", **self._credential.headers}

    async def _pass_back(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse, exchange: Exchange | None
    ) -> web.StreamResponse:
        meter: Meter = (
            StreamMeter() if answer.content_type == "text/event-stream" else DocumentMeter()
        )
        if exchange:
            exchange.answers(answer.status, answer.headers, meter)
        mask, out = self._mask(), self._begun(answer)
        with _unless_left():
            await out.prepare(request)
        async for piece in answer.content.iter_any():
            meter.feed(piece)
            if exchange and (meter.whole or meter.error_type):
                # Now: with the last event whoever asked may say that all is done.
                exchange.settle()
            with _unless_left():
                await out.write(mask.feed(piece))
        meter.end()
        if exchange:
            exchange.settle()
        with _unless_left():
            await out.write_eof(mask.end())
        return out

    def _begun(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        mask = self._mask()
        out = web.StreamResponse(status=answer.status, reason=mask.text(answer.reason or ""))
        for name, value in answer.headers.items():
            if name.lower() not in _NOT_DOWN:
                out.headers.add(name, mask.text(value))
        if answer.status in _FINAL or _asks_to_wait(answer):
            out.headers[_NOT_AGAIN] = "false"
        return out

    def _mask(self) -> Mask:
        return Mask(self._credential.secret, self._token)


def reset(request: web.BaseRequest) -> web.StreamResponse:
    """Break the connection off; a page that says so would be an answer."""
    transport = request.transport
    if transport is not None:
        connection: socket.socket = transport.get_extra_info("socket")
        at_once = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        transport.abort()
    return web.Response()


def _asks_to_wait(answer: aiohttp.ClientResponse) -> bool:
    """Whether it is a rate limit that says for how long: then nobody of the queue is to ask.

    The command line would wait by itself, up to a minute each time and with all that it holds, and
    nobody else would know.
    """
    if answer.status != HTTPStatus.TOO_MANY_REQUESTS:
        return False
    return bool(retry_after_in(answer.headers, now_s=time.time()))


@contextlib.contextmanager
def _unless_left() -> Iterator[None]:
    """Tell trouble with whoever asked from trouble with the upstream."""
    try:
        yield
    except ConnectionError:
        raise _Left from None


def _checked(upstream: str) -> str:
    parts = urlsplit(upstream)
    odd = parts.username or parts.password or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or odd:
        # Not quoted: there may be a password in it.
        problem = "the address of the model's API must be like https://api.example.com"
        raise ConfigurationError((problem,))
    return upstream.rstrip("/")
