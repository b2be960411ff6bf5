"""The gateway: the only way by which an agent reaches its model.

It stands between the agent's command line and the model's API, on loopback, for one attempt. The
command line is given a token of this attempt; the real credential is put in its place on the way
out and is seen by nobody on this side. Before a question is paid for somebody is asked, and after
its answer somebody is told what it cost, *before* the command line can know that it is over.

Only questions pass: nothing else can be reached with the credential, and no other host than the one
that it is for. A tool of the agent that finds the token can ask questions with it, no more than the
agent itself can, and they are counted like the agent's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, cast

from aiohttp import web

from longshore.core.agents.prices import LIST_PRICES, SUBSCRIPTION_PRICES, Prices
from longshore.runners.agent.credentials import OAUTH_TOKEN, VARIABLES, Credential
from longshore.runners.agent.exchanges import (
    PUT_OFF,
    After,
    Answered,
    Before,
    Exchange,
    ModelRequest,
    NotAQuestion,
    question_in,
)
from longshore.runners.agent.relaying import HEADER_LIMIT_BYTES, Relay, reset

BODY_LIMIT_BYTES: Final = 64 * 1024 * 1024
CONCURRENCY: Final = 8
"""Requests at once; more of them wait. Each may hold a body of that size."""

LOOPBACK: Final = "127.0.0.1"
_MESSAGES, _COUNT = "/v1/messages", "/v1/messages/count_tokens"
_PASSED: Final = frozenset({("POST", _MESSAGES), ("POST", _COUNT)})
# From a process on this machine: more than enough for a large body on a busy one.
_BODY_WITHIN_S = 60.0
# Only the attempt ends its connections: one that were closed while a tool works would look like
# trouble of the network to the next question.
_KEPT_OPEN_S = 7 * 24 * 3600.0
_CLOSED_WITHIN_S = 5.0
# A refusal of ours is final, and the command line believes this header.
_FINAL: Final = {"x-should-retry": "false"}
_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "all_proxy"})


class _Refused(Exception):
    """Answered here, and not passed on."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        self.status, self.kind, self.message = status, kind, message
        super().__init__(status, kind, message)


class Gateway:
    """A gateway of one attempt; open as long as its ``async with`` lasts.

    Args:
        upstream: Address of the model's API.
        before: Asked before each question; not before it has answered does the question go. If it
            raises, nothing goes from then on, and the error is in ``failure``.
        after: Told what became of each question that was let go, once and in any case. It must not
            block. If it raises, nothing goes from then on, and the error is in ``failure``.
        prices: None: what the command line itself assumes with such a credential.
        trust_env: Whether the environment says by which proxy to reach the upstream.

    Raises:
        ConfigurationError: the upstream is no address.
    """

    def __init__(
        self,
        credential: Credential,
        upstream: str,
        *,
        before: Before,
        after: After,
        prices: Prices | None = None,
        trust_env: bool = False,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self.token: Final = secrets.token_urlsafe(32)
        """What the command line shows in place of the credential."""
        self.stopped: str | None = None
        """Why a question was not let go; none has been since."""
        self.failure: Exception | None = None
        """What ``before`` or ``after`` raised."""
        self.last_status: int | None = None
        """Of the last answer. None: there was none yet, or the last question got none."""
        self.retry_after: timedelta | None = None
        """How long the API asked to be left alone when it last put a question off."""
        self._variable = credential.variable
        self._before, self._after = before, after
        self.prices: Final = prices or _prices_with(credential)
        """What answers cost."""
        self._relay = Relay(credential, upstream, token=self.token, trust_env=trust_env)
        self._turns = asyncio.Semaphore(concurrency)
        self._prefix = f"/{secrets.token_urlsafe(16)}"
        self._port = 0
        self._at_work: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._until_closed = contextlib.AsyncExitStack()
        self._put_off_at_s = 0.0

    @property
    def url(self) -> str:
        """Where the command line finds its model."""
        return f"http://{LOOPBACK}:{self._port}{self._prefix}"

    @property
    def trouble(self) -> str | None:
        """What kept the last question from being answered, if it was the connection."""
        return self._relay.trouble

    def environment(self, around: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables by which the command line uses the gateway, and no credential besides.

        Args:
            around: What else it will find; if that sends it to a proxy, then not with this.
        """
        # One that is empty counts as unset, and hides what it would inherit.
        own = {"ANTHROPIC_BASE_URL": self.url, **dict.fromkeys(VARIABLES, "")}
        own[self._variable] = self.token
        given = {name.lower(): value for name, value in (around or {}).items()}
        if any(given.get(name) for name in _PROXIES):
            spared = ",".join(filter(None, (given.get("no_proxy"), LOOPBACK)))
            own |= {"NO_PROXY": spared, "no_proxy": spared}
        return own

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as opened:
            await opened.enter_async_context(self._relay.client())
            server = web.Server(
                self._handle,
                handler_cancellation=True,
                access_log=None,
                keepalive_timeout=_KEPT_OPEN_S,
                max_line_size=HEADER_LIMIT_BYTES,
                max_field_size=HEADER_LIMIT_BYTES,
            )
            runner = web.ServerRunner(server, shutdown_timeout=_CLOSED_WITHIN_S)
            await runner.setup()
            opened.push_async_callback(runner.cleanup)
            opened.push_async_callback(self._end_all)
            site = web.TCPSite(runner, LOOPBACK, 0)
            await site.start()
            self._port = site.port
            self._until_closed = opened.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._until_closed.aclose()

    async def _end_all(self) -> None:
        """End every exchange; each is settled by that."""
        self._closing = True
        for task in self._at_work:
            task.cancel()
        await asyncio.gather(*self._at_work, return_exceptions=True)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._closing:
            return reset(request)
        with self._noted():
            try:
                path = self._admitted(request)
                async with self._turns:
                    return await self._pass_on(request, path)
            except _Refused as refusal:
                said = {"type": refusal.kind, "message": refusal.message}
                return web.json_response(
                    {"type": "error", "error": said}, status=refusal.status, headers=_FINAL
                )

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._at_work.add(task)
        try:
            yield
        finally:
            self._at_work.discard(task)

    def _admitted(self, request: web.BaseRequest) -> str:
        """What is asked for, below our address, by one who may."""
        path = request.rel_url.raw_path.removeprefix(self._prefix)
        if path == request.rel_url.raw_path:
            raise _Refused(404, "not_found_error", "there is nothing here")
        if not self._is_shown(request.headers):
            raise _Refused(401, "authentication_error", "not the token of this attempt")
        if (request.method, path) not in _PASSED:
            raise _Refused(404, "not_found_error", f"{request.method} {path} is not passed on")
        return path

    def _is_shown(self, headers: Mapping[str, str]) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        offered = (headers.get("x-api-key", ""), bearer if scheme.lower() == "bearer" else "")
        # Both, and each in the same time whatever it is.
        same = [
            hmac.compare_digest(one.encode(errors="replace"), self.token.encode())
            for one in offered
        ]
        return any(same)

    async def _pass_on(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        body = await _body_of(request)
        if path != _MESSAGES:
            return await self._relay.forward(request, path, body, None)
        try:
            question = question_in(body, request.headers)
        except NotAQuestion as why:
            raise _Refused(400, "invalid_request_error", str(why)) from None
        await self._let_go(question)
        exchange = Exchange(question, self.prices, self._note)
        try:
            return await self._relay.forward(request, path, body, exchange)
        finally:
            exchange.settle()

    async def _let_go(self, question: ModelRequest) -> None:
        if self.stopped is None:
            try:
                verdict = await self._before(question)
            # Whoever keeps the budget may fail in any way; then nobody may spend from it.
            except Exception as raised:  # noqa: BLE001
                self._fail(raised)
            else:
                if verdict.stop is None:
                    # Also if another was stopped meanwhile: for this one something is put aside.
                    return
                self._stop(verdict.stop)
        # Of all statuses the one that the command line asks with once, and shows as it is.
        raise _Refused(402, "billing_error", self.stopped or "")

    def _stop(self, reason: str) -> None:
        if self.stopped is None:
            self.stopped = reason

    def _fail(self, raised: Exception) -> None:
        self.failure = self.failure or raised
        self._stop(f"the budget could not be kept: {type(raised).__name__}")

    def _note(self, answered: Answered) -> None:
        self.last_status = answered.status
        now_s = asyncio.get_running_loop().time()
        if answered.status in PUT_OFF:
            self._put_off_at_s, self.retry_after = now_s, answered.retry_after
        elif answered.whole and now_s - answered.duration.total_seconds() > self._put_off_at_s:
            # It was asked after the one that was put off.
            self.retry_after = None
        try:
            self._after(answered)
        except Exception as raised:  # noqa: BLE001 - as above
            self._fail(raised)


def _prices_with(credential: Credential) -> Prices:
    return SUBSCRIPTION_PRICES if credential.variable == OAUTH_TOKEN else LIST_PRICES


async def _body_of(request: web.BaseRequest) -> bytes:
    body = bytearray()
    too_large = _Refused(413, "request_too_large", f"more than {BODY_LIMIT_BYTES:,} bytes")
    if (request.content_length or 0) > BODY_LIMIT_BYTES:
        raise too_large
    try:
        async with asyncio.timeout(_BODY_WITHIN_S):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > BODY_LIMIT_BYTES:
                    raise too_large
    except TimeoutError:
        raise _Refused(408, "timeout_error", "the request did not come to its end") from None
    except web.RequestPayloadError:
        raise _Refused(400, "invalid_request_error", "the request cannot be read") from None
    return bytes(body)
