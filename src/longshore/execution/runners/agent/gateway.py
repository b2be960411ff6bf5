"""The gateway: the only connection between an agent and its model.

It runs between the agent's CLI and the model's API, on loopback, for one attempt. The CLI gets a
token of this attempt; the gateway replaces it by the real credential, which the agent never sees.
``before`` is called before a request is sent, and ``after`` is called with the cost of its response
*before* the CLI can see the end of that response.

Only model requests pass: the credential reaches no other route and no other host. A tool of the
agent that finds the token can only send the same requests as the agent, and they are counted as the
agent's.

The upstream's behaviour is passed on unchanged: events one by one, a status as a status, a broken
connection as a broken connection, silence as silence. The agent's CLI handles each of them, and
reports which one it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
import struct
from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from longshore.core.agents.prices import LIST_PRICES, SUBSCRIPTION_PRICES
from longshore.core.tasks.failures import parse_wait
from longshore.errors import ConfigurationError
from longshore.execution.runners.agent.accounting import (
    RETRY_LATER_STATUSES,
    AfterResponse,
    BeforeRequest,
    ModelCall,
    TokenMeter,
    parse_model_call,
)
from longshore.execution.runners.agent.credentials import (
    CREDENTIAL_VARIABLES,
    OAUTH_TOKEN,
    Credential,
    SecretMask,
)

BODY_LIMIT_BYTES: Final = 64 * 1024 * 1024
CONCURRENCY: Final = 8
"""Concurrent requests; more of them wait. Each may hold a body of ``BODY_LIMIT_BYTES``."""

LOOPBACK: Final = "127.0.0.1"
_MESSAGES, _COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
_ALLOWED_ROUTES: Final = frozenset({("POST", _MESSAGES), ("POST", _COUNT_TOKENS)})
# The client is on this machine: enough for a large body on a busy one.
_BODY_TIMEOUT_S = 60.0
# Longer than any attempt: a connection closed while a tool runs would look like a network error to
# the next request.
_KEEPALIVE_S = 7 * 24 * 3600.0
_SHUTDOWN_TIMEOUT_S = 5.0
# A refusal by the gateway is final; the CLI obeys this header.
_NO_RETRY_HEADERS: Final = {"x-should-retry": "false"}
_PROXY_VARIABLES: Final = frozenset({"http_proxy", "https_proxy", "all_proxy"})
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
# The CLI would retry with the same credential.
_FINAL_STATUSES: Final = frozenset({401, 403})


class _RequestRejected(Exception):
    """The gateway answers the request itself and does not forward it."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        self.status, self.kind, self.message = status, kind, message
        super().__init__(status, kind, message)


class Gateway:
    """The gateway of one attempt; an async context manager.

    Args:
        upstream: Address of the model's API.
        before: Awaited before each request is sent. If it raises, no further request is sent, and
            the error is in ``failure``.
        after: Called exactly once with the outcome of each request that was allowed. It must not
            block. If it raises, no further request is sent, and the error is in ``failure``.
        trust_env: Whether to use the proxy that the environment names.

    Raises:
        ConfigurationError: the upstream is not a valid address.
    """

    def __init__(
        self,
        credential: Credential,
        upstream: str,
        *,
        before: BeforeRequest,
        after: AfterResponse,
        trust_env: bool = False,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self.token: Final = secrets.token_urlsafe(32)
        """The token that the CLI sends in place of the credential."""
        self.stop_reason: str | None = None
        """Why a request was refused; all later ones are refused too."""
        self.failure: Exception | None = None
        """The exception that ``before`` or ``after`` raised."""
        self.last_status: int | None = None
        """The status of the last response; None: no response yet, or none to the last request."""
        self.retry_after: timedelta | None = None
        """The delay that the API asked for in its last retry-later response."""
        self.unreachable = False
        """Whether the last request had a connection error."""
        subscription = credential.variable == OAUTH_TOKEN
        self.prices: Final = SUBSCRIPTION_PRICES if subscription else LIST_PRICES
        """The prices that the CLI assumes for such a credential."""
        self._credential, self._upstream = credential, _checked_url(upstream)
        self._before, self._after = before, after
        self._trust_env = trust_env
        self._slots = asyncio.Semaphore(concurrency)
        self._prefix = f"/{secrets.token_urlsafe(16)}"
        self._port = 0
        self._requests: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._resources = contextlib.AsyncExitStack()
        self._retry_later_at_s = 0.0

    @property
    def url(self) -> str:
        """The base URL for the CLI."""
        return f"http://{LOOPBACK}:{self._port}{self._prefix}"

    def environment(self, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the variables that make the CLI use the gateway, and clear all credentials.

        Args:
            inherited: The CLI's other variables; the gateway is exempted from a proxy in them.
        """
        # An empty variable counts as unset, and hides an inherited one.
        variables = {"ANTHROPIC_BASE_URL": self.url, **dict.fromkeys(CREDENTIAL_VARIABLES, "")}
        variables[self._credential.variable] = self.token
        lowercase = {name.lower(): value for name, value in (inherited or {}).items()}
        if any(lowercase.get(name) for name in _PROXY_VARIABLES):
            no_proxy = ",".join(filter(None, (lowercase.get("no_proxy"), LOOPBACK)))
            variables |= {"NO_PROXY": no_proxy, "no_proxy": no_proxy}
        return variables

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as opened:
            # Adds no headers of its own, and has no timeouts: a silent upstream must look silent to
            # the CLI.
            self._client = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=self._trust_env,
                skip_auto_headers=("User-Agent", "Content-Type", "Accept"),
                max_line_size=HEADER_LIMIT_BYTES,
                max_field_size=HEADER_LIMIT_BYTES,
            )
            await opened.enter_async_context(self._client)
            server = web.Server(
                self._handle,
                handler_cancellation=True,
                access_log=None,
                keepalive_timeout=_KEEPALIVE_S,
                max_line_size=HEADER_LIMIT_BYTES,
                max_field_size=HEADER_LIMIT_BYTES,
            )
            runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_TIMEOUT_S)
            await runner.setup()
            opened.push_async_callback(runner.cleanup)
            opened.push_async_callback(self._cancel_all)
            site = web.TCPSite(runner, LOOPBACK, 0)
            await site.start()
            self._port = site.port
            self._resources = opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resources.aclose()

    async def _cancel_all(self) -> None:
        """Cancel every request, which settles it."""
        self._closing = True
        for task in self._requests:
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._closing:
            return reset_connection(request)
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._requests.add(task)
        try:
            path = self._authorised_path(request)
            async with self._slots:
                return await self._forward(request, path)
        except _RequestRejected as refusal:
            error = {"type": refusal.kind, "message": refusal.message}
            body = {"type": "error", "error": error}
            return web.json_response(body, status=refusal.status, headers=_NO_RETRY_HEADERS)
        finally:
            self._requests.discard(task)

    def _authorised_path(self, request: web.BaseRequest) -> str:
        """Returns the requested path below the gateway's prefix, if the request is authorised."""
        path = request.rel_url.raw_path.removeprefix(self._prefix)
        if path == request.rel_url.raw_path:
            raise _RequestRejected(404, "not_found_error", "there is nothing here")
        if not self._has_token(request.headers):
            raise _RequestRejected(401, "authentication_error", "not the token of this attempt")
        if (request.method, path) not in _ALLOWED_ROUTES:
            raise _RequestRejected(
                404, "not_found_error", f"{request.method} {path} is not passed on"
            )
        return path

    def _has_token(self, headers: Mapping[str, str]) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        offered = (headers.get("x-api-key", ""), bearer if scheme.lower() == "bearer" else "")
        # Compare both, each in constant time.
        matches = [
            hmac.compare_digest(token.encode(errors="replace"), self.token.encode())
            for token in offered
        ]
        return any(matches)

    async def _forward(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        body = await _read_body(request)
        if path != _MESSAGES:
            return await self._send(request, path, body, None)
        if (call := parse_model_call(body, request.headers, self.prices)) is None:
            # Its cost cannot be estimated.
            message = "expected a JSON object that names its model"
            raise _RequestRejected(400, "invalid_request_error", message)
        await self._check_allowed(call)
        call.sent_at_s = asyncio.get_running_loop().time()
        try:
            return await self._send(request, path, body, call)
        finally:
            self._settle(call)

    async def _check_allowed(self, call: ModelCall) -> None:
        if self.stop_reason is None:
            try:
                refusal = await self._before(call)
            # The budget check may fail in any way; then nothing more may be spent.
            except Exception as raised:  # noqa: BLE001
                self._fail(raised)
            else:
                if refusal is None:
                    # Also if another was refused meanwhile: the budget for this one is reserved.
                    return
                self.stop_reason = self.stop_reason or refusal
        # The status that the CLI does not retry and whose message it shows unchanged.
        raise _RequestRejected(402, "billing_error", self.stop_reason or "")

    def _fail(self, raised: Exception) -> None:
        self.failure = self.failure or raised
        self.stop_reason = self.stop_reason or f"the budget check failed: {type(raised).__name__}"

    def _settle(self, call: ModelCall) -> None:
        """Report the outcome of a request, once."""
        if call.settled:
            return
        call.settled = True
        self.last_status = call.status
        if call.status in RETRY_LATER_STATUSES:
            self._retry_later_at_s = asyncio.get_running_loop().time()
            self.retry_after = call.retry_after
        elif call.complete and call.sent_at_s > self._retry_later_at_s:
            # This request was sent after the retry-later response.
            self.retry_after = None
        try:
            self._after(call)
        except Exception as raised:  # noqa: BLE001 - as in _check_allowed
            self._fail(raised)

    async def _send(
        self, request: web.BaseRequest, path: str, body: bytes, call: ModelCall | None
    ) -> web.StreamResponse:
        """Forward the request and stream the response back; the call is settled before its end.

        Args:
            path: Appended to the upstream's address, with the query of the request.
            call: None: the request costs nothing.
        """
        query = request.rel_url.raw_query_string
        url = f"{self._upstream}{path}{query and '?'}{query}"
        self.unreachable = False
        try:
            async with self._client.post(
                url,
                data=body,
                headers=self._upstream_headers(request.headers),
                allow_redirects=False,
            ) as response:
                return await self._return_response(request, response, call)
        except (aiohttp.ClientError, OSError):
            # If the client has disconnected, the error is its own and not the upstream's.
            self.unreachable = _is_connected(request)
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
        meter = TokenMeter(is_stream=response.content_type == "text/event-stream")
        if call:
            call.start_response(response.status, response.headers, meter)
        mask, out = self._mask(), self._begin_response(response)
        await out.prepare(request)
        async for chunk in response.content.iter_any():
            meter.feed(chunk)
            if call and (meter.complete or meter.error_type):
                # Settle first: after the last event the CLI may report the end of its query.
                self._settle(call)
            await out.write(mask.feed(chunk))
        meter.end()
        if call:
            self._settle(call)
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
        # The whole queue should wait for a rate limit with a delay. The CLI would wait by itself,
        # up to a minute each time, keep its resources meanwhile, and not report the rate limit.
        delayed = response.status == HTTPStatus.TOO_MANY_REQUESTS and parse_wait(
            response.headers.get("retry-after")
        )
        if response.status in _FINAL_STATUSES or delayed:
            out.headers.update(_NO_RETRY_HEADERS)
        return out

    def _mask(self) -> SecretMask:
        return SecretMask(self._credential.secret, self.token)


async def _read_body(request: web.BaseRequest) -> bytes:
    body = bytearray()
    too_large = _RequestRejected(413, "request_too_large", f"more than {BODY_LIMIT_BYTES:,} bytes")
    if (request.content_length or 0) > BODY_LIMIT_BYTES:
        raise too_large
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > BODY_LIMIT_BYTES:
                    raise too_large
    except TimeoutError:
        raise _RequestRejected(
            408, "timeout_error", "the request did not come to its end"
        ) from None
    except web.RequestPayloadError:
        raise _RequestRejected(400, "invalid_request_error", "the request cannot be read") from None
    return bytes(body)


def _is_connected(request: web.BaseRequest) -> bool:
    return request.transport is not None and not request.transport.is_closing()


def reset_connection(request: web.BaseRequest) -> web.StreamResponse:
    """Reset the connection; an error page would be a response."""
    transport = request.transport
    if transport is not None and _is_connected(request):
        connection: socket.socket = transport.get_extra_info("socket")
        linger_zero = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
        transport.abort()
    return web.Response()


def _checked_url(upstream: str) -> str:
    parts = urlsplit(upstream)
    unsupported = parts.username or parts.password or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or unsupported:
        # The message does not quote the address: it may contain a password.
        problem = "the address of the model's API must be like https://api.example.com"
        raise ConfigurationError((problem,))
    return upstream.rstrip("/")
