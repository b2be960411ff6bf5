"""The HTTP server: serves the app on a socket until its caller stops it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI

from longshore.errors import UsageError

# Clients that follow a stream do not disconnect, so the shutdown does not wait for them.
_SHUTDOWN_TIMEOUT_S = 2
_BACKLOG = 512


class _SignalFreeServer(uvicorn.Server):
    """A server that leaves signal handling to its caller."""

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
    server = _SignalFreeServer(config)
    serving = asyncio.ensure_future(server.serve(sockets=[server_socket]))
    try:
        yield serving
    finally:
        server.should_exit = True
        await serving
