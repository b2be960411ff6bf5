"""Connections that would use up the descriptors of the server: too many, or without a request."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI, Request

from longshore.interfaces.rest import server as rest_server
from longshore.interfaces.rest.server import bind_socket, serve
from tests.interfaces.rest.server import async_test

HEAD = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
app = FastAPI()
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@app.post("/")
async def read_body(request: Request) -> int:
    return len(await request.body())


@contextlib.asynccontextmanager
async def connections(count: int) -> AsyncIterator[list[Connection]]:
    """Connections to a server, which have sent nothing."""
    async with contextlib.AsyncExitStack() as stack:
        listening = stack.enter_context(contextlib.closing(bind_socket("127.0.0.1", 0)))
        await stack.enter_async_context(serve(app, listening))
        opened = []
        for _ in range(count):
            opened.append(await asyncio.open_connection(*listening.getsockname()))
            stack.callback(opened[-1][1].close)
        yield opened


async def is_closed(connection: Connection) -> bool:
    """Wait until the server answers or closes the connection; returns whether it closed it."""
    with contextlib.suppress(ConnectionError):
        return not await connection[0].read(1)
    return True


@async_test
@pytest.mark.parametrize("first", [b"", HEAD + b"\r\n"], ids=["first request", "second request"])
async def test_a_connection_without_a_complete_header_is_closed(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_server, "_HEADER_TIMEOUT_S", 0.05)
    async with connections(1) as ((reader, writer),):
        if first:
            writer.write(first)
            await reader.readuntil(b'{"detail":"Method Not Allowed"}')
        writer.write(HEAD)

        assert await is_closed((reader, writer))


@async_test
async def test_a_request_that_takes_longer_than_its_header_may_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rest_server, "_HEADER_TIMEOUT_S", 0.05)
    async with connections(2) as (slow, other):
        slow[1].write(HEAD.replace(b"GET", b"POST") + b"content-length: 1\r\n\r\n")
        await slow[1].drain()
        assert await is_closed(other)  # the time of both has passed

        slow[1].write(b"x")
        assert b" 200 " in await slow[0].readline()


@async_test
async def test_connections_beyond_a_quarter_of_the_descriptors_are_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 4096))
    async with connections(10) as first:
        port = first[0][1].get_extra_info("peername")
        others = [await asyncio.open_connection(*port) for _ in range(5)]
        for connection in others:
            assert await is_closed(connection)
            connection[1].close()

        first[0][1].write(HEAD + b"\r\n")
        assert b" 405 " in await first[0][0].readline()
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("api.connection_refused") == 1


@async_test
async def test_errors_of_accept_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    context = {"message": "socket.accept() out of system resource", "exception": error}
    async with connections(0):
        with pytest.MonkeyPatch.context() as patch:
            for seconds in (0.0, 0.1, 0.9, 1.1, 1.2):
                patch.setattr(loop, "time", lambda seconds=seconds: now + seconds)
                for _ in range(100):
                    loop.call_exception_handler({**context, "socket": None})
        loop.call_exception_handler({"message": "another error"})

    logged = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert logged == [(logging.WARNING, "api.connection_refused")] * 2 + [
        (logging.ERROR, "another error")
    ]
