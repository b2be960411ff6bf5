"""A gateway between a scripted model and a client of the test."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import aiohttp

from longshore.execution.runners.agent.accounting import ModelCall
from longshore.execution.runners.agent.credentials import Credential
from longshore.execution.runners.agent.gateway import Gateway
from verification.messages_api import MessagesApi
from verification.messages_api.script import ScriptSource

SECRET = "sk-ant-the-real-key-of-this-test"
MODEL = "claude-haiku-4-5"
MESSAGES = "/v1/messages?beta=true"
BROKEN = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError)
"""The errors of a client whose connection is closed."""


def scenario(test_body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test, and check that it closes everything."""

    @wraps(test_body)
    def test(**fields: Any) -> None:
        asyncio.run(test_body(**fields))
        # An unclosed resource warns when it is collected, and warnings are errors. The objects of a
        # test are in the youngest generations; a full collection would take longer than the test.
        gc.collect(1)

    return test


@dataclass
class RecordingBudget:
    """A budget that records every request and response."""

    decisions: list[str | Exception | None] = field(default_factory=list)
    requests: list[ModelCall] = field(default_factory=list)
    responses: list[ModelCall] = field(default_factory=list)

    async def before(self, request: ModelCall) -> str | None:
        self.requests.append(request)
        query_failure = self.decisions.pop(0) if self.decisions else None
        if isinstance(query_failure, Exception):
            raise query_failure
        return query_failure

    def after(self, model_response: ModelCall) -> None:
        self.responses.append(model_response)


class GatewayClient:
    """Sends requests as the CLI does."""

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.gateway, self.session = gateway, session

    def ask(self, *, stream: bool = True, **more_: Any) -> Any:
        """Send a request; a context manager that yields the response."""
        body = {"model": MODEL, "max_tokens": 64, "stream": stream, "messages": []}
        return self.request("POST", MESSAGES, data=json.dumps(body), **more_)

    def request(self, method: str, path: str, **more_: Any) -> Any:
        headers = {"x-api-key": self.gateway.token, "anthropic-version": "2023-06-01"}
        headers |= more_.pop("headers", {})
        return self.session.request(method, self.gateway.url + path, headers=headers, **more_)

    async def response(self, **more_: Any) -> tuple[int, str]:
        """Returns the status and the text of a response."""
        async with self.ask(**more_) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def open_gateway(
    upstream: str,
    budget: RecordingBudget | None = None,
    *,
    credential: Credential | None = None,
    **more_: Any,
) -> AsyncIterator[GatewayClient]:
    """Yields a client of a gateway to this address."""
    budget = budget or RecordingBudget()
    fields = {"before": budget.before, "after": budget.after, **more_}
    async with (
        Gateway(credential or Credential(SECRET), upstream, **fields) as gateway,
        aiohttp.ClientSession() as session,
    ):
        yield GatewayClient(gateway, session)


@asynccontextmanager
async def scripted_model(
    script: ScriptSource, budget: RecordingBudget | None = None, **more_: Any
) -> AsyncIterator[tuple[MessagesApi, GatewayClient]]:
    """Yields a scripted model and a client of a gateway to it."""
    async with MessagesApi(script) as api, open_gateway(api.url, budget, **more_) as client:
        yield api, client


@dataclass
class RawUpstream:
    """An upstream that responds with fixed bytes."""

    url: str
    request_heads: list[str] = field(default_factory=list)


@asynccontextmanager
async def raw_upstream(*chunks: bytes) -> AsyncIterator[RawUpstream]:
    """Send each chunk separately, then close; record the head of each request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        up.request_heads.append(head)
        length = next(
            int(line.split(":")[1])
            for line in head.split("\r\n")
            if line.lower().startswith("content-length:")
        )
        await reader.readexactly(length)
        for piece in chunks:
            writer.write(piece)
            await writer.drain()
            # A turn of the loop each, so that they are read one by one.
            for _ in range(5):
                await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    up = RawUpstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield up


def http_response(status: str, body: bytes, **headers: str) -> bytes:
    """Returns a whole HTTP response."""
    fields = {"content-type": "application/json", "content-length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body
