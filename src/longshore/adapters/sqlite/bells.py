"""Bells: how a commit in one process wakes those who wait in others, without anybody polling.

Each process that waits has a named pipe in the data folder and everybody who commits writes one
byte a topic into each of them. A bell carries no news, it only says "look again", so a full pipe,
a lost byte or a stale wake-up costs a look and never an event: whoever waits registers first, then
looks, then waits, and looks again at a slow pace whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

from longshore.failpoints import reach

_FOLDER_MODE = 0o700
_PIPE_MODE = 0o600


class Topic(Enum):
    """What may have changed; the value is the byte that travels."""

    QUEUE = b"q"
    EVENTS = b"e"
    OUTPUT = b"o"
    NUDGE = b"n"
    PAUSES = b"p"


_BY_BYTE = {topic.value[0]: topic for topic in Topic}


class Bells:
    """This process's own bell, and the ropes to those of the others."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._folder = folder / "bells"
        self._folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        self._loop = loop
        self._waiting: dict[Topic, set[asyncio.Event]] = {topic: set() for topic in Topic}
        self._ropes: dict[str, int] = {}
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._pipe = self._hang()
        loop.add_reader(self._pipe, self._heard)

    def _hang(self) -> int:
        # Opened before it gets its name: a bell that nobody listens to looks dead and is removed.
        path = self._folder / f".{self._name}"
        os.mkfifo(path, _PIPE_MODE)
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        reach("bell.made")
        path.rename(self._folder / self._name)
        reach("bell.hung")
        return pipe

    @contextlib.contextmanager
    def listening(self, topic: Topic) -> Iterator[asyncio.Event]:
        """An event that is set whenever the topic's bell rings; clear it, look, then wait."""
        heard = asyncio.Event()
        self._waiting[topic].add(heard)
        try:
            yield heard
        finally:
            self._waiting[topic].discard(heard)

    def _heard(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.ring_here(_BY_BYTE[byte] for byte in set(os.read(self._pipe, 4096)))

    def ring_here(self, topics: Iterable[Topic]) -> None:
        """Wake the waiters of this process; on the loop's own thread."""
        for topic in topics:
            for waiting in self._waiting[topic]:
                waiting.set()

    def ring_elsewhere(self, topics: Iterable[Topic]) -> None:
        """Wake the other processes; on the writer's thread.

        Raises:
            OSError: some of them could not be woken (no free descriptor, the folder is missing).
        """
        failed = self._find_ropes()
        message = b"".join(topic.value for topic in topics)
        for name, rope in list(self._ropes.items()):
            try:
                os.write(rope, message)
            except BlockingIOError:
                continue  # full: that process has been woken often enough
            except BrokenPipeError:
                self._drop(name)
        if failed is not None:
            raise failed

    def _find_ropes(self) -> OSError | None:
        """Open the pipes of processes that came since the last call.

        Returns: why a pipe of a living process could not be opened, if so.
        """
        failed: OSError | None = None
        names = {name for name in os.listdir(self._folder) if not name.startswith(".")}
        names.discard(self._name)
        for name in self._ropes.keys() - names:
            os.close(self._ropes.pop(name))
        for name in names - self._ropes.keys():
            path = self._folder / name
            try:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._ropes[name] = os.open(path, flags)
            except OSError as error:
                if error.errno in (errno.ENXIO, errno.ENOENT):
                    # No process has it open for reading: its owner is gone.
                    path.unlink(missing_ok=True)
                else:
                    failed = error
        return failed

    def _drop(self, name: str) -> None:
        os.close(self._ropes.pop(name))
        (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Take the bell down."""
        self._loop.remove_reader(self._pipe)
        (self._folder / self._name).unlink(missing_ok=True)
        reach("bell.taken_down")
        os.close(self._pipe)
        for rope in self._ropes.values():
            os.close(rope)
        self._ropes.clear()
