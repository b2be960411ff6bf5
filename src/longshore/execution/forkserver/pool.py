"""Pool children: children that execute one small task after another.

A pool child runs outside the worker and below a reaper, like every child, but its tasks share its
memory: what one task leaves there, the next one sees. It ends when a task has left processes behind
(the reaper kills those) and after ``_MAX_TASKS`` tasks.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NoReturn

from longshore.execution.forkserver.child import (
    current_environment,
    exit_process,
    install_fds,
    receive_spec,
)
from longshore.execution.forkserver.linux import (
    become_subreaper,
    close_other_fds,
    has_children,
    set_process_name,
)
from longshore.execution.protocol import CHANNEL_FD, FDS_PER_START, REPLIES_FD
from longshore.execution.runners.channel import Channel
from longshore.execution.runners.executor import execute_attempt, run_and_report

_MAX_TASKS = 1000
_TASK_MESSAGE = b"\n"
_REPLY = struct.Struct("<B?i")  # exit code, whether the child stays, its process id
_SOCKET_FD = REPLIES_FD + 1
_HIGH_FD = 64


class PoolChild:
    """The fork server's handle on a pool child."""

    def __init__(self) -> None:
        # Packets: each task arrives whole, with its file descriptors.
        self.server_end, self.child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server_end.setblocking(False)
        self.process_id = 0  # until its first reply

    def assign(self, files: Sequence[int]) -> None:
        """Send the child the pipes of a task; one of them carries the spec."""
        socket.send_fds(self.server_end, [_TASK_MESSAGE], list(files))

    def collect(self) -> tuple[int | None, bool]:
        """Returns the exit code of the child's task, and whether the child stays for more tasks."""
        try:
            reply = self.server_end.recv(_REPLY.size)
        except (BlockingIOError, ConnectionError):
            reply = b""
        if not reply:
            return None, False
        code, stays, self.process_id = _REPLY.unpack(reply)
        return code, stays


def run_pool_child(far: int) -> NoReturn:
    """The main loop of a pool child; never returns."""
    set_process_name(b"longshore-pool")
    # Processes that a task leaves behind become children of this one, which can then see them.
    become_subreaper()
    os.dup2(far, _SOCKET_FD)
    close_other_fds({_SOCKET_FD})
    server = socket.socket(fileno=_SOCKET_FD)
    # A received descriptor must not get a number to which another one will be moved.
    low_fd = os.open(os.devnull, os.O_RDWR)
    null_fd = fcntl.fcntl(low_fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    install_fds([null_fd] * FDS_PER_START)
    for left in reversed(range(_MAX_TASKS)):
        task, files, _, _ = socket.recv_fds(server, len(_TASK_MESSAGE), FDS_PER_START)
        if not task:
            break
        install_fds(files)
        for file in files:
            os.close(file)
        code = _execute_attempt()
        # This closes the pipes, so that their readers see the end.
        install_fds([null_fd] * FDS_PER_START)
        stays = left > 0 and not has_children()
        server.send(_REPLY.pack(code, stays, os.getpid()))
        if not stays:
            break
    exit_process(0)


def _execute_attempt() -> int:
    channel = Channel(CHANNEL_FD, REPLIES_FD)
    codes: list[int] = []
    failed = run_and_report(
        channel, lambda: codes.append(execute_attempt(receive_spec(current_environment()), channel))
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return failed or codes[0]
