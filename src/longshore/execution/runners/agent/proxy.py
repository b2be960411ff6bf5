"""Forwards a request to the model's API, and streams its response back.

The upstream's behaviour is passed on unchanged: events one by one, a status as a status, a broken
connection as a broken connection, silence as silence. The agent's CLI handles each of them, and
reports which one it was.
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
from longshore.execution.runners.agent.accounting import (
    DocumentMeter,
    ModelCall,
    StreamMeter,
    TokenMeter,
    parse_retry_after,
)
from longshore.execution.runners.agent.credentials import Credential, SecretMask

HEADER_LIMIT_BYTES: Final = 64 * 1024
# Hop-by-hop headers of RFC 9110, and headers that each connection sets for itself.
_HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("content-length", "content-encoding", "accept-encoding", "host", "expect"),
    }
)
_NOT_FORWARDED: Final = _HOP_BY_HOP | {"x-api-key", "authorization", "cookie"}
# A client that followed a location would bypass the gateway.
_NOT_RETURNED: Final = _HOP_BY_HOP | {"set-cookie", "location"}
# The CLI would retry with the same credential; it obeys the header below.
_FINAL_STATUSES: Final = frozenset({401, 403})
_SHOULD_RETRY_HEADER: Final = "x-should-retry"


class _ClientDisconnected(Exception):
    """The client has closed its connection."""


class UpstreamProxy:
    """The upstream side of a gateway.

    Args:
        upstream: Address of the model's API; nothing is sent anywhere else.
        token: Replaces the credential where the upstream repeats it in a response.
        trust_env: Whether to use the proxy that the environment names.

    Raises:
        ConfigurationError: the upstream is not a valid address.
    """

    def __init__(
        self, credential: Credential, upstream: str, *, token: str, trust_env: bool
    ) -> None:
        self._credential, self._upstream, self._token = credential, _checked_url(upstream), token
        self._trust_env = trust_env
        self.connection_error: str | None = None
        """The connection error of the last request, if it had one."""

    def open_client(self) -> aiohttp.ClientSession:
        """Returns a client that adds no headers of its own; the caller closes it."""
        self._session = aiohttp.ClientSession(
            # No timeouts: a silent upstream must look silent to the CLI.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=self._trust_env,
            skip_auto_headers=("User-Agent", "Content-Type", "Accept"),
            max_line_size=HEADER_LIMIT_BYTES,
            max_field_size=HEADER_LIMIT_BYTES,
        )
        return self._session

    async def forward(
        self, request: web.BaseRequest, path: str, body: bytes, call: ModelCall | None
    ) -> web.StreamResponse:
        """Forward the request and stream the response back; the call is settled before its end.

        Args:
            path: Appended to the upstream's address, with the query of the request.
            call: None: the request costs nothing.
        """
        query = request.rel_url.raw_query_string
        url = f"{self._upstream}{path}{query and '?'}{query}"
        self.connection_error = None
        try:
            async with self._session.post(
                url,
                data=body,
                headers=self._upstream_headers(request.headers),
                allow_redirects=False,
            ) as response:
                return await self._return_response(request, response, call)
        except _ClientDisconnected:
            return web.Response()
        except (aiohttp.ClientError, OSError) as error:
            self.connection_error = self._mask().mask_text(str(error) or type(error).__name__)
            return reset_connection(request)

    def _upstream_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        forwarded = {
            name: value for name, value in headers.items() if name.lower() not in _NOT_FORWARDED
        }
        # Uncompressed, so that the usage can be read, and no event waits for a full block.
        return {**forwarded, "accept-encoding": "identity", **self._credential.headers}

    async def _return_response(
        self, request: web.BaseRequest, response: aiohttp.ClientResponse, call: ModelCall | None
    ) -> web.StreamResponse:
        meter: TokenMeter = (
            StreamMeter() if response.content_type == "text/event-stream" else DocumentMeter()
        )
        if call:
            call.start_response(response.status, response.headers, meter)
        mask, out = self._mask(), self._begin_response(response)
        with _detect_disconnect():
            await out.prepare(request)
        async for chunk in response.content.iter_any():
            meter.feed(chunk)
            if call and (meter.complete or meter.error_type):
                # Settle first: after the last event the CLI may report the end of its query.
                call.settle()
            with _detect_disconnect():
                await out.write(mask.feed(chunk))
        meter.end()
        if call:
            call.settle()
        with _detect_disconnect():
            await out.write_eof(mask.end())
        return out

    def _begin_response(self, response: aiohttp.ClientResponse) -> web.StreamResponse:
        mask = self._mask()
        out = web.StreamResponse(
            status=response.status, reason=mask.mask_text(response.reason or "")
        )
        for name, value in response.headers.items():
            if name.lower() not in _NOT_RETURNED:
                out.headers.add(name, mask.mask_text(value))
        if response.status in _FINAL_STATUSES or _is_rate_limit_with_delay(response):
            out.headers[_SHOULD_RETRY_HEADER] = "false"
        return out

    def _mask(self) -> SecretMask:
        return SecretMask(self._credential.secret, self._token)


def reset_connection(request: web.BaseRequest) -> web.StreamResponse:
    """Reset the connection; an error page would be a response."""
    transport = request.transport
    if transport is not None:
        connection: socket.socket = transport.get_extra_info("socket")
        linger_zero = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
        transport.abort()
    return web.Response()


def _is_rate_limit_with_delay(response: aiohttp.ClientResponse) -> bool:
    """Whether the response is a rate limit with a delay, for which the whole queue should wait.

    The CLI would wait by itself, up to a minute each time, keep its resources meanwhile, and not
    report the rate limit.
    """
    if response.status != HTTPStatus.TOO_MANY_REQUESTS:
        return False
    return bool(parse_retry_after(response.headers, now_s=time.time()))


@contextlib.contextmanager
def _detect_disconnect() -> Iterator[None]:
    """Distinguish a connection error of the client from one of the upstream."""
    try:
        yield
    except ConnectionError:
        raise _ClientDisconnected from None


def _checked_url(upstream: str) -> str:
    parts = urlsplit(upstream)
    unsupported = parts.username or parts.password or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or unsupported:
        # The message does not quote the address: it may contain a password.
        problem = "the address of the model's API must be like https://api.example.com"
        raise ConfigurationError((problem,))
    return upstream.rstrip("/")
