"""The worker's client of its fork server: starts it, and requests reapers.

When a fork server dies, its reapers kill their children; each attempt is then reported as lost, and
the next start launches a new fork server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.adapters.shared.failpoints import reach
from longshore.errors import BackendUnavailable, UsageError
from longshore.execution.host.pipes import open_reading, open_sockets
from longshore.execution.protocol import (
    ERROR_LIMIT_BYTES,
    EXIT_CANNOT_LOAD,
    REQUEST,
    STATUS_BYTES,
    ChildStatus,
    KillCause,
    decode_status,
)
from longshore.execution.slot_page import SlotPage, clock_ns
from longshore.ports.runner import RunnerBroken

# Processes that hang in the kernel are not waited for longer.
_END_TIMEOUT_S = 5.0
# A reaper sleeps until the deadline that it has read last. If that is so near, wake it.
_WAKE_MARGIN_NS = 1_000_000_000
_SERVER_ENDED = "the fork server has ended"
_MAX_FAILED_STARTS = 3
NOT_STARTED = "the child ended before it started"

# The soft limit of tasks, which is not raised: ``select()`` fails with a file above 1,024.
_OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_MAX_OPEN_FILES = 65_536  # as closing all of them must stay cheap

OnStatus = Callable[[ChildStatus], None]


def raise_open_files_limit() -> None:
    """Let this process open as many files as its hard limit allows, but not its tasks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < (raised := min(hard, _MAX_OPEN_FILES)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


class ForkedReaper:
    """The worker's view of a slot's reaper and of the child that it has now.

    Attributes:
        tasks: What is sent here is received by the child, or taken back from ``tasks_end``.
        generation: The number of the child among those of its reaper.
        error: Why it was not forked or has ended, if so.
        ended: Done when nothing is left of the reaper and its children.

    Args:
        page: The slot's page, which is closed at the end.
        on_status: Called with what the reaper reports, and a last time, with ``LOST``, when nothing
            is left of the reaper and its children.
    """

    def __init__(self, page: SlotPage, on_status: OnStatus | None) -> None:
        self.page = page
        self.on_status = on_status
        self.generation = 1
        self.error = ""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._files = contextlib.ExitStack()
        self._files.callback(page.close)
        self._open_files: set[int] = set()

    def open(self, theirs: contextlib.ExitStack) -> tuple[int, int, int]:
        """Open its files. Returns the other ends, which ``theirs`` closes or this reaper.

        One belongs to the fork server, and closes when nothing is left of the reaper's children.
        """
        self.tasks, self.tasks_end = open_sockets(self._files, self._files)
        self._control, control_end = open_sockets(self._files, theirs)
        self._end, end = open_reading(self._files, theirs)
        self._open_files = {self._control.fileno(), self._end}
        self._loop.add_reader(self._control, self._read_status)
        self._loop.add_reader(self._end, self._read_end)
        return end, control_end.fileno(), self.tasks_end.fileno()

    @property
    def is_alive(self) -> bool:
        """Whether neither it nor its fork server has ended."""
        return len(self._open_files) == 2

    def end_child(self, generation: int, grace: timedelta) -> None:
        """Send a child SIGTERM, and SIGKILL after ``grace`` to all that it has started.

        Nothing happens if that child has ended. The shortest grace period counts.
        """
        self._request(generation, clock_ns() + int(grace.total_seconds() * 1e9))

    def wake(self) -> bool:
        """Make it read the page. Returns False if it ends, and with it its child."""
        return self._request(0, 0)

    def _request(self, generation: int, kill_at_ns: int) -> bool:
        try:
            self._control.send(REQUEST.pack(generation, kill_at_ns))
        except OSError:
            return False
        return True

    def trust_until(self, deadline_ns: int) -> None:
        """Set the moment until which tasks may begin and run."""
        previous, self.page.deadline_ns = self.page.deadline_ns, deadline_ns
        if deadline_ns < previous or previous < clock_ns() + _WAKE_MARGIN_NS:
            self.wake()

    def abandon(self) -> None:
        """Make it kill its child and end, and report nothing more; also if it is not forked yet."""
        self.on_status = None
        self.end()

    def end(self) -> None:
        """Make it kill its child and end."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def _read_status(self) -> None:
        try:
            packet = self._control.recv(STATUS_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet:
            self._report(decode_status(packet))
        else:
            self._handle_closed(self._control.fileno())

    def _read_end(self) -> None:
        if error := os.read(self._end, ERROR_LIMIT_BYTES):
            self.error = f"no child could be started: {error.decode()}"
        else:
            self.error = self.error or NOT_STARTED
            self._handle_closed(self._end)

    def _handle_closed(self, file: int) -> None:
        # A reaper that was killed has closed its socket before its fork server has killed what is
        # left of its child; one whose fork server has ended closes it when nothing is left.
        self._loop.remove_reader(file)
        self._open_files.discard(file)
        if not self._open_files:
            lost = ChildStatus(ended=True, wait_status=signal.SIGKILL, cause=KillCause.LOST)
            try:
                self._report(lost)
            finally:
                self.close()

    def _report(self, status: ChildStatus) -> None:
        self.generation += status.ended
        if self.on_status is not None:
            self.on_status(status)

    def close(self) -> None:
        """Close its files; nothing is left of it."""
        for file in self._open_files:
            self._loop.remove_reader(file)
        self._files.close()
        self.ended.set_result(None)


@dataclass(slots=True, eq=False, repr=False)
class ForkServerClient:
    """One fork server process; see ``execution.forkserver.server``."""

    environment: Mapping[str, str]
    _: KW_ONLY
    modules: Sequence[str] = ()
    inherited_fds: Callable[[], Sequence[int]] = tuple
    _reapers: set[ForkedReaper] = field(default_factory=set)  # that have not ended
    _socket: socket.socket | None = None
    _process: asyncio.subprocess.Process | None = None
    _opening: asyncio.Future[None] | None = None
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _failed_starts: int = 0  # in a row: it ended before it had loaded its modules

    @property
    def process_id(self) -> int | None:
        """The process id of the fork server while it is alive, else None."""
        return self._process.pid if self._process is not None else None

    async def open(self) -> None:
        """Start the process if it is not running, and wait until it has loaded its modules.

        Raises:
            RunnerBroken: one of the modules cannot be loaded, or the process ended while it loaded
                them, for the third time in a row.
            UsageError: this system is not Linux.
            BackendUnavailable: no process can be started, or it ended at once.
        """
        if sys.platform != "linux":
            raise UsageError(
                "tasks run on Linux only: run the worker there, for example in a container, or"
                " submit to a server with --server"
            )
        if self._opening is None and self._socket is None:
            self._opening = asyncio.ensure_future(self._open())
        if self._opening is not None:
            # A cancelled caller must not cancel the opening for the others.
            opening = self._opening
            try:
                await asyncio.shield(opening)
            finally:
                if opening.done():
                    self._opening = None

    async def _open(self) -> None:
        inherited_fds = tuple(self.inherited_fds())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reach("forkserver.starting")
        with theirs:
            try:
                process = self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "longshore.execution.forkserver"),
                    *(
                        str(theirs.fileno()),
                        str(_OPEN_FILES),
                        *self.modules,
                        "--",
                        *map(str, inherited_fds),
                    ),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *inherited_fds),
                    # Only the worker handles a Ctrl-C at the terminal.
                    start_new_session=True,
                    env=self.environment,
                    cwd=Path.cwd(),
                )
            except BaseException as error:
                ours.close()
                if isinstance(error, OSError):
                    message = f"the fork server could not be started: {error}"
                    raise BackendUnavailable(message) from error
                raise
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        is_ready: asyncio.Future[bool] = loop.create_future()
        self._socket = ours
        loop.add_reader(ours, self._receive, ours, is_ready)
        reach("forkserver.started")
        if await is_ready:
            reach("forkserver.ready")
            self._failed_starts = 0
            return
        exit_code, modules = await process.wait(), ", ".join(self.modules)
        if exit_code == EXIT_CANNOT_LOAD:
            raise RunnerBroken(f"{modules} cannot be loaded; see the traceback above")
        self._failed_starts += 1
        ended = f"the fork server ended while it loaded {modules or 'Longshore'}: "
        ended += f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"
        if self._failed_starts < _MAX_FAILED_STARTS:
            raise BackendUnavailable(ended)
        raise RunnerBroken(f"{ended}, {self._failed_starts} times in a row")

    def _receive(self, ours: socket.socket, ready: asyncio.Future[bool]) -> None:
        """It has loaded its modules, or it has ended: its reapers kill their children and end."""
        is_ready = False
        with contextlib.suppress(OSError):
            is_ready = bool(ours.recv(1))
        if not ready.done():
            ready.set_result(is_ready)
        if not is_ready:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def fork_reaper(
        self,
        page: SlotPage,
        on_status: OnStatus | None,
        *,
        slot: Mapping[str, Any],
        fds: Sequence[int],
    ) -> ForkedReaper:
        """Request a reaper for a slot with these settings and files; the last one has the page.

        Raises:
            OSError: there are not enough files.
            BackendUnavailable: no reaper can be forked now.
        """
        reaper = ForkedReaper(page, on_status)
        self._reapers.add(reaper)
        reaper.ended.add_done_callback(lambda _: self._reapers.discard(reaper))
        try:
            await self.open()
            with contextlib.ExitStack() as theirs:
                await self._send(json.dumps(slot).encode(), (*reaper.open(theirs), *fds))
        except BaseException:
            reaper.close()
            raise
        return reaper

    async def _send(self, message: bytes, fds: Sequence[int]) -> None:
        async with self._sending:
            while self._socket is not None:
                try:
                    socket.send_fds(self._socket, [message], list(fds))
                except BlockingIOError:
                    await _wait_writable(self._socket)
                except OSError:
                    break
                else:
                    return
        raise BackendUnavailable(_SERVER_ENDED)

    async def close(self) -> None:
        """End the fork server and its remaining children; safe to call twice."""
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
            self._opening = None
        reach("forkserver.ending")
        self._disconnect()
        if self._process is not None:
            await self._process.wait()
            self._process = None
        if self._reapers:
            ending = [reaper.ended for reaper in self._reapers]
            await asyncio.wait(ending, timeout=_END_TIMEOUT_S)
        reach("forkserver.ended")


async def _wait_writable(file: socket.socket) -> None:
    """Return when the file is writable or closed by its reader."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(file)
