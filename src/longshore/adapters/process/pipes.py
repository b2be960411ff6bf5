"""Reading and writing pipes without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

_PIECE_BYTES = 64 * 1024


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


class ReadingEnd:
    """Our end of a pipe or terminal: nothing is read that nobody asks for, so it need not be kept.

    asyncio's own transports and streams read ahead, and take turns of the loop to open and close.
    """

    def __init__(self, number: int) -> None:
        os.set_blocking(number, False)
        self._number = number
        self._waiting: asyncio.Future[None] | None = None
        self._closed = False

    async def read(self) -> bytes:
        """What is there, as soon as there is something; empty at the end."""
        while True:
            # Also if there is something already: others want to have their turn.
            await self._readable()
            try:
                return os.read(self._number, _PIECE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""  # so ends a terminal, when its last user has gone

    async def lines(self, *, longest: int) -> AsyncIterator[bytes | None]:
        """Line by line; None in place of one of more bytes than ``longest``."""
        line, passed_over = bytearray(), False
        while piece := await self.read():
            *ends, rest = piece.split(b"\n")
            for end in ends:
                line += end
                if not passed_over:
                    yield bytes(line) if len(line) <= longest else None
                line, passed_over = bytearray(), False
            line += rest
            if len(line) > longest:
                if not passed_over:
                    yield None
                line, passed_over = bytearray(), True
        if line and not passed_over:
            yield bytes(line)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiting = waiting = loop.create_future()
        loop.add_reader(self._number, _wake, waiting)
        try:
            await waiting
        finally:
            self._rest()

    def _rest(self) -> None:
        # Once it is closed its number may be another file's.
        if self._waiting is not None:
            self._waiting.get_loop().remove_reader(self._number)
            self._waiting = None

    def close(self) -> None:
        """Whoever still reads must be cancelled; safe to call twice."""
        if not self._closed:
            self._closed = True
            self._rest()
            os.close(self._number)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
