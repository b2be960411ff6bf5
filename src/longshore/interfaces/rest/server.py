"""The HTTP server: serves the app on a socket until its caller stops it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from email.utils import formatdate

import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from longshore.errors import UsageError

# Clients that follow a stream do not disconnect, so the shutdown does not wait for them.
_SHUTDOWN_TIMEOUT_S = 2
_BACKLOG = 512


class _ServerState(ServerState):
    """Adds the date to a response when it is sent: uvicorn's timer would do it each second."""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode())]

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """There are no others."""


class _Server(uvicorn.Server):
    """A server without signal handling and without a timer: its caller ends it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state = _ServerState()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

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
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[server_socket]))
    try:
        yield serving
    finally:
        server.stop()
        await serving
