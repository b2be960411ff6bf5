"""Opens the files between the worker and a child."""

from __future__ import annotations

import os
import socket
import termios
from contextlib import ExitStack


def open_sockets(ours: ExitStack, theirs: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Returns our end of a new pair, which does not block, and the other end.

    Each of the stacks closes its end.
    """
    our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.enter_context(our_end).setblocking(False)
    return our_end, theirs.enter_context(their_end)


def open_reading(ours: ExitStack, theirs: ExitStack, *, pty: bool = False) -> tuple[int, int]:
    """Open a pipe or a terminal that the child writes to; see ``open_sockets``."""
    return _own(_open_pty() if pty else os.pipe(), ours, theirs)


def open_writing(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    """Open a pipe that the child reads; see ``open_sockets``."""
    child_end, our_end = os.pipe()
    return _own((our_end, child_end), ours, theirs)


def _own(ends: tuple[int, int], ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    our_end, child_end = ends
    ours.callback(os.close, our_end)
    theirs.callback(os.close, child_end)
    # A child that never reads or writes must not block the worker.
    os.set_blocking(our_end, False)
    return ends


def _open_pty() -> tuple[int, int]:
    our_end, child_end = os.openpty()
    # Leave the output as printed: no carriage return before the newline.
    modes = termios.tcgetattr(child_end)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(child_end, termios.TCSANOW, modes)
    return our_end, child_end
