"""The turnstile: one writer at a time across processes, each in its turn.

SQLite lets one process write and makes the others ask again after growing pauses, so a busy writer
starves them and a user may end up with "database is locked". Two file locks mend both. Whoever
wants to write takes ``next``, then waits in the kernel for ``now``, then lets go of ``next``: a
process that has just written must queue behind the one that already holds ``next``. The kernel
wakes the waiter, so nobody polls, and a process that dies lets go of its locks by dying.

Whoever has a turn leaves its mark in ``now`` before it writes. As long as the mark is one's own,
nobody else has written anything since, and what one knows of the file is still so.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from pathlib import Path
from types import TracebackType

_TOKEN_BYTES = 8


class WriteLock:
    """A context manager around one turn at writing. Blocks its thread; used by the writer only.

    ``exclusive_epoch`` is a number that grows with every turn that came after somebody else's.
    """

    def __init__(self, folder: Path) -> None:
        self._next_fd = os.open(
            folder / "write_lock.next", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        self._owner_fd = os.open(
            folder / "write_lock.owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
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
            # In this order: who sees the mark must not take the new spell for the old one.
            self.exclusive_epoch += 1
            self._owner_token[:] = self._token

    @property
    def unchanged(self) -> bool:
        """Whether nobody else has had a turn since our last; for any thread."""
        return self._owner_token[:] == self._token

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fcntl.flock(self._owner_fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the files back; locks that are held go with them."""
        self._owner_token.close()
        os.close(self._next_fd)
        os.close(self._owner_fd)
