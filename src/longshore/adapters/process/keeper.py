"""The worker's end of its keeper: starts it, asks it for children, hears how they end.

A keeper that dies takes its attempts with it (their guards see to that); each of them is then said
to be lost, and the next start brings a new keeper.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longshore.adapters.process.pipes import writable
from longshore.core.child_limits import Isolation
from longshore.core.keeper_words import (
    CANNOT_LOAD,
    TOLD_AT_ONCE_BYTES,
    Cause,
    Lines,
    Told,
    Word,
    line_of,
    told_in,
)
from longshore.errors import BackendUnavailable, UsageError
from longshore.failpoints import reach

_RECEIVED_AT_ONCE = 64 * 1024
_READY = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended."""

    code: int | None  # as ``waitstatus_to_exitcode`` gives it; None: nobody knows
    peak_rss_bytes: int | None = None
    cause: Cause = Cause.NONE


@dataclass(slots=True)
class Child:
    """A child of the keeper, as far as it is known here."""

    number: int
    started: asyncio.Future[int]
    ended: asyncio.Future[Ended] = field(init=False)

    def __post_init__(self) -> None:
        self.ended = self.started.get_loop().create_future()


class Keeper:
    """One process beside this one; see ``runners.keeper``."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        modules: Sequence[str] = (),
        held: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self._environment = dict(environment)
        self._modules = tuple(modules)
        self._held = held
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._lines = Lines()
        self._socket: socket.socket | None = None
        self._reports = -1  # a pipe, while there is a socket
        self._process: asyncio.subprocess.Process | None = None
        self._opening: asyncio.Future[None] | None = None

    @property
    def process_id(self) -> int | None:
        """The keeper's own, while it lives."""
        return self._process.pid if self._process is not None else None

    async def open(self) -> None:
        """Start the process if it is not there, and wait until it has loaded what it needs.

        Raises:
            UsageError: one of the modules cannot be loaded.
            BackendUnavailable: there is no process to be had, or it ended at once.
        """
        if self._opening is None and self._socket is None:
            self._opening = asyncio.ensure_future(self._open())
        if self._opening is not None:
            # Somebody who gives up waiting must not leave half a keeper to the others.
            opening = self._opening
            try:
                await asyncio.shield(opening)
            finally:
                if opening.done():
                    self._opening = None

    async def _open(self) -> None:
        ours, theirs = socket.socketpair()
        reports, telling = os.pipe()
        held = tuple(self._held())
        try:
            with theirs, contextlib.ExitStack() as given:
                given.callback(os.close, telling)
                reach("keeper.starting")
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "longshore.runners.keeper",
                    str(theirs.fileno()),
                    str(telling),
                    *self._modules,
                    "--",
                    *(str(number) for number in held),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), telling, *held),
                    # A Ctrl-C at the terminal is the worker's to deal with.
                    start_new_session=True,
                    env=self._environment,
                    cwd=Path.cwd(),
                )
        except OSError as error:
            ours.close()
            os.close(reports)
            message = f"the keeper could not be started: {error}"
            raise BackendUnavailable(message) from error
        reach("keeper.started")
        ours.setblocking(False)
        os.set_blocking(reports, False)
        self._lines = Lines()
        self._socket = ours
        self._reports = reports
        self._ready = self._expect(_READY)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._hear, ours)
        loop.add_reader(reports, self._take_reports)
        try:
            await self._ready.started
            reach("keeper.ready")
        except BackendUnavailable:
            code = await self._process.wait() if self._process else None
            if code == CANNOT_LOAD:
                message = f"{', '.join(self._modules)} cannot be loaded; the reason stands above"
                raise UsageError(message) from None
            raise

    async def start(
        self,
        files: Sequence[int],
        *,
        isolation: Isolation,
        memory_bytes: int | None = None,
    ) -> Child:
        """Ask for a child; it waits for its order at the other end of its replies.

        Args:
            files: The child's ends of its pipes; the caller's copies may be closed after this.

        Raises:
            BackendUnavailable: no child can be started now. ``Child.started`` may say so too.
        """
        await self.open()
        child = self._expect(next(self._numbers))
        line = line_of(Word.START, child.number, isolation=isolation, memory=memory_bytes)
        try:
            await self._send(line, files)
        except BaseException:
            self.give_up(child)
            raise
        return child

    def give_up(self, child: Child) -> None:
        """Whoever wanted the child does not want it any more; it may be on its way."""
        self.signal(child, kill=True)
        self._children.pop(child.number, None)

    def _expect(self, number: int) -> Child:
        child = self._children[number] = Child(number, asyncio.get_running_loop().create_future())
        return child

    async def _send(self, line: bytes, files: Sequence[int] = ()) -> None:
        while self._socket is not None:
            try:
                sent = socket.send_fds(self._socket, [line], list(files))
            except BlockingIOError:
                await writable(self._socket)
            except OSError:
                break
            else:
                line, files = line[sent:], ()
                if not line:
                    return
        message = "the keeper has ended"
        raise BackendUnavailable(message)

    def signal(self, child: Child, *, kill: bool) -> None:
        """SIGTERM to the child's group; or the end of everything that it started."""
        if self._socket is not None and child.number in self._children:
            # Short, and the keeper always reads: if it cannot be sent now, it is ending.
            with contextlib.suppress(OSError):
                self._socket.sendall(line_of(Word.SIGNAL, child.number, kill=kill))

    def _hear(self, ours: socket.socket) -> None:
        try:
            data = ours.recv(_RECEIVED_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for said in self._lines.add(data):
            self._heard(said)
        if not data:
            self._lost(ours)

    def _heard(self, said: dict[str, Any]) -> None:
        child = self._children.get(said["number"])
        if child is None:
            return
        match said["word"]:
            case Word.READY:
                del self._children[_READY]
                child.started.set_result(0)
            case Word.REFUSED:
                del self._children[child.number]
                message = f"no child could be started: {said['error']}"
                _fail(child.started, BackendUnavailable(message))

    def _take_reports(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for told in told_in(os.read(self._reports, TOLD_AT_ONCE_BYTES)):
                if (child := self._children.get(told.number)) is not None:
                    self._told(child, told)

    def _told(self, child: Child, told: Told) -> None:
        if not told.over:
            if not child.started.done():
                child.started.set_result(told.leader)
            return
        del self._children[child.number]
        _fail(child.started, BackendUnavailable("the child ended before it had begun"))
        code = os.waitstatus_to_exitcode(told.status)
        child.ended.set_result(
            Ended(
                code=None if told.cause is Cause.LOST else code,
                peak_rss_bytes=told.peak_bytes or None,
                cause=told.cause,
            )
        )

    def _lost(self, ours: socket.socket) -> None:
        """The keeper is gone: its guards are ending everything."""
        self._take_reports()  # what was told before
        self._socket = None
        for file in (ours.fileno(), self._reports):
            asyncio.get_running_loop().remove_reader(file)
        ours.close()
        os.close(self._reports)
        for child in self._children.values():
            _fail(child.started, BackendUnavailable("the keeper has ended"))
            child.ended.set_result(Ended(code=None, cause=Cause.LOST))
        self._children.clear()

    async def close(self) -> None:
        """End the keeper, and with it whatever it still has; safe to call twice."""
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
            self._opening = None
        reach("keeper.ending")
        if self._socket is not None:
            self._lost(self._socket)
        if self._process is not None:
            await self._process.wait()
            self._process = None
        reach("keeper.ended")


def _fail(future: asyncio.Future[int], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
