"""Members of the pool: children that carry out one small task after another.

A member is outside the worker and below a guard, like every child, but its tasks share it: what
one leaves behind in memory, the next one finds. It ends when a task has left processes behind (the
guard kills those) and after many tasks.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NoReturn

from longshore.core.child_places import CHANNEL_NUMBER, REPLIES_NUMBER
from longshore.core.keeper_words import FILES_PER_START
from longshore.runners.channel import Channel
from longshore.runners.keeper.kernel import adopt_orphans, be_called, close_all_but
from longshore.runners.keeper.leader import accept, end, put_in_place, surroundings
from longshore.runners.work import carry_out, reporting

_TASKS = 1000
_A_TASK = b"\n"
_ANSWER = struct.Struct("<B?i")  # exit code, whether it stays, its process id
_SOCKET_NUMBER = REPLIES_NUMBER + 1
_OUT_OF_THE_WAY = 64


class Member:
    """The keeper's end of a member."""

    def __init__(self) -> None:
        # Packets: a task is given whole, with its files.
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.near.setblocking(False)
        self.process_id = 0  # until it has answered once

    def give(self, files: Sequence[int]) -> None:
        """Hand it the pipes of a task; the order is in one of them."""
        socket.send_fds(self.near, [_A_TASK], list(files))

    def take(self) -> tuple[int | None, bool]:
        """The exit code that its task would have had, and whether the member stays for more."""
        try:
            answer = self.near.recv(_ANSWER.size)
        except (BlockingIOError, ConnectionError):
            answer = b""
        if not answer:
            return None, False
        code, stays, self.process_id = _ANSWER.unpack(answer)
        return code, stays


def serve(far: int) -> NoReturn:
    """A member's own life; never returns."""
    be_called(b"longshore-pool")
    # Whoever a task leaves behind becomes ours, so that we know of it.
    adopt_orphans()
    os.dup2(far, _SOCKET_NUMBER)
    close_all_but({_SOCKET_NUMBER})
    keeper = socket.socket(fileno=_SOCKET_NUMBER)
    # What arrives must not get a number that it is to be moved to.
    opened = os.open(os.devnull, os.O_RDWR)
    nothing = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    put_in_place([nothing] * FILES_PER_START)
    for left in reversed(range(_TASKS)):
        task, files, _, _ = socket.recv_fds(keeper, len(_A_TASK), FILES_PER_START)
        if not task:
            break
        put_in_place(files)
        for file in files:
            os.close(file)
        code = _carry_out()
        # Closes the pipes: whoever reads them sees that this was all.
        put_in_place([nothing] * FILES_PER_START)
        stays = left > 0 and not _left_somebody()
        keeper.send(_ANSWER.pack(code, stays, os.getpid()))
        if not stays:
            break
    end(0)


def _carry_out() -> int:
    channel = Channel(CHANNEL_NUMBER, REPLIES_NUMBER)
    codes: list[int] = []
    failed = reporting(channel, lambda: codes.append(carry_out(accept(surroundings()), channel)))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return failed or codes[0]


def _left_somebody() -> bool:
    try:
        process_id, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    # One that has ended in time is no trouble; another may be left behind it.
    return process_id == 0 or _left_somebody()
