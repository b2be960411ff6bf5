"""Reapers: small processes between the fork server and children.

A reaper is the ancestor of every process of its child. Orphans below it become its children, in any
session or process group, so the kernel itself reports when no process is left: there is no child to
wait for. The reaper outlives the child until then, and only then reports its end to the worker.
When its socket to the worker closes, the fork server ends, or the deadline of the worker's lease
passes, it kills all its descendants. The worker may be stopped then: it moves the deadline, it does
not enforce it.

A reaper belongs to a slot and forks its children, one after another. It holds the child's ends of
the slot's files for as long as the worker uses the slot, and gives them to each child. When nothing
of a child is left, it forks the next one, which waits for a task. It is not involved in the tasks
themselves: from the slot's page it knows whether one is running, until when, and its limits of
memory and processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import resource
import select
import signal
import socket
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from longshore.execution.forkserver.child import (
    AttemptChild,
    reset_process_state,
    run_in_fork,
    set_thread_reset,
)
from longshore.execution.forkserver.slot_child import (
    FOLDER_MODE,
    SlotChild,
    SlotFiles,
    SlotSettings,
)
from longshore.execution.linux import (
    become_subreaper,
    close_other_fds,
    die_with_parent,
    set_process_name,
)
from longshore.execution.process_table import descendants, groups_below, has_more_descendants
from longshore.execution.protocol import REQUEST, ChildStatus, KillCause
from longshore.execution.slot_page import SlotPage, clock_ns

# Above the numbers that a child uses for itself.
_FIRST_FD = 64
_LIMITS_CHECK_MS = 250
# A wait does not end earlier if the machine sleeps meanwhile, so it is never longer than this.
_MAX_WAIT_MS = 5_000
# After a child that ended before it had begun anything, or if no child can be forked.
_FORK_INTERVAL_MS = 100
_FORK_TRIES = 10
# How long to wait for processes that hang in the kernel before the end is reported anyway.
KILL_TIMEOUT_S = 5.0
KILL_INTERVAL_S = 0.005


class ReapedProcesses:
    """A child and all its descendants, as their reaper sees them.

    Args:
        generation: The number of the child among those of its reaper.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.child_pid = 0  # until it is forked
        self.wait_status: int | None = None  # None: the child has not ended
        self.peak_bytes = 0
        self.cause = KillCause.NONE
        self.kill_at_ns = 0  # the moment that the worker has requested; 0: none

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child's process group."""
        try:
            os.killpg(self.child_pid, number)
        except ProcessLookupError:
            # The child has not made its group yet; it is not waited for, so its id is not reused.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child_pid, number)

    def end(self, kill_at_ns: int) -> None:
        """Send the child SIGTERM, once; it has to be killed at this moment or an earlier one."""
        if not self.child_pid:
            kill_at_ns = 1  # at once, as it has not begun anything
        elif not self.kill_at_ns:
            self.signal_group(signal.SIGTERM)
        self.kill_at_ns = min(kill_at_ns, self.kill_at_ns or kill_at_ns)

    def reap(self) -> bool:
        """Wait for all children that have ended. Returns whether any child is left."""
        while True:
            try:
                process_id, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if process_id == 0:
                return True
            self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * 1024)
            if process_id == self.child_pid:
                self.wait_status = status

    def kill_all(self, report_end: Callable[[], None]) -> None:
        """Kill until the kernel reports no child; call ``report_end`` once, then or when it takes
        very long."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        reported = False
        if self.cause is KillCause.PROCESSES:
            # The kernel kills a group at once: processes that fork faster than this one can kill
            # them one by one are in few groups. Their sessions contain only descendants.
            for group in groups_below(os.getpid()) - {os.getpgrp()}:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
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

    def status(self) -> ChildStatus:
        """Returns what the worker learns of the child's end."""
        wait_status = signal.SIGKILL if self.wait_status is None else self.wait_status
        return ChildStatus(True, wait_status, self.peak_bytes, self.cause)


class Reaper:
    """See the module.

    Args:
        files: What the worker has sent: the reaper's end of its socket, then the fields of
            ``SlotFiles`` (of a slot for attempts only the first), then the page file.
        end_pipe: The reading end of a pipe that closes when the fork server ends.
        inherited_fds: Kept open while any descendant is alive; children close them.
        open_files: The soft limit of its children.
    """

    def __init__(
        self, files: Sequence[int], end_pipe: int, inherited_fds: Sequence[int], open_files: int
    ) -> None:
        reset_process_state()
        become_subreaper()
        set_process_name(b"longshore-reap")
        moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD) for file in files]
        close_other_fds({*moved, end_pipe, *inherited_fds})  # up to the limit of the fork server
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))
        control, *self._child_files = moved
        self._own_fds = (control, end_pipe, *inherited_fds)
        self._control = socket.socket(fileno=control)
        self._end_pipe = end_pipe
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN | select.POLLRDHUP)
        self._poll.register(end_pipe, select.POLLIN)

    def run(self, settings: Mapping[str, Any]) -> NoReturn:
        """Fork children until the worker or the fork server ends; never returns.

        Args:
            settings: The fields of ``SlotSettings``.
        """
        self._settings = SlotSettings(**settings)
        self._folder = self._settings.child_folder
        self._has_folder = False
        *files, page_file = self._child_files
        self._page = SlotPage(page_file, self._settings.page)
        os.close(page_file)
        self._child: SlotChild | AttemptChild
        if len(files) == 1:
            self._child = AttemptChild(files[0], self._page, close_fds=self._own_fds)
        else:
            self._child = SlotChild(self._settings, SlotFiles(*files), self._page, self._own_fds)
        self._processes = ReapedProcesses(1)
        try:
            self._enter_folder()
        except OSError as error:
            self._report(ChildStatus(ended=True, wait_status=error.errno or 0))
            self._exit()
        self._report(ChildStatus(ended=False))
        set_thread_reset(enabled=False)
        # Everything that is there now stays: a collection would only make children copy pages.
        gc.freeze()
        while True:
            begun_count = self._page.begun_count
            failed = self._run_child() and self._page.begun_count == begun_count
            self._processes = ReapedProcesses(self._processes.generation + 1)
            if failed:
                self._wait(_FORK_INTERVAL_MS)

    def _run_child(self) -> bool:
        """Fork a child, wait until nothing of it is left, and report that to the worker.

        Returns whether the child ended by itself, and not in order.
        """
        self._processes.child_pid = self._page.child_pid = self._fork()
        self._supervise()
        failed = bool(self._processes.wait_status)
        self._processes.kill_all(self._report_end)
        return failed

    def _report_end(self) -> None:
        self._page.finish()
        self._page.child_pid = 0
        self._has_folder = not self._settings.keep_folders and self._folder_is_new()
        if self._folder and not self._has_folder:
            # The next child must not find it; the worker looks for it under this name.
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._folder, f"{self._folder}.{self._processes.generation}")
        self._report(self._processes.status())

    def _fork(self) -> int:
        """Fork a child as soon as that is possible. Returns its process id.

        If it is not possible for a while, this process exits: the worker opens another slot, and
        releases its tasks if that is not possible either.
        """
        tries = 0
        while True:
            with contextlib.suppress(OSError):
                self._enter_folder()
                return self._fork_process()
            tries += 1
            if tries == _FORK_TRIES:
                self._exit()
            self._wait(_FORK_INTERVAL_MS)

    def _enter_folder(self) -> None:
        """Make the folder in which the next child of a slot works the current one."""
        if self._folder:
            if not self._has_folder:
                os.mkdir(self._folder, FOLDER_MODE)
                self._has_folder = True
            os.chdir(self._folder)

    def _folder_is_new(self) -> bool:
        """Whether the child has left its folder as it was, so that the next one can have it."""
        try:
            mode = os.stat(self._folder).st_mode
            return stat.S_IMODE(mode) == FOLDER_MODE and not os.listdir(self._folder)
        except OSError:
            return False

    def _fork_process(self) -> int:
        """Fork a child that leads its own session and dies with this process."""
        reaper = os.getpid()

        def become_child() -> NoReturn:
            die_with_parent(reaper)
            os.setsid()
            self._child.run(self._processes.generation)

        process_id = os.fork()
        if process_id == 0:
            run_in_fork(become_child)
        return process_id

    def _supervise(self) -> None:
        """Return when the child has ended or has to be killed."""
        processes = self._processes
        pidfd = os.pidfd_open(processes.child_pid)
        self._poll.register(pidfd, select.POLLIN)
        try:
            while processes.wait_status is None and processes.cause is KillCause.NONE:
                self._wait(self._check_interval_ms())
                if 0 < processes.kill_at_ns <= clock_ns():
                    return
                processes.reap()
                processes.cause = self._kill_cause()
        finally:
            self._poll.unregister(pidfd)
            os.close(pidfd)

    def _check_interval_ms(self) -> int | None:
        """Returns how long the child need not be looked at; None: until something happens."""
        now_ns = clock_ns()
        if 0 < self._processes.kill_at_ns <= now_ns:
            return 0
        if self._page.running and self._page.deadline_ns <= now_ns:
            return 0
        moments_ns = (self._page.deadline_ns, self._processes.kill_at_ns)
        left_ns = min((moment - now_ns for moment in moments_ns if moment > now_ns), default=None)
        if left_ns is None:
            return None
        # More than is left, as a child that has just begun may not be visible at the deadline.
        is_limited = self._page.memory_bytes or self._page.max_processes
        longest_ms = _LIMITS_CHECK_MS if is_limited else _MAX_WAIT_MS
        return min(left_ns // 1_000_000 + 2, longest_ms)

    def _kill_cause(self) -> KillCause:
        """Returns why the child has to be killed now, if it has to."""
        if self._page.running and clock_ns() >= self._page.deadline_ns:
            return KillCause.DEADLINE
        if limit := self._page.memory_bytes:
            used = sum(descendants(os.getpid()).values())
            self._processes.peak_bytes = max(self._processes.peak_bytes, used)
            if used > limit:
                return KillCause.MEMORY
        limit = self._page.max_processes
        if limit and has_more_descendants(os.getpid(), limit):
            return KillCause.PROCESSES
        return KillCause.NONE

    def _wait(self, timeout_ms: int | None) -> None:
        """Wait until something happened, and follow the worker's request, if it was one.

        Exits this process if the worker or the fork server has ended.
        """
        ready = {file for file, _ in self._poll.poll(timeout_ms)}
        if self._end_pipe in ready:
            self._exit()
        if self._control.fileno() not in ready:
            return
        try:
            packet = self._control.recv(REQUEST.size)
        except ConnectionError:
            packet = b""
        if not packet:
            self._exit()
        generation, kill_at_ns = REQUEST.unpack(packet)
        if generation == self._processes.generation:
            self._processes.end(kill_at_ns)

    def _report(self, status: ChildStatus) -> None:
        """Report the start or end of a child to the worker; exit if the worker has ended."""
        try:
            self._control.send(status.encode(), socket.MSG_DONTWAIT)
        except OSError:
            self._exit()

    def _exit(self) -> NoReturn:
        """Kill the child, if there is one, and end."""
        self._processes.kill_all(lambda: None)
        self._clean_up()
        os._exit(0)

    def _clean_up(self) -> None:
        """Remove what the slot has left in the work folder, unless the worker does that."""
        self._page.finish()
        self._page.child_pid = 0
        events = dict(self._poll.poll(0)).get(self._control.fileno(), 0)
        if not self._folder or not events & select.POLLRDHUP:
            return
        # What the child has left here must not be imported instead.
        os.chdir("/")
        # Imported only now: the larger this process, the more a fork costs.
        import shutil

        name = os.path.basename(self._folder)
        # The worker's folder may be removed as a whole.
        with contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(self._settings.work_folder)):
                if entry.name.partition(".")[0] == name and not self._settings.keep_folders:
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)
