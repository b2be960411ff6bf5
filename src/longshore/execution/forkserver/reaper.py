"""The reaper: one small process per attempt, the ancestor of every process of the attempt.

Orphans below a reaper become its children, in any session or process group, so the kernel itself
reports when no process is left: there is no child to wait for. The reaper outlives the child until
then, and only then reports the end of the attempt and becomes idle. When the fork server ends, its
socket to the reaper closes, and the reaper kills all its descendants.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from longshore.execution.forkserver import child
from longshore.execution.forkserver.linux import (
    become_subreaper,
    close_other_fds,
    set_process_name,
)
from longshore.execution.process_table import descendants
from longshore.execution.protocol import (
    FDS_PER_START,
    MESSAGE_LIMIT_BYTES,
    ChildStatus,
    KillCause,
    encode_message,
)

_MEMORY_CHECK_S = 0.25
# How long to wait for processes that hang in the kernel before the end is reported anyway.
KILL_TIMEOUT_S = 5.0
KILL_INTERVAL_S = 0.005
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Reaper:
    """The socket between the fork server and a reaper, and the reaper's main loop."""

    def __init__(self) -> None:
        # Packets: each message arrives whole, with its file descriptors.
        self.server_end, self.reaper_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(self, number: int, fds: Sequence[int], *, memory: int | None) -> None:
        """Make it start a child with its four pipes."""
        socket.send_fds(self.server_end, [encode_message(number, memory=memory)], list(fds))

    def signal(self, number: int, *, kill: bool) -> None:
        """Make it stop or kill the attempt, if that is still its current one."""
        with contextlib.suppress(OSError):
            self.server_end.send(encode_message(number, kill=kill))

    def run(self, server_pipe: int, worker_pipe: int, *, inherited_fds: Sequence[int]) -> NoReturn:
        """The reaper's main loop; never returns.

        Args:
            server_pipe: The pipe that informs the fork server which reapers are idle.
            worker_pipe: The pipe that informs the worker of the start and end of its attempts.
            inherited_fds: Kept open while any descendant is alive; children close them.
        """
        become_subreaper()
        set_process_name(b"longshore-reap")
        self.server_pipe, self.worker_pipe = server_pipe, worker_pipe
        close_other_fds({self.reaper_end.fileno(), server_pipe, worker_pipe, *inherited_fds})
        self._environment = child.reset_process_state()
        spare: child.PreforkedChild | None = None
        while True:
            if spare is None:
                # Fork now, while no attempt waits for it.
                with contextlib.suppress(OSError):
                    spare = self.prefork_child()
            message, files = self._receive()
            if "kill" not in message:
                _ReapedAttempt(message, files, self).supervise(spare)
                spare = None

    def prefork_child(self) -> child.PreforkedChild:
        """Returns a child that waits for an attempt."""
        return child.PreforkedChild(lambda files: child.run_child(files, self._environment))

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        """Returns the fork server's next message; exits if the fork server has ended."""
        message, files, _, _ = socket.recv_fds(self.reaper_end, MESSAGE_LIMIT_BYTES, FDS_PER_START)
        if not message:
            os._exit(0)
        return json.loads(message), files

    def receive_signal(self, number: int) -> bool | None:
        """Returns whether to kill the current attempt; None if the message names an earlier one."""
        message = self.reaper_end.recv(MESSAGE_LIMIT_BYTES)
        if not message:
            return True
        request = json.loads(message)
        return request["kill"] if request["number"] == number else None


class ReapedProcesses:
    """A child and all its descendants, as their reaper sees them."""

    def __init__(self, child_pid: int = 0) -> None:
        self.child_pid = child_pid
        self.wait_status: int | None = None  # None: the child has not ended
        self.peak_bytes = 0
        self.cause = KillCause.NONE

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child's process group."""
        try:
            os.killpg(self.child_pid, number)
        except ProcessLookupError:
            # The child has not made its group yet; it is not waited for, so its id is not reused.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child_pid, number)

    def reap(self) -> bool:
        """Wait for all children that have ended. Returns whether any child is left."""
        while True:
            try:
                process_id, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if process_id == 0:
                return True
            self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * _RSS_UNIT)
            if process_id == self.child_pid:
                self.wait_status = status

    def kill_all(self, report_end: Callable[[], None]) -> None:
        """Kill until the kernel reports no child; call ``report_end`` then, or when it takes very
        long, once or several times."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while self.reap():
            if self.wait_status is None:
                self.signal_group(signal.SIGKILL)
            for process_id in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process_id, signal.SIGKILL)
            if time.monotonic() > deadline:
                report_end()
            time.sleep(KILL_INTERVAL_S)  # noqa: TID251 - no event loop in this process
        report_end()

    def status(self, number: int, *, ended: bool) -> ChildStatus:
        """Returns what the worker learns of the child's start or end."""
        wait_status = signal.SIGKILL if self.wait_status is None else self.wait_status
        return ChildStatus(
            number=number,
            ended=ended,
            child_pid=self.child_pid,
            wait_status=wait_status if ended else 0,
            peak_bytes=self.peak_bytes,
            cause=self.cause,
        )


class _ReapedAttempt(ReapedProcesses):
    """The processes of one attempt."""

    def __init__(self, message: dict[str, Any], files: Sequence[int], reaper: Reaper) -> None:
        super().__init__()
        self._number: int = message["number"]
        self._memory_bytes: int | None = message["memory"]
        self._fds = files
        self._reaper = reaper
        self._end_reported = False

    def supervise(self, preforked: child.PreforkedChild | None) -> None:
        """Start the child and wait until none of the attempt's processes is left."""
        self._start_child(preforked)
        for number in self._fds:
            os.close(number)
        if self.child_pid:
            self._report(self.status(self._number, ended=False))
            self._wait_for_end()
        self.kill_all(self._report_end)

    def _start_child(self, preforked: child.PreforkedChild | None) -> None:
        # The preforked child may have been killed while it waited.
        for candidate in (preforked, None):
            with contextlib.suppress(OSError):
                started = candidate or self._reaper.prefork_child()
                started.start(self._fds)
                self.child_pid = started.process_id
                return
        self.wait_status = os.EX_OSERR << 8

    def _wait_for_end(self) -> None:
        """Wait until the child has ended or the attempt must be killed."""
        control = self._reaper.reaper_end.fileno()
        poll = select.poll()
        poll.register(control, select.POLLIN)
        timeout_ms = _MEMORY_CHECK_S * 1000 if self._memory_bytes else None
        with contextlib.ExitStack() as opened:
            if sys.platform == "linux":
                pidfd = os.pidfd_open(self.child_pid)
                opened.callback(os.close, pidfd)
                poll.register(pidfd, select.POLLIN)
            else:
                timeout_ms = KILL_INTERVAL_S * 1000
            while self.wait_status is None:
                ready = {number for number, _ in poll.poll(timeout_ms)}
                if control in ready and self._kill_requested():
                    return
                self.reap()
                if self._exceeds_memory():
                    self.cause = KillCause.MEMORY
                    return

    def _kill_requested(self) -> bool:
        kill = self._reaper.receive_signal(self._number)
        if kill is False:
            self.signal_group(signal.SIGTERM)
        return bool(kill)

    def _exceeds_memory(self) -> bool:
        if self._memory_bytes is None:
            return False
        used = sum(descendants(os.getpid()).values())
        self.peak_bytes = max(self.peak_bytes, used)
        return used > self._memory_bytes

    def _report_end(self) -> None:
        if not self._end_reported:
            self._end_reported = True
            self._report(self.status(self._number, ended=True))

    def _report(self, status: ChildStatus) -> None:
        # The fork server first: the worker may start another attempt at once, for which the fork
        # server needs to know that this reaper is idle.
        if status.ended:
            write_status(self._reaper.server_pipe, status)
        write_status(self._reaper.worker_pipe, status)


def write_status(pipe: int, status: ChildStatus) -> None:
    """Write the status to the pipe; a pipe without a reader is ignored."""
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, status.encode())
