"""Writing to a pipe or socket that does not block, without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Any


async def write_all(number: int, data: bytes, *, reader: asyncio.Future[Any]) -> None:
    """Write to a pipe as fast as it is read; what nobody is left to read is not written.

    Args:
        reader: Done when whoever reads is gone, also if somebody else holds the pipe open.
    """
    left = memoryview(data)
    with contextlib.suppress(BrokenPipeError):
        while left and not reader.done():
            try:
                left = left[os.write(number, left) :]
            except BlockingIOError:
                await writable(number, or_done=reader)


async def writable(
    file: socket.socket | int, *, or_done: asyncio.Future[Any] | None = None
) -> None:
    """Return when something can be written to it, or never again."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()

    def wake(_: object = None) -> None:
        ready.set()

    loop.add_writer(file, wake)
    if or_done is not None:
        or_done.add_done_callback(wake)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(file)
        if or_done is not None:
            or_done.remove_done_callback(wake)
