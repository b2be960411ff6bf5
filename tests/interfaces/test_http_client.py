"""The HTTP client sends its key to the server that it was given, and to no other."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Any

import pytest

from longshore.errors import BackendUnavailable, LongshoreError
from longshore.interfaces.client.http_client import HttpClient, open_http_client

KEY = "lsk_" + "k" * 43


def async_test(test: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@contextlib.asynccontextmanager
async def recording_server(answer: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that gives the same answer to each request; its address, and what it received."""
    received: list[str] = []
    answers: list[asyncio.Task[None] | None] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            received.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(f"HTTP/1.1 {answer}\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}", received
        await asyncio.gather(*filter(None, answers))


def client_of(
    url: str, *, trust_env: bool = False
) -> contextlib.AbstractAsyncContextManager[HttpClient]:
    return open_http_client(url, KEY, user_agent="test", trust_env=trust_env)


@async_test
async def test_a_redirect_is_an_error_and_is_not_followed() -> None:
    async with (
        recording_server("200 OK\r\nContent-Length: 2") as (elsewhere, stolen),
        recording_server(f"307 Temporary Redirect\r\nLocation: {elsewhere}/v1/jobs") as (url, seen),
        client_of(url) as client,
    ):
        with pytest.raises(LongshoreError, match="307"):
            await client.request("GET", "jobs")

    assert (len(seen), stolen) == (1, [])
    assert KEY in seen[0]


@pytest.mark.parametrize("trust_env", [False, True])
@async_test
async def test_a_proxy_of_the_environment_is_used_only_where_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch, trust_env: bool
) -> None:
    async with (
        recording_server("503 Service Unavailable\r\nRetry-After: 0") as (proxy, through_proxy),
        recording_server("503 Service Unavailable\r\nRetry-After: 0") as (url, direct),
    ):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with client_of(url, trust_env=trust_env) as client:
            with pytest.raises(BackendUnavailable):
                await client.request("GET", "jobs")

    assert (through_proxy != [], direct != []) == (trust_env, not trust_env)
