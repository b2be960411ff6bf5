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

_MARK_BYTES = 8


class Turnstile:
    """A context manager around one turn at writing. Blocks its thread; used by the writer only.

    ``quiet_spell`` is a number that grows with every turn that came after somebody else's.
    """

    def __init__(self, folder: Path) -> None:
        self._next = os.open(folder / "writer.next", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._now = os.open(folder / "writer.now", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._now, _MARK_BYTES)
        self._last = mmap.mmap(self._now, _MARK_BYTES)
        self._mark = secrets.token_bytes(_MARK_BYTES)
        self.quiet_spell = 0

    def __enter__(self) -> None:
        fcntl.flock(self._next, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._now, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)
        if not self.undisturbed:
            # In this order: who sees the mark must not take the new spell for the old one.
            self.quiet_spell += 1
            self._last[:] = self._mark

    @property
    def undisturbed(self) -> bool:
        """Whether nobody else has had a turn since our last; for any thread."""
        return self._last[:] == self._mark

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fcntl.flock(self._now, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the files back; locks that are held go with them."""
        self._last.close()
        os.close(self._next)
        os.close(self._now)
