"""Opens the pipes of an attempt."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import termios
from collections.abc import Iterator
from dataclasses import dataclass


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
        for end in {output, output if errors is None else errors, channel, replies}:
            os.set_blocking(end, False)
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


async def wait_writable(file: socket.socket) -> None:
    """Return when the file is writable or closed by its reader."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(file)
