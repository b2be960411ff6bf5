"""Reads and writes pipes without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

_CHUNK_BYTES = 64 * 1024


async def write_all(fd: int, data: bytes, *, reader_gone: asyncio.Future[Any]) -> None:
    """Write to a pipe as fast as it is read; stop when the reader is gone.

    Args:
        reader_gone: Done when the reader has ended, also if another process holds the pipe open.
    """
    left = memoryview(data)
    with contextlib.suppress(BrokenPipeError):
        while left and not reader_gone.done():
            try:
                left = left[os.write(fd, left) :]
            except BlockingIOError:
                await wait_writable(fd, or_done=reader_gone)


async def wait_writable(
    file: socket.socket | int, *, or_done: asyncio.Future[Any] | None = None
) -> None:
    """Return when the file is writable or closed by its reader, or when ``or_done`` is done."""
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


class PipeReader:
    """The reading end of a pipe or terminal, without read-ahead: unread data stays in the pipe.

    asyncio's transports and streams read ahead, and need iterations of the loop to open and close.
    """

    def __init__(self, number: int) -> None:
        os.set_blocking(number, False)
        self._fd = number
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    async def read(self) -> bytes:
        """Returns the next chunk as soon as there is one; empty at the end."""
        while True:
            # Also if data is there already: let other tasks of the loop run.
            await self._wait_readable()
            try:
                return os.read(self._fd, _CHUNK_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""  # a terminal ends with an error when its last user has closed it

    async def lines(self, *, limit_bytes: int) -> AsyncIterator[bytes | None]:
        """Yields line by line; None in place of a line longer than ``limit_bytes``."""
        line, too_long = bytearray(), False
        while chunk := await self.read():
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                line += end
                if not too_long:
                    yield bytes(line) if len(line) <= limit_bytes else None
                line, too_long = bytearray(), False
            line += rest
            if len(line) > limit_bytes:
                if not too_long:
                    yield None
                line, too_long = bytearray(), True
        if line and not too_long:
            yield bytes(line)

    async def _wait_readable(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = waiting = loop.create_future()
        loop.add_reader(self._fd, _wake, waiting)
        try:
            await waiting
        finally:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        # Once closed, the descriptor may be reused for another file.
        if self._waiter is not None:
            self._waiter.get_loop().remove_reader(self._fd)
            self._waiter = None

    def close(self) -> None:
        """Close the pipe; a task that still reads must be cancelled. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._stop_waiting()
            os.close(self._fd)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
