"""The write lock: one writer at a time across processes, in fair order.

SQLite lets one process write and makes the others retry after growing pauses, so that a busy writer
starves them until "database is locked". Two file locks prevent that. A writer takes ``next``, waits
in the kernel for ``owner``, then releases ``next``: a process that has just written queues behind
the one that holds ``next``. The kernel wakes the waiter, and releases the locks of a process that
dies.

Each writer stores its token in the file of ``owner`` before it writes. While the token is its own,
no other process has written, and cached rows are valid.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from pathlib import Path

_TOKEN_BYTES = 8


class WriteLock:
    """A context manager around one write. It blocks its thread; only the writer uses it.

    ``exclusive_epoch`` grows whenever another process has written since the last write.
    """

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._next_fd = os.open(folder / "write_lock.next", flags, 0o600)
        self._owner_fd = os.open(folder / "write_lock.owner", flags, 0o600)
        os.ftruncate(self._owner_fd, _TOKEN_BYTES)
        self._owner_token = mmap.mmap(self._owner_fd, _TOKEN_BYTES)
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self.exclusive_epoch = 0

    def __enter__(self) -> None:
        fcntl.flock(self._next_fd, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._owner_fd, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._next_fd, fcntl.LOCK_UN)
        if not self.unchanged:
            # In this order: a reader that sees the token must not take the new epoch for the old.
            self.exclusive_epoch += 1
            self._owner_token[:] = self._token

    @property
    def unchanged(self) -> bool:
        """Whether no other process has written since the last write of this one; for any thread."""
        return self._owner_token[:] == self._token

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._owner_fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files, which releases the locks."""
        self._owner_token.close()
        os.close(self._next_fd)
        os.close(self._owner_fd)
