"""The fork server: the process from which every child of a worker is forked.

It is small, has no threads, event loop or database, and has loaded everything that children need.
It forks the reapers, which fork the children. When its socket to the worker closes, the fork server
ends, and with it a pipe to the reapers, which then kill their descendants. Processes orphaned by
the death of a reaper become children of the fork server, which kills them.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import select
import signal
import socket
import time

from longshore.execution.forkserver.child import run_in_fork
from longshore.execution.forkserver.reaper import KILL_INTERVAL_S, KILL_TIMEOUT_S, Reaper
from longshore.execution.forkserver.slot_child import WARMUP_RUNS, warm_up_slots
from longshore.execution.linux import become_subreaper, die_with_parent
from longshore.execution.process_table import descendants
from longshore.execution.protocol import FDS_PER_SLOT, MESSAGE_LIMIT_BYTES


class ForkServer:
    """The fork server of one worker."""

    def __init__(
        self, worker: socket.socket, inherited_fds: tuple[int, ...], open_files: int
    ) -> None:
        self._worker = worker
        self._inherited_fds = inherited_fds  # open while any process of an attempt is alive
        self._open_files = open_files
        self._reapers: dict[
            int, int
        ] = {}  # process id to the pipe that reports its end to the worker
        # It closes when this process ends, and only then: no other process has its writing end.
        self._end_pipe, self._end_pipe_writer = os.pipe()

    def run(self) -> None:
        """Serve until the worker ends."""
        become_subreaper()
        wakeup_fd = self._open_sigchld_pipe()
        poll = select.poll()
        poll.register(self._worker, select.POLLIN)
        poll.register(wakeup_fd, select.POLLIN)
        warm_up_slots(WARMUP_RUNS)
        for _ in range(WARMUP_RUNS):
            die_with_parent(os.getppid(), 0)
            # This process leads a session already.
            with contextlib.suppress(PermissionError):
                os.setsid()
        # Loaded modules are never freed: a garbage collection would only make children copy pages.
        gc.collect()
        gc.freeze()
        with contextlib.suppress(ConnectionError):
            self._worker.send(b"\0")
        serving = True
        while serving:
            ready = {file for file, _ in poll.poll()}
            if wakeup_fd in ready:
                self._wait_for_reapers(wakeup_fd)
            if self._worker.fileno() in ready:
                serving = self._receive()

    def _open_sigchld_pipe(self) -> int:
        reading, writing = os.pipe()
        for end in (reading, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return reading

    def _receive(self) -> bool:
        """Fork the reaper that the worker requests. Returns False when the worker has ended."""
        try:
            data, files, flags, _ = socket.recv_fds(self._worker, MESSAGE_LIMIT_BYTES, FDS_PER_SLOT)
        except ConnectionError:
            return False
        if not data:
            return False
        try:
            # The kernel drops those that this process cannot hold.
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            process_id = os.fork()
            if process_id == 0:
                fds = (self._end_pipe, self._inherited_fds, self._open_files)
                run_in_fork(lambda: Reaper(files[1:], *fds).run(json.loads(data)))
            self._reapers[process_id] = files.pop(0)
        except OSError as error:
            with contextlib.suppress(OSError, IndexError):
                os.write(files[0], str(error).encode())
        finally:
            for file in files:
                os.close(file)
        return True

    def _wait_for_reapers(self, wakeup_fd: int) -> None:
        """Wait for reapers that have ended, and report it when nothing is left of their children.

        The orphans of one that was killed are children of this process.
        """
        with contextlib.suppress(BlockingIOError):
            os.read(wakeup_fd, 4096)
        while True:
            try:
                process_id, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process_id == 0:
                return
            if (end := self._reapers.pop(process_id, None)) is not None:
                if status != 0:
                    self._kill_orphans()
                os.close(end)

    def _kill_orphans(self) -> None:
        """Kill all descendants that are below no live reaper, until none is left."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while time.monotonic() < deadline and (orphans := self._orphans()):
            for process_id in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
            time.sleep(KILL_INTERVAL_S)  # noqa: TID251 - no event loop in this process

    def _orphans(self) -> set[int]:
        supervised = {
            process_id for reaper in self._reapers for process_id in (reaper, *descendants(reaper))
        }
        return descendants(os.getpid()).keys() - supervised
