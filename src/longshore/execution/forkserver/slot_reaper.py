"""The reaper of a slot: forks the slot's children, one after another.

It holds the child's ends of the slot's pipes for as long as the worker uses the slot, and gives
them to each child. When a child has ended, it kills what is left of it, reports the end to the
worker, and forks the next child, which waits for a task. It is not involved in the tasks
themselves, but it knows from the slot's page whether one is running and until when the worker's
lease is trusted: it kills the child if that time passes, also if the worker is stopped. It ends
when the worker or the fork server has ended, after it has killed all its descendants.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from longshore.execution.forkserver.child import reset_process_state, run_in_fork
from longshore.execution.forkserver.linux import (
    become_subreaper,
    close_other_fds,
    die_with_parent,
    set_process_name,
)
from longshore.execution.forkserver.reaper import ReapedProcesses
from longshore.execution.forkserver.slot_child import SlotChild, SlotFiles, SlotSettings
from longshore.execution.protocol import KillCause
from longshore.execution.slot_page import SlotPage, clock_ns
from longshore.execution.slot_protocol import REQUEST_BYTES, ReaperRequest, decode_request

# Above the numbers that a child uses for itself.
_FIRST_FD = 64
# After a child that ended before it had begun anything, or if no child can be forked.
_FORK_INTERVAL_MS = 100
# A wait does not end earlier if the machine sleeps meanwhile, so it is never longer than this.
_MAX_WAIT_MS = 5_000


class SlotReaper:
    """See the module.

    Args:
        settings: The fields of ``SlotSettings``, and ``page``, the index of the slot's page.
        files: The child's ends of the slot's files, the reaper's end of its socket to the worker,
            and the page file.
    """

    def __init__(self, settings: Mapping[str, Any], files: Sequence[int]) -> None:
        self._settings = dict(settings)
        self._received = files

    def run(self, end_pipe: int, inherited_fds: Sequence[int]) -> NoReturn:
        """The reaper's main loop; never returns.

        Args:
            end_pipe: The reading end of a pipe that closes when the fork server ends.
            inherited_fds: Kept open while any descendant is alive; children close them.
        """
        become_subreaper()
        set_process_name(b"longshore-reap")
        moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD) for file in self._received]
        *child_files, control, page_file = moved
        close_other_fds({*moved, end_pipe, *inherited_fds})
        self._page = SlotPage(page_file, self._settings.pop("page"))
        os.close(page_file)
        reset_process_state()
        self._child_settings = SlotSettings(**self._settings)
        self._child = SlotChild(
            self._child_settings,
            SlotFiles(*child_files),
            self._page,
            close_fds=(control, end_pipe, *inherited_fds),
        )
        self._end_pipe = end_pipe
        self._control = socket.socket(fileno=control)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(end_pipe, select.POLLIN)
        # Everything that is there now stays: a collection would only make children copy pages.
        gc.freeze()
        generation = 0
        while True:
            generation += 1
            begun_count = self._page.begun_count
            failed = self._run_child(generation)
            if failed and self._page.begun_count == begun_count:
                self._wait(_FORK_INTERVAL_MS, generation)

    def _run_child(self, generation: int) -> bool:
        """Fork a child, wait until nothing of it is left, and report that to the worker.

        Returns:
            Whether the child ended by itself, and not in order.
        """
        processes = ReapedProcesses(self._fork(generation))
        self._page.child_pid = processes.child_pid
        pidfd = os.pidfd_open(processes.child_pid)
        self._poll.register(pidfd, select.POLLIN)
        self._supervise(processes, generation)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        failed = bool(processes.wait_status)
        reported = False

        def report_end() -> None:
            nonlocal reported
            if not reported:
                reported = True
                self._report(processes, generation)

        processes.kill_all(report_end)
        return failed

    def _report(self, processes: ReapedProcesses, generation: int) -> None:
        self._page.finish()
        self._page.child_pid = 0
        status = processes.status(generation, ended=True).encode()
        try:
            self._control.send(status, socket.MSG_DONTWAIT)
        except OSError:
            self._exit(processes)

    def _fork(self, generation: int) -> int:
        reaper = os.getpid()
        while True:
            try:
                process_id = os.fork()
            except OSError:
                self._wait(_FORK_INTERVAL_MS, generation)
                continue
            if process_id == 0:
                run_in_fork(lambda: self._run_in_child(reaper, generation))
            return process_id

    def _run_in_child(self, reaper: int, generation: int) -> NoReturn:
        os.setsid()
        die_with_parent(reaper)
        self._child.run(generation)

    def _supervise(self, processes: ReapedProcesses, generation: int) -> None:
        """Return when the child has ended or has to be killed."""
        while processes.wait_status is None:
            request = self._wait(self._time_left_ms(), generation, processes)
            if request is ReaperRequest.KILL:
                return
            if request is ReaperRequest.TERMINATE:
                processes.signal_group(signal.SIGTERM)
            processes.reap()
            if self._page.running and clock_ns() >= self._page.deadline_ns:
                processes.cause = KillCause.DEADLINE
                return

    def _time_left_ms(self) -> int | None:
        """Returns how long no deadline has to be checked; None: until the worker changes it."""
        left_ns = self._page.deadline_ns - clock_ns()
        # One more, as a child that has just begun may not be visible in the page at the deadline.
        return min(left_ns // 1_000_000 + 2, _MAX_WAIT_MS) if left_ns > 0 else None

    def _wait(
        self,
        timeout_ms: int | None,
        generation: int,
        processes: ReapedProcesses | None = None,
    ) -> ReaperRequest | None:
        """Wait until something happened. Returns the worker's request, if it is about this child.

        Exits this process if the worker or the fork server has ended.
        """
        ready = {file for file, _ in self._poll.poll(timeout_ms)}
        if self._end_pipe in ready:
            self._exit(processes)
        if self._control.fileno() not in ready:
            return None
        try:
            packet = self._control.recv(REQUEST_BYTES)
        except ConnectionError:
            packet = b""
        if not packet:
            self._exit(processes)
        request, subject = decode_request(packet)
        return request if subject == generation else None

    def _exit(self, processes: ReapedProcesses | None) -> NoReturn:
        """Kill the child, remove what the slot has left in the work folder, and end."""
        if processes is not None:
            processes.kill_all(lambda: None)
        self._page.finish()
        self._page.child_pid = 0
        # Imported only now: the larger this process, the more a fork costs.
        import shutil

        prefix = f"{os.path.basename(self._child_settings.child_folder)}."
        try:
            entries = list(os.scandir(self._child_settings.work_folder))
        except FileNotFoundError:
            entries = []  # the worker's folder was removed as a whole
        for entry in entries:
            if entry.name.startswith(prefix) and not self._child_settings.keep_folders:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
        os._exit(0)
