"""The HTTP server: serves the app on a socket until its caller stops it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from longshore.errors import UsageError

logger = logging.getLogger(__name__)

# Clients that follow a stream do not disconnect, so the shutdown does not wait for them.
_SHUTDOWN_TIMEOUT_S = 2
_BACKLOG = 512
# Those beyond the limit have a descriptor until they are closed, a turn of the loop later.
_ACCEPTED_AT_ONCE = 16
_HEADER_TIMEOUT_S = 10.0
_MAX_CONNECTIONS = 16_384
_LOG_INTERVAL_S = 1.0
_NO_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class _ServerState(ServerState):
    """Adds the date to a response when it is sent: uvicorn's timer would do it each second."""

    log_again_at = 0.0

    def log_refusal(self, loop: asyncio.AbstractEventLoop, reason: str) -> None:
        """Log that a connection was not accepted; at most once a second."""
        if loop.time() >= self.log_again_at:
            self.log_again_at = loop.time() + _LOG_INTERVAL_S
            logger.warning("api.connection_refused", extra={"error": reason})

    def handle_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The exception handler of the loop: asyncio reports one error for each connection."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _NO_RESOURCES and "socket" in context:
            self.log_refusal(loop, str(error))
        else:
            loop.default_exception_handler(context)

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode())]

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """There are no others."""


class _Connection(H11Protocol):
    """A connection that ends if there are too many, or if a header is not complete in time."""

    server_state: _ServerState
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # The store, the worker and its children need descriptors too.
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = min(open_files // 4, _MAX_CONNECTIONS) if open_files > 0 else _MAX_CONNECTIONS
        if len(self.connections) > limit:
            self.server_state.log_refusal(self.loop, f"there are {limit} connections")
            transport.abort()
        self._watch_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_header()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_timer()

    def _watch_header(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(_HEADER_TIMEOUT_S, self.transport.abort)

    def _end_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class _Server(uvicorn.Server):
    """A server without signal handling and without a timer: its caller ends it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state: _ServerState = _ServerState()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)  # asyncio has one number for this and for its accepts

    async def main_loop(self) -> None:
        await self._stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        UsageError: the address is taken, or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: without it asyncio does not know that small answers must not wait.
    server_socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server_socket.bind((host, port))
        server_socket.listen(_BACKLOG)
        server_socket.setblocking(False)
    except OSError as error:
        server_socket.close()
        raise UsageError(
            f"cannot listen at {host} port {port}: {error.strerror}; "
            "another port can be set with --port or LONGSHORE_API_PORT"
        ) from error
    return server_socket


@contextlib.asynccontextmanager
async def serve(app: FastAPI, server_socket: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Answer requests while this is entered; the task ends early only if the server breaks."""
    config = uvicorn.Config(
        app,
        http=_Connection,
        backlog=_ACCEPTED_AT_ONCE,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(server.server_state.handle_error)
    serving = asyncio.ensure_future(server.serve(sockets=[server_socket]))
    try:
        yield serving
    finally:
        server.stop()
        await serving
        loop.set_exception_handler(None)
