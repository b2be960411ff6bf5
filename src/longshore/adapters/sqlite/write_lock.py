"""The write lock: one writer at a time across processes, in fair order.

SQLite lets one process write and makes the others retry after growing pauses, so that a busy writer
starves them until "database is locked". Two file locks prevent that. A writer takes ``next``, waits
in the kernel for ``owner``, then releases ``next``: a process that has just written queues behind
the one that holds ``next``. The kernel wakes the waiter, and releases the locks of a process that
dies. A child that was forked closes them: it shares the locks of its parent, and would keep them
after the parent's death.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

_open_locks: weakref.WeakSet[WriteLock] = weakref.WeakSet()


class WriteLock:
    """A context manager around one write. It blocks its thread; only the writer uses it."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._next_fd = os.open(folder / "write_lock.next", flags, 0o600)
        self._owner_fd = os.open(folder / "write_lock.owner", flags, 0o600)
        _open_locks.add(self)

    def __enter__(self) -> None:
        self._acquire(fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire_if_free(self) -> bool:
        """Take the lock if no process has it or waits for it. Returns whether it was taken."""
        try:
            self._acquire(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _acquire(self, operation: int) -> None:
        fcntl.flock(self._next_fd, operation)
        try:
            fcntl.flock(self._owner_fd, operation)
        finally:
            fcntl.flock(self._next_fd, fcntl.LOCK_UN)

    def release(self) -> None:
        """End the turn of this process."""
        fcntl.flock(self._owner_fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files, which releases the locks. Later calls do nothing."""
        if self in _open_locks:
            _open_locks.remove(self)
            os.close(self._next_fd)
            os.close(self._owner_fd)
            self._next_fd = self._owner_fd = -1


def _close_inherited() -> None:
    for lock in list(_open_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_inherited)
