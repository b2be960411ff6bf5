"""The worker's client of its fork server: starts it, and requests reapers.

When a fork server dies, its reapers kill their children; each attempt is then reported as lost, and
the next start launches a new fork server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from longshore.adapters.shared.failpoints import reach
from longshore.errors import BackendUnavailable, UsageError
from longshore.execution.host.pipes import wait_writable
from longshore.execution.protocol import (
    EXIT_CANNOT_LOAD,
    MESSAGE_LIMIT_BYTES,
    READY_NUMBER,
    STATUS_BYTES,
    ChildStatus,
    KillCause,
    ReaperRequest,
    decode_status,
    encode_message,
    encode_request,
)
from longshore.execution.slot_page import SlotPage, clock_ns

# Processes that hang in the kernel are not waited for longer.
_END_TIMEOUT_S = 5.0
# A reaper sleeps until the deadline that it has read last. If that is so near, wake it.
_WAKE_MARGIN_NS = 1_000_000_000
_SERVER_ENDED = "the fork server has ended"
NOT_STARTED = "the child ended before it started"


class ForkedReaper:
    """The worker's view of a reaper.

    Attributes:
        ended: Done when nothing is left of the reaper and its children.

    Args:
        on_status: Called with what the reaper reports, and a last time, with ``LOST``, when nothing
            is left of the reaper and its children.
    """

    def __init__(
        self, control: socket.socket, on_status: Callable[[ChildStatus], None], page: SlotPage
    ) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._on_status: Callable[[ChildStatus], None] | None = on_status
        self._page = page
        self.error = ""  # why it was not forked or has ended, if so
        self._control = control
        control.setblocking(False)
        loop.add_reader(control, self._read)

    def request(self, request: ReaperRequest, generation: int) -> bool:
        """Send a request about a child. Returns False if the reaper ends, and with it its child."""
        try:
            self._control.send(encode_request(request, generation))
        except OSError:
            return False
        return True

    def trust_until(self, deadline_ns: int) -> None:
        """Set the moment until which tasks may begin and run."""
        previous, self._page.deadline_ns = self._page.deadline_ns, deadline_ns
        if deadline_ns < previous or previous < clock_ns() + _WAKE_MARGIN_NS:
            self.request(ReaperRequest.WAKE, 0)

    def abandon(self) -> None:
        """Make it kill its child and end, and report nothing more; also if it is not forked yet."""
        self._on_status = None
        self.end()

    def end(self) -> None:
        """Make it kill its child and end."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        try:
            packet = self._control.recv(STATUS_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet:
            self._report(decode_status(packet))
        else:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._end_if_over()

    def server_reported(self, error: str) -> None:
        """Note that the reaper was not forked, or has ended, or has no fork server any more."""
        self.error = error
        self._end_if_over()

    def _end_if_over(self) -> None:
        # A reaper that was killed has closed its socket before its fork server has killed what is
        # left of its child; one whose fork server has ended closes it when nothing is left.
        if self.error and self._control.fileno() < 0:
            self.ended.set_result(None)
            lost = ChildStatus(ended=True, wait_status=signal.SIGKILL, cause=KillCause.LOST)
            self._report(lost)

    def _report(self, status: ChildStatus) -> None:
        if self._on_status is not None:
            self._on_status(status)


@dataclass(slots=True, eq=False, repr=False)
class ForkServerClient:
    """One fork server process; see ``execution.forkserver.server``."""

    environment: Mapping[str, str]
    _: KW_ONLY
    modules: Sequence[str] = ()
    inherited_fds: Callable[[], Sequence[int]] = tuple
    _numbers: Iterator[int] = field(default_factory=partial(itertools.count, READY_NUMBER + 1))
    _reapers: dict[int, ForkedReaper] = field(default_factory=dict)  # that have not ended
    _socket: socket.socket | None = None
    _ready: asyncio.Future[None] | None = None  # since ``_socket`` was opened
    _process: asyncio.subprocess.Process | None = None
    _opening: asyncio.Future[None] | None = None

    @property
    def process_id(self) -> int | None:
        """The process id of the fork server while it is alive, else None."""
        return self._process.pid if self._process is not None else None

    async def open(self) -> None:
        """Start the process if it is not running, and wait until it has loaded its modules.

        Raises:
            UsageError: one of the modules cannot be loaded, or this system is not Linux.
            BackendUnavailable: no process can be started, or it ended at once.
        """
        if sys.platform != "linux":
            message = (
                "tasks run on Linux only: run the worker there, for example in a container, or"
                " submit to a server with --server"
            )
            raise UsageError(message)
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
        process, ready = await self._spawn()
        reach("forkserver.started")
        try:
            await ready
            reach("forkserver.ready")
        except BackendUnavailable:
            if await process.wait() == EXIT_CANNOT_LOAD:
                message = f"{', '.join(self.modules)} cannot be loaded; see the traceback above"
                raise UsageError(message) from None
            raise

    async def _spawn(self) -> tuple[asyncio.subprocess.Process, asyncio.Future[None]]:
        """Start the process. Returns it, and what is done when it has loaded its modules."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        inherited_fds = tuple(self.inherited_fds())
        reach("forkserver.starting")
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "longshore.execution.forkserver"),
                    *(str(theirs.fileno()), *self.modules, "--", *map(str, inherited_fds)),
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
        self._socket, self._ready = ours, loop.create_future()
        loop.add_reader(ours, self._receive, ours)
        return self._process, self._ready

    async def fork_reaper(
        self,
        on_status: Callable[[ChildStatus], None],
        page: SlotPage,
        *,
        slot: Mapping[str, Any],
        fds: Sequence[int],
    ) -> ForkedReaper:
        """Request a reaper for a slot with these settings and files.

        Raises:
            OSError: there are not enough files.
            BackendUnavailable: no reaper can be forked now.
        """
        await self.open()
        number = next(self._numbers)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reaper = self._reapers[number] = ForkedReaper(ours, on_status, page)
        message = encode_message(number, files=1 + len(fds), slot=slot)
        with theirs:
            try:
                await self._send(message, (theirs.fileno(), *fds))
            except BaseException:
                del self._reapers[number]
                raise
        return reaper

    async def _send(self, message: bytes, fds: Sequence[int]) -> None:
        while self._socket is not None:
            try:
                socket.send_fds(self._socket, [message], list(fds))
            except BlockingIOError:
                await wait_writable(self._socket)
            except OSError:
                break
            else:
                return
        raise BackendUnavailable(_SERVER_ENDED)

    def _receive(self, ours: socket.socket) -> None:
        try:
            data = ours.recv(MESSAGE_LIMIT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect(ours)
            return
        received = json.loads(data)
        if received["number"] == READY_NUMBER and self._ready is not None:
            self._ready.set_result(None)
        elif (reaper := self._reapers.pop(received["number"], None)) is None:
            return
        elif "error" in received:
            reaper.server_reported(f"no child could be started: {received['error']}")
        else:
            reaper.server_reported(NOT_STARTED)

    def _disconnect(self, ours: socket.socket) -> None:
        """Handle the end of the fork server: its reapers kill their children and end."""
        self._socket = None
        asyncio.get_running_loop().remove_reader(ours)
        ours.close()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(BackendUnavailable(_SERVER_ENDED))
        reapers = list(self._reapers.values())
        self._reapers.clear()
        for reaper in reapers:
            reaper.server_reported(_SERVER_ENDED)

    async def close(self) -> None:
        """End the fork server and its remaining children; safe to call twice."""
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
            self._opening = None
        reach("forkserver.ending")
        ending = [reaper.ended for reaper in self._reapers.values()]
        if self._socket is not None:
            self._disconnect(self._socket)
        if self._process is not None:
            await self._process.wait()
            self._process = None
        if ending:
            await asyncio.wait(ending, timeout=_END_TIMEOUT_S)
        reach("forkserver.ended")
