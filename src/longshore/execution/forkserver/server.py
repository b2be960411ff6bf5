"""The fork server: the process from which every child of a worker is forked.

It is small, has no threads, event loop or database, and has loaded everything that children need,
so that a child costs one fork. When its socket to the worker closes, the fork server ends, and with
it the sockets to the reapers, which then kill their descendants. Processes orphaned by the death of
a reaper become children of the fork server, which kills them.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import json
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any

from longshore.execution.forkserver.child import WARMUP_RUNS, run_in_fork, warm_up
from longshore.execution.forkserver.linux import become_subreaper
from longshore.execution.forkserver.reaper import (
    KILL_INTERVAL_S,
    KILL_TIMEOUT_S,
    Reaper,
    write_status,
)
from longshore.execution.forkserver.slot_child import warm_up_slots
from longshore.execution.forkserver.slot_reaper import SlotReaper
from longshore.execution.process_table import descendants
from longshore.execution.protocol import (
    FDS_PER_SLOT,
    FDS_PER_START,
    MESSAGE_LIMIT_BYTES,
    STATUS_READ_BYTES,
    ChildStatus,
    KillCause,
    decode_statuses,
    encode_message,
)


@dataclass(slots=True)
class _ReaperSlot:
    """A live reaper and its assignment."""

    reaper: Reaper
    assignment: int | None = None  # the current attempt; None: it is idle
    number: int | None = None  # the current or last attempt
    idle_since: int = 0  # a counter of ended attempts, not a time


class ForkServer:
    """The fork server of one worker."""

    def __init__(
        self, worker: socket.socket, worker_pipe: int, inherited_fds: tuple[int, ...]
    ) -> None:
        self._worker = worker
        self._worker_pipe = worker_pipe  # where reapers report the start and end of attempts
        self._inherited_fds = inherited_fds  # open while any process of an attempt is alive
        self._reaper_reports, self._server_pipe = os.pipe()
        os.set_blocking(self._reaper_reports, False)
        self._reapers: dict[int, _ReaperSlot] = {}  # by process id
        self._slot_numbers: dict[int, int] = {}  # of slots, by the process ids of their reapers
        # It closes when this process ends, and only then: no other process has its writing end.
        self._end_pipe, self._end_pipe_writer = os.pipe()
        self._end_numbers = itertools.count(1)
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until the worker ends."""
        become_subreaper()
        wakeup_fd = self._open_sigchld_pipe()
        for file, callback in (
            (self._worker, self._receive),
            (self._reaper_reports, self._read_reapers),
            (wakeup_fd, lambda: self._wait_for_reapers(wakeup_fd)),
        ):
            self._selector.register(file, selectors.EVENT_READ, callback)
        warm_up(WARMUP_RUNS)
        warm_up_slots(WARMUP_RUNS)
        # Loaded modules are never freed: a garbage collection would only make children copy pages.
        gc.collect()
        gc.freeze()
        self._send(0)
        running = True
        while running:
            for key, _ in self._selector.select():
                running = key.data() is not False and running

    def _open_sigchld_pipe(self) -> int:
        reading, writing = os.pipe()
        for end in (reading, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return reading

    def _receive(self) -> bool:
        """Handle the worker's messages. Returns False when the worker has ended."""
        try:
            data, files, _, _ = socket.recv_fds(self._worker, MESSAGE_LIMIT_BYTES, FDS_PER_SLOT)
        except ConnectionError:
            return False
        if not data:
            return False
        message = json.loads(data)
        if "kill" not in message:
            self._start(message, files)
            return True
        for slot in self._reapers.values():
            if slot.number == message["number"] and slot.assignment is not None:
                slot.reaper.signal(slot.assignment, kill=message["kill"])
        return True

    def _send(self, number: int, **content: Any) -> None:
        # If the worker has ended, the next read of the socket reports it.
        with contextlib.suppress(ConnectionError):
            self._worker.send(encode_message(number, **content))

    def _start(self, request: dict[str, Any], files: list[int]) -> None:
        number = request["number"]
        try:
            expected = FDS_PER_SLOT if "slot" in request else FDS_PER_START
            if len(files) < expected:  # the kernel drops those that this process cannot hold
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if "slot" in request:
                self._start_slot(number, request["slot"], files)
            else:
                slot = self._idle_reaper()
                slot.assignment = slot.number = number
                slot.reaper.start(number, files, memory=request["memory"])
                self._ensure_idle_reaper()
        except OSError as error:
            self._send(number, error=str(error))
        finally:
            for file in files:
                os.close(file)

    def _start_slot(self, number: int, settings: dict[str, Any], files: list[int]) -> None:
        process_id = os.fork()
        if process_id == 0:
            run_in_fork(
                lambda: SlotReaper(settings, files).run(self._end_pipe, self._inherited_fds)
            )
        self._slot_numbers[process_id] = number
        self._report(ChildStatus(number=number, ended=False, child_pid=process_id))

    def _idle_reaper(self) -> _ReaperSlot:
        # The worker may have read the end of an attempt that is still unread here.
        self._read_reapers()
        idle = [slot for slot in self._reapers.values() if slot.assignment is None]
        # The reaper that has been idle longest has had time to prefork its next child.
        return min(idle, key=lambda slot: slot.idle_since) if idle else self._fork_reaper()

    def _ensure_idle_reaper(self) -> None:
        """Keep one reaper idle for the next attempt, which would otherwise wait for a fork."""
        if all(slot.assignment is not None for slot in self._reapers.values()):
            with contextlib.suppress(OSError):
                self._fork_reaper()

    def _fork_reaper(self) -> _ReaperSlot:
        reaper = Reaper()
        with reaper.reaper_end:
            process_id = os.fork()
            if process_id == 0:
                run_in_fork(
                    lambda: reaper.run(
                        self._server_pipe, self._worker_pipe, inherited_fds=self._inherited_fds
                    )
                )
        slot = self._reapers[process_id] = _ReaperSlot(reaper)
        return slot

    def _report(self, status: ChildStatus) -> None:
        write_status(self._worker_pipe, status)

    def _read_reapers(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for status in decode_statuses(os.read(self._reaper_reports, STATUS_READ_BYTES)):
                for slot in self._reapers.values():
                    if slot.assignment == status.number:
                        slot.assignment, slot.idle_since = None, next(self._end_numbers)

    def _wait_for_reapers(self, wakeup_fd: int) -> None:
        """Wait for reapers that have ended; their orphans are children of this process."""
        with contextlib.suppress(BlockingIOError):
            os.read(wakeup_fd, 4096)
        while True:
            try:
                process_id, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process_id == 0:
                return
            if process_id in self._reapers:
                self._read_reapers()
                self._handle_lost_reaper(self._reapers.pop(process_id))
            elif (number := self._slot_numbers.pop(process_id, None)) is not None:
                self._kill_orphans()
                self._report(ChildStatus(number=number, ended=True, cause=KillCause.LOST))

    def _handle_lost_reaper(self, slot: _ReaperSlot) -> None:
        """Kill the orphans of a killed reaper and report its attempt as lost."""
        self._kill_orphans()
        slot.reaper.server_end.close()
        if slot.number is not None:
            # Also if the attempt had ended: its reaper may not have reported that. The worker
            # ignores a second report.
            lost = ChildStatus(
                number=slot.number, ended=True, wait_status=signal.SIGKILL, cause=KillCause.LOST
            )
            self._report(lost)

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
            process_id
            for reaper in (*self._reapers, *self._slot_numbers)
            for process_id in (reaper, *descendants(reaper))
        }
        return descendants(os.getpid()).keys() - supervised
