"""The worker's client of its fork server: starts it, requests children, receives their endings.

When a fork server dies, the reapers kill its attempts; each attempt is then reported as lost, and
the next start launches a new fork server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
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
    STATUS_READ_BYTES,
    ChildStatus,
    KillCause,
    decode_statuses,
    encode_message,
)

_READY_NUMBER = 0


@dataclass(slots=True)
class ForkedChild:
    """The worker's view of a child of the fork server."""

    number: int
    started: asyncio.Future[int] = field(default_factory=asyncio.Future)  # with its process id
    exited: asyncio.Future[ChildStatus] = field(default_factory=asyncio.Future)


@dataclass(slots=True, eq=False, repr=False)
class ForkServerClient:
    """One fork server process; see ``execution.forkserver.server``."""

    environment: Mapping[str, str]
    _: KW_ONLY
    modules: Sequence[str] = ()
    inherited_fds: Callable[[], Sequence[int]] = tuple
    _numbers: Iterator[int] = field(default_factory=partial(itertools.count, 1))
    _children: dict[int, ForkedChild] = field(default_factory=dict)
    _socket: socket.socket | None = None
    _status_pipe: int = -1  # open while ``_socket`` is not None
    _process: asyncio.subprocess.Process | None = None
    _opening: asyncio.Future[None] | None = None

    @property
    def process_id(self) -> int | None:
        """The process id of the fork server while it is alive, else None."""
        return self._process.pid if self._process is not None else None

    async def open(self) -> None:
        """Start the process if it is not running, and wait until it has loaded its modules.

        Raises:
            UsageError: one of the modules cannot be loaded.
            BackendUnavailable: no process can be started, or it ended at once.
        """
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
        process = await self._spawn()
        reach("forkserver.started")
        ready = self._add_child(_READY_NUMBER)
        try:
            await ready.started
            reach("forkserver.ready")
        except BackendUnavailable:
            if await process.wait() == EXIT_CANNOT_LOAD:
                message = f"{', '.join(self.modules)} cannot be loaded; see the traceback above"
                raise UsageError(message) from None
            raise

    async def _spawn(self) -> asyncio.subprocess.Process:
        """Start the process, which gets its ends of the socket and of the status pipe."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            our_socket, their_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(our_socket.close)
            theirs.callback(their_socket.close)
            status_pipe, their_status_pipe = os.pipe()
            ours.callback(os.close, status_pipe)
            theirs.callback(os.close, their_status_pipe)
            passed = (their_socket.fileno(), their_status_pipe)
            inherited_fds = tuple(self.inherited_fds())
            reach("forkserver.starting")
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "longshore.execution.forkserver"),
                    *(*map(str, passed), *self.modules, "--", *map(str, inherited_fds)),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    pass_fds=(*passed, *inherited_fds),
                    # Only the worker handles a Ctrl-C at the terminal.
                    start_new_session=True,
                    env=self.environment,
                    cwd=Path.cwd(),
                )
            except OSError as error:
                message = f"the fork server could not be started: {error}"
                raise BackendUnavailable(message) from error
            our_socket.setblocking(False)
            os.set_blocking(status_pipe, False)
            self._socket, self._status_pipe = our_socket, status_pipe
            ours.pop_all()
        loop = asyncio.get_running_loop()
        loop.add_reader(our_socket, self._receive, our_socket)
        loop.add_reader(status_pipe, self._read_statuses)
        return self._process

    async def start(self, fds: Sequence[int], *, memory_bytes: int | None = None) -> ForkedChild:
        """Request a child, which then reads its spec from its replies pipe.

        Args:
            fds: The child's ends of its pipes; the caller may close its copies after this.

        Raises:
            BackendUnavailable: no child can be started now. ``ForkedChild.started`` may raise it
                too.
        """
        return await self._start(fds, {"memory": memory_bytes})

    async def start_slot(self, fds: Sequence[int], settings: Mapping[str, Any]) -> ForkedChild:
        """Request a reaper for a slot; see ``execution.forkserver.slot_reaper``.

        Returns:
            The reaper: it has ended when nothing of it and of the slot's children is left.

        Raises:
            BackendUnavailable: no reaper can be started now. ``ForkedChild.started`` may raise it
                too.
        """
        return await self._start(fds, {"slot": settings})

    async def _start(self, fds: Sequence[int], request: Mapping[str, Any]) -> ForkedChild:
        await self.open()
        child = self._add_child(next(self._numbers))
        message = encode_message(child.number, **request)
        try:
            await self._send(message, fds)
        except BaseException:
            self.abandon(child)
            raise
        return child

    def abandon(self, child: ForkedChild) -> None:
        """Kill the child and forget it; also if it has not started yet."""
        self.signal(child, kill=True)
        self._children.pop(child.number, None)

    def _add_child(self, number: int) -> ForkedChild:
        child = self._children[number] = ForkedChild(number)
        return child

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
        error = "the fork server has ended"
        raise BackendUnavailable(error)

    def signal(self, child: ForkedChild, *, kill: bool) -> None:
        """Send SIGTERM to the child's group or, with ``kill``, kill everything that it started."""
        if self._socket is not None and child.number in self._children:
            # Short, and the fork server always reads: if the send fails, the fork server is ending.
            with contextlib.suppress(OSError):
                self._socket.send(encode_message(child.number, kill=kill))

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
        if (child := self._children.pop(received["number"], None)) is not None:
            if "error" in received:
                message = f"no child could be started: {received['error']}"
                _fail(child.started, BackendUnavailable(message))
            else:
                child.started.set_result(0)

    def _read_statuses(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for status in decode_statuses(os.read(self._status_pipe, STATUS_READ_BYTES)):
                if (child := self._children.get(status.number)) is not None:
                    self._handle_status(child, status)

    def _handle_status(self, child: ForkedChild, status: ChildStatus) -> None:
        if not status.ended:
            if not child.started.done():
                child.started.set_result(status.child_pid)
            return
        del self._children[child.number]
        _fail(child.started, BackendUnavailable("the child ended before it started"))
        child.exited.set_result(status)

    def _disconnect(self, ours: socket.socket) -> None:
        """Handle the end of the fork server: its reapers kill its attempts."""
        self._read_statuses()  # those written before the end
        self._socket = None
        for file in (ours.fileno(), self._status_pipe):
            asyncio.get_running_loop().remove_reader(file)
        ours.close()
        os.close(self._status_pipe)
        for child in self._children.values():
            _fail(child.started, BackendUnavailable("the fork server has ended"))
            lost = ChildStatus(child.number, ended=True, cause=KillCause.LOST)
            child.exited.set_result(lost)
        self._children.clear()

    async def close(self) -> None:
        """End the fork server and its remaining children; safe to call twice."""
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
            self._opening = None
        reach("forkserver.ending")
        if self._socket is not None:
            self._disconnect(self._socket)
        if self._process is not None:
            await self._process.wait()
            self._process = None
        reach("forkserver.ended")


def _fail(future: asyncio.Future[int], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
