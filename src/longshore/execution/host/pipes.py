"""Opens a child's pipes, and reads and writes them without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import termios
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPipes:
    """The worker's ends of a child's pipes."""

    output: int
    errors: int | None  # None: output and errors share a terminal
    channel: int
    replies: int


@contextlib.contextmanager
def open_child_pipes(*, pty: bool) -> Iterator[tuple[ChildPipes, tuple[int, int, int, int]]]:
    """Open a child's pipes. Yields the worker's ends and the child's, which the block passes on.

    The child's ends are closed after the block, so that a read sees the end when the child closes
    its own. If the block raises, the worker's ends are closed too; otherwise the caller owns them.
    """
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:

        def own(our_end: int, child_end: int) -> tuple[int, int]:
            ours.callback(os.close, our_end)
            theirs.callback(os.close, child_end)
            return our_end, child_end

        output, child_output = own(*(_open_pty() if pty else os.pipe()))
        errors, child_errors = (None, child_output) if pty else own(*os.pipe())
        channel, child_channel = own(*os.pipe())
        replies, child_replies = own(*reversed(os.pipe()))
        # A child that never reads its replies must not block the worker.
        os.set_blocking(replies, False)
        yield (
            ChildPipes(output=output, errors=errors, channel=channel, replies=replies),
            (child_output, child_errors, child_channel, child_replies),
        )
        ours.pop_all()


def _open_pty() -> tuple[int, int]:
    """Returns both ends of a new pseudo-terminal: the worker's and the child's."""
    our_end, child_end = os.openpty()
    # Leave the output as printed: no carriage return before the newline.
    modes = termios.tcgetattr(child_end)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(child_end, termios.TCSANOW, modes)
    return our_end, child_end


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
        waiting = loop.create_future()
        loop.add_reader(self._fd, _wake, waiting)
        try:
            await waiting
        finally:
            # Once closed, the descriptor may be reused for another file.
            if not self._closed:
                loop.remove_reader(self._fd)

    def close(self) -> None:
        """Close the pipe; a task that still reads must be cancelled. Safe to call twice."""
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
