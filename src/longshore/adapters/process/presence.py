"""Presence by file locks: the kernel itself lets go of a lock when its process ends.

Each worker keeps ``workers/ID.lock`` locked as long as it lives. The first line of it names the
queues it serves; below, it notes the process groups it starts and sees end. Its keeper and the
guards of its attempts hold the lock too, until nothing of an attempt lives. So whoever can take it
knows that the worker is gone and its attempts with it; kills what is left of its children all the
same, in case the guards were killed as well (same process id *and* same start time, or nothing);
and removes the file.
A lock is a fact of this machine's kernel, so it holds across containers that share the folder, and
a data folder on a network file system is refused elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from longshore.adapters.process.killing import kill_group
from longshore.adapters.process.table import start_time_of
from longshore.errors import UsageError
from longshore.failpoints import reach

_FOLDER_MODE = 0o700
_SERVES = "serves "


class FilePresence:
    """See ``ports.presence.Presence``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "workers"
        self._folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        self._locks: dict[str, int] = {}
        self._children: dict[str, set[int]] = {}
        self._heads: dict[str, int] = {}  # how long the first line of a worker's file is
        self._roles: dict[str, int] = {}

    def appear(self, worker_id: str, queues: Sequence[str]) -> None:
        path = self._lock_path(worker_id)
        # Locked before it gets its name: an unlocked file would look like a worker that is gone.
        draft = path.with_suffix(f".{os.getpid()}-draft")
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        lock = os.open(draft, flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            head = os.write(lock, f"{_SERVES}{' '.join(queues)}\n".encode())
            reach("worker.locked")
            _give_name(draft, path)
            reach("worker.named")
        except (FileExistsError, BlockingIOError):
            os.close(lock)
            message = f"a worker called {worker_id!r} was here before; choose another id"
            raise UsageError(message) from None
        finally:
            draft.unlink(missing_ok=True)
        self._locks[worker_id] = lock
        self._heads[worker_id] = head
        self._children[worker_id] = set()
        reach("worker.here")

    def leave(self, worker_id: str) -> None:
        reach("worker.leaving")
        self._lock_path(worker_id).unlink(missing_ok=True)
        reach("worker.left")
        self._children.pop(worker_id, None)
        if (lock := self._locks.pop(worker_id, None)) is not None:
            os.close(lock)

    def held_by(self, worker_id: str) -> tuple[int, ...]:
        # The lock is on the open file, so whoever inherits it holds it too.
        return (self._locks[worker_id],) if worker_id in self._locks else ()

    def note_child(self, worker_id: str, process_id: int) -> None:
        self._children[worker_id].add(process_id)
        note = f"+{process_id} {start_time_of(process_id) or ''}\n"
        reach("worker.child_noting")
        os.write(self._locks[worker_id], note.encode())
        reach("worker.child_noted")

    def forget_child(self, worker_id: str, process_id: int) -> None:
        self._children[worker_id].discard(process_id)
        reach("worker.child_forgetting")
        os.write(self._locks[worker_id], f"-{process_id}\n".encode())
        if not self._children[worker_id]:
            os.ftruncate(self._locks[worker_id], self._heads[worker_id])
        reach("worker.child_forgotten")

    def gone(self, worker_id: str) -> bool:
        if worker_id in self._locks:
            return False
        try:
            lock = os.open(self._lock_path(worker_id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False  # a remote worker, or one that left in good order
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    def clear(self, worker_id: str) -> None:
        reach("worker.dead_clearing")
        children: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in self._lock_path(worker_id).read_text().splitlines():
                process_id, _, started = line[1:].partition(" ")
                if line.startswith("+"):
                    children[process_id] = started
                elif line.startswith("-"):
                    children.pop(process_id, None)
        for process_id, started in children.items():
            kill_group(int(process_id), started=started)
        reach("worker.dead_cleared")

    def leads(self, role: str) -> bool:
        if role in self._roles:
            return True
        opened = os.open(
            self._folder / f"{role}.role", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            return False
        self._roles[role] = opened
        reach("worker.role_taken")
        return True

    def absent(self) -> list[str]:
        return [worker_id for worker_id in self._known() if self.gone(worker_id)]

    def present(self) -> dict[str, tuple[str, ...]]:
        here = {}
        for worker_id in self._known():
            with contextlib.suppress(FileNotFoundError):  # it has left since
                if not self.gone(worker_id):
                    here[worker_id] = _served(self._lock_path(worker_id))
        return here

    def _known(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.lock"))

    def close(self) -> None:
        """Give up every role."""
        while self._roles:
            os.close(self._roles.popitem()[1])

    def _lock_path(self, worker_id: str) -> Path:
        return self._folder / f"{worker_id}.lock"


def _served(path: Path) -> tuple[str, ...]:
    with path.open() as notes:
        return tuple(notes.readline().removeprefix(_SERVES).split())


def _give_name(draft: Path, path: Path) -> None:
    """Under its own name from now on.

    Raises:
        FileExistsError: somebody has that name.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links; two who choose one name in one moment can still meet.
        if path.exists():
            raise FileExistsError(path) from None
        draft.rename(path)
