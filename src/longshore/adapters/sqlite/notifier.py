"""Wake-ups: how a commit in one process wakes the waiters of other processes without polling.

Each process has a named pipe in the data folder, and a commit writes one byte per topic into all of
them. A wake-up carries no data; it only says "look again". A full pipe, a lost byte or a stale
wake-up costs one look and never loses an event: a waiter is also woken if a slow poll finds that
the file was changed.

A commit makes no system call for a topic without waiters. For this the processes share a page of
memory with one number per topic. A waiter sets it to 1, then looks, then waits; a commit that
finds 1 sets it to 0 and wakes all processes, whose waiters set it again before they wait. A number
that every commit changes is in the page too, so that an idle process polls without a system call.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import secrets
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.shared.waiters import Waiters

_FOLDER_MODE = 0o700
_PIPE_MODE = 0o600


class Topic(Enum):
    """What may have changed; the value is the byte in the pipe."""

    QUEUE = b"q"
    ENDS = b"e"  # of tasks, which their job has not recorded
    OUTPUT = b"o"
    WAKEUP = b"n"
    PAUSES = b"p"


_BY_BYTE = {topic.value[0]: topic for topic in Topic}
_WORD = {topic: index for index, topic in enumerate(Topic)}
# Odd while a change is under way, and after one that has failed.
_COMMITS, _DEFINITIONS = range(len(Topic), len(Topic) + 2)


class Notifier:
    """The pipe of this process, and the open pipes of the others."""

    def __init__(self, folder: Path, waiters: Mapping[Topic, Waiters]) -> None:
        self._folder = folder / "wakeups"
        self._folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        self._waiters = waiters
        self._peer_pipes: dict[str, int] = {}
        self._page = _map_page(folder / "wakeups.waiting")
        self._words = memoryview(self._page).cast("q")
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        # Opened before it gets its name: a pipe without a reader looks dead and is removed.
        path = self._folder / f".{self._name}"
        os.mkfifo(path, _PIPE_MODE)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        reach("notifier.created")
        path.rename(self._folder / self._name)
        reach("notifier.opened")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pipe, self._on_readable)

    def _on_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.wake_local(_BY_BYTE[byte] for byte in set(os.read(self._pipe, 4096)))

    def expect(self, topic: Topic) -> None:
        """Ask for a wake-up by the next commit of this topic."""
        self._words[_WORD[topic]] = 1

    def wake_local(self, topics: Iterable[Topic]) -> None:
        """Wake the waiters of this process; on the loop's thread."""
        for topic in topics:
            self._waiters[topic].wake()

    def take_expected(self, topics: Iterable[Topic]) -> list[Topic]:
        """After a commit: returns the topics with waiters, which the caller has to wake."""
        expected = [topic for topic in topics if self._words[_WORD[topic]]]
        for topic in expected:
            self._words[_WORD[topic]] = 0
        return expected

    def commit_begun(self) -> None:
        """The file is about to change; under the write lock."""
        self._words[_COMMITS] |= 1

    def definition_change_begun(self) -> None:
        """A definition is about to change; under the write lock."""
        self._words[_DEFINITIONS] |= 1

    def commit_ended(self) -> None:
        """The commit that was begun last has succeeded; under the write lock.

        With it, a change of a definition has ended too: also one whose process has died, or did not
        learn whether it was committed. Nothing is under way beside this commit.
        """
        self._words[_COMMITS] += 1
        if self._words[_DEFINITIONS] % 2:
            self._words[_DEFINITIONS] += 1

    @property
    def commits(self) -> int | None:
        """A number that changes with the file; None: the last commit is under way or has failed."""
        number = self._words[_COMMITS]
        return None if number % 2 else number

    @property
    def definitions_version(self) -> int | None:
        """The version of all definitions for a cache; None: nothing may be cached.

        A cached definition is the stored one while this is unchanged.
        """
        number = self._words[_DEFINITIONS]
        return None if number % 2 else number

    def wake_others(self, topics: Iterable[Topic]) -> None:
        """Wake the other processes; on the thread that has committed.

        Raises:
            OSError: some of them could not be woken (no free descriptor, the folder is missing).
        """
        failed = self._refresh_peers()
        message = b"".join(topic.value for topic in topics)
        for name, pipe in list(self._peer_pipes.items()):
            try:
                os.write(pipe, message)
            except BlockingIOError:
                continue  # full: that process has unread wake-ups
            except BrokenPipeError:
                os.close(self._peer_pipes.pop(name))
                (self._folder / name).unlink(missing_ok=True)
        if failed is not None:
            raise failed

    def _refresh_peers(self) -> OSError | None:
        """Open the pipes of processes that started since the last call.

        Returns: the error if the pipe of a living process could not be opened.
        """
        failed: OSError | None = None
        names = {name for name in os.listdir(self._folder) if not name.startswith(".")}
        names.discard(self._name)
        for name in self._peer_pipes.keys() - names:
            os.close(self._peer_pipes.pop(name))
        for name in names - self._peer_pipes.keys():
            path = self._folder / name
            try:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._peer_pipes[name] = os.open(path, flags)
            except OSError as error:
                if error.errno in (errno.ENXIO, errno.ENOENT):
                    # No process has it open for reading: its owner has ended.
                    path.unlink(missing_ok=True)
                else:
                    failed = error
        return failed

    def close(self) -> None:
        """Remove the pipe."""
        self._loop.remove_reader(self._pipe)
        (self._folder / self._name).unlink(missing_ok=True)
        reach("notifier.removed")
        os.close(self._pipe)
        for pipe in self._peer_pipes.values():
            os.close(pipe)
        self._peer_pipes.clear()
        self._words.release()
        self._page.close()


def live_processes(folder: Path) -> list[str]:
    """The processes that have the store in ``folder`` open: their ids, and names if known."""
    processes = []
    for path in sorted((folder / "wakeups").glob("[0-9]*-*")):
        try:
            # Fails if no process reads from the pipe: its owner has ended.
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENOENT):
                raise
            continue
        process_id = path.name.partition("-")[0]
        try:
            name = Path(f"/proc/{process_id}/comm").read_text().strip()
        except OSError:  # of another container, or not on Linux
            name = ""
        processes.append(f"{process_id} ({name})" if name else process_id)
    return processes


def _map_page(path: Path) -> mmap.mmap:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PIPE_MODE)
    try:
        if sys.platform == "darwin":
            os.ftruncate(file, mmap.PAGESIZE)
        else:  # with its blocks: a write to memory must not fail because the disk is full
            os.posix_fallocate(file, 0, mmap.PAGESIZE)
        return mmap.mmap(file, mmap.PAGESIZE)
    finally:
        os.close(file)
