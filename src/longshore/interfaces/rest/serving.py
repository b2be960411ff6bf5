"""Listening: the app behind a socket, started and stopped by whoever owns the process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI

from longshore.errors import UsageError

# Readers of streams stay as long as they like: at the end they are not waited for.
_LEAVE_WITHIN_S = 2
_BACKLOG = 512


class _Server(uvicorn.Server):
    """One that leaves signals to whoever started it."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        UsageError: the address is taken, or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: without it asyncio does not know that small answers must not wait.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        message = (
            f"cannot listen at {host} port {port}: {error.strerror}; "
            "another port can be set with --port or LONGSHORE_API_PORT"
        )
        raise UsageError(message) from error
    return made


@contextlib.asynccontextmanager
async def listening(app: FastAPI, at: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Answer requests while this is entered; the task ends early only if the server breaks."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_LEAVE_WITHIN_S,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[at]))
    try:
        yield serving
    finally:
        server.should_exit = True
        await serving
