"""Reapers: small processes between the fork server and a child.

A reaper is the ancestor of every process of its child. Orphans below it become its children, in any
session or process group, so the kernel itself reports when no process is left: there is no child to
wait for. The reaper outlives the child until then, and only then reports its end to the worker.
When its socket to the worker closes, the fork server ends, or the deadline of the worker's lease
passes, it kills all its descendants. The worker may be stopped then: it moves the deadline, it does
not enforce it.

An attempt of an agent or command, or of a function that needs a child of its own, has a reaper for
itself, which is used again when nothing of the attempt is left. A slot has a reaper too; see
``slot_reaper``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from longshore.execution.forkserver.child import (
    FIRST_FREE_FD,
    reset_process_state,
    run_child,
    run_in_fork,
)
from longshore.execution.forkserver.linux import (
    become_subreaper,
    close_other_fds,
    die_with_parent,
    set_process_name,
)
from longshore.execution.process_table import descendants
from longshore.execution.protocol import (
    FDS_PER_CHILD,
    REQUEST_BYTES,
    ChildStatus,
    KillCause,
    ReaperRequest,
    decode_request,
)
from longshore.execution.slot_page import clock_ns

# Above the numbers that a child uses for itself.
_FIRST_FD = 64
_MEMORY_CHECK_MS = 250
# A wait does not end earlier if the machine sleeps meanwhile, so it is never longer than this.
_MAX_WAIT_MS = 5_000
_IS_LINUX = sys.platform == "linux"
# How long to wait for processes that hang in the kernel before the end is reported anyway.
KILL_TIMEOUT_S = 5.0
KILL_INTERVAL_S = 0.005
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


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
        """Kill until the kernel reports no child; call ``report_end`` once, then or when it takes
        very long."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        reported = False
        while self.reap():
            if self.wait_status is None:
                self.signal_group(signal.SIGKILL)
            for process_id in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process_id, signal.SIGKILL)
            if not reported and time.monotonic() > deadline:
                reported = True
                report_end()
            time.sleep(KILL_INTERVAL_S)  # noqa: TID251 - no event loop in this process
        if not reported:
            report_end()

    def status(self, *, ended: bool) -> ChildStatus:
        """Returns what the worker learns of the child's start or end."""
        wait_status = signal.SIGKILL if self.wait_status is None else self.wait_status
        return ChildStatus(
            ended=ended,
            child_pid=self.child_pid,
            wait_status=wait_status if ended else 0,
            peak_bytes=self.peak_bytes,
            cause=self.cause,
        )


class _Request(NamedTuple):
    """What the worker asks; see ``protocol.encode_request``."""

    kind: ReaperRequest
    generation: int
    memory_bytes: int
    deadline_ns: int
    files: list[int]


class Reaper:
    """What the reapers of attempts and of slots have in common.

    Args:
        files: What the worker has sent: the reaper's end of its socket, then what children need.
        end_pipe: The reading end of a pipe that closes when the fork server ends.
        inherited_fds: Kept open while any descendant is alive; children close them.
    """

    def __init__(self, files: Sequence[int], end_pipe: int, inherited_fds: Sequence[int]) -> None:
        reset_process_state()
        become_subreaper()
        set_process_name(b"longshore-reap")
        moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD) for file in files]
        close_other_fds({*moved, end_pipe, *inherited_fds})
        control, *self.child_files = moved
        self.own_fds = (control, end_pipe, *inherited_fds)
        self._control = socket.socket(fileno=control)
        self._end_pipe = end_pipe
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(end_pipe, select.POLLIN)

    deadline_ns = 0
    """When the child has to be killed, unless it is moved before."""

    def check_interval_ms(self) -> int | None:
        """Returns how long ``kill_cause`` need not be called; None: until something happens."""
        left_ns = self.deadline_ns - clock_ns()
        # One more, as a child that has just begun may not be visible in a page at the deadline.
        return min(left_ns // 1_000_000 + 2, _MAX_WAIT_MS) if left_ns > 0 else None

    def kill_cause(self, processes: ReapedProcesses) -> KillCause:
        """Returns why the child has to be killed now, if it has to."""
        raise NotImplementedError

    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return clock_ns() >= self.deadline_ns

    def clean_up(self) -> None:
        """Remove what must not outlive this process; nothing is left of the child."""

    def fork(self, run: Callable[[], NoReturn]) -> int:
        """Fork a child that leads its own session and dies with this process.

        Returns:
            Its process id.

        Raises:
            OSError: no process can be forked.
        """
        reaper = os.getpid()

        def become_child() -> NoReturn:
            os.setsid()
            die_with_parent(reaper)
            run()

        process_id = os.fork()
        if process_id == 0:
            run_in_fork(become_child)
        return process_id

    def supervise(self, processes: ReapedProcesses, generation: int) -> None:
        """Return when the child has ended or has to be killed."""
        pidfd = -1
        if _IS_LINUX:
            pidfd = os.pidfd_open(processes.child_pid)
            self._poll.register(pidfd, select.POLLIN)
        try:
            while processes.wait_status is None and processes.cause is KillCause.NONE:
                request = self.wait(self.check_interval_ms(), processes)
                if request is not None and request.generation == generation:
                    if request.kind is ReaperRequest.KILL:
                        return
                    if request.kind is ReaperRequest.TERMINATE:
                        processes.signal_group(signal.SIGTERM)
                    if request.kind is ReaperRequest.TRUST:
                        self.deadline_ns = request.deadline_ns
                processes.reap()
                processes.cause = self.kill_cause(processes)
        finally:
            if _IS_LINUX:
                self._poll.unregister(pidfd)
                os.close(pidfd)

    def wait(
        self, timeout_ms: int | None, processes: ReapedProcesses | None = None
    ) -> _Request | None:
        """Wait until something happened. Returns the worker's request, if it was one.

        Exits this process if the worker or the fork server has ended.
        """
        ready = {file for file, _ in self._poll.poll(timeout_ms)}
        if self._end_pipe in ready:
            self.exit(processes)
        if self._control.fileno() not in ready:
            return None
        try:
            packet, files, _, _ = socket.recv_fds(self._control, REQUEST_BYTES, FDS_PER_CHILD)
        except ConnectionError:
            packet = b""
        if not packet:
            self.exit(processes)
        return _Request(*decode_request(packet), files)

    @property
    def worker_has_ended(self) -> bool:
        """Whether the worker has ended, or has closed its end of the socket."""
        try:
            return not self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def report(self, status: ChildStatus, processes: ReapedProcesses) -> None:
        """Report the start or end of a child to the worker; exit if the worker has ended."""
        try:
            self._control.send(status.encode(), socket.MSG_DONTWAIT)
        except OSError:
            self.exit(processes)

    def exit(self, processes: ReapedProcesses | None = None) -> NoReturn:
        """Kill the child, if there is one, and end."""
        if processes is not None:
            processes.kill_all(lambda: None)
        self.clean_up()
        os._exit(0)


class AttemptReaper(Reaper):
    """A reaper for attempts, one at a time; their specs do not pass through it."""

    def run(self) -> NoReturn:
        """Start a child whenever the worker requests it; never returns."""
        # A received pipe must not get a number to which another one will be moved in the child.
        while os.open(os.devnull, os.O_RDWR) < FIRST_FREE_FD:
            pass
        while True:
            request = self.wait(None)
            if request is not None and request.kind is ReaperRequest.START:
                self._run_child(request)

    def _run_child(self, request: _Request) -> None:
        """Start the child and wait until none of the attempt's processes is left."""
        self._memory_bytes, self.deadline_ns = request.memory_bytes, request.deadline_ns
        processes = ReapedProcesses()
        try:
            processes.child_pid = self.fork(lambda: run_child(request.files))
        except OSError:
            processes.wait_status = os.EX_OSERR << 8
        for file in request.files:
            os.close(file)
        if processes.child_pid:
            self.report(processes.status(ended=False), processes)
            self.supervise(processes, request.generation)
        processes.kill_all(lambda: self.report(processes.status(ended=True), processes))

    def check_interval_ms(self) -> int | None:
        if not _IS_LINUX:
            return int(KILL_INTERVAL_S * 1000)  # nothing reports the end of the child
        interval_ms = super().check_interval_ms() or 0
        return min(interval_ms, _MEMORY_CHECK_MS) if self._memory_bytes else interval_ms

    def kill_cause(self, processes: ReapedProcesses) -> KillCause:
        if self.is_late():
            return KillCause.DEADLINE
        if not self._memory_bytes:
            return KillCause.NONE
        used = sum(descendants(os.getpid()).values())
        processes.peak_bytes = max(processes.peak_bytes, used)
        return KillCause.MEMORY if used > self._memory_bytes else KillCause.NONE
