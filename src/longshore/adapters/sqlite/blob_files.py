"""The files of large blobs, and how a backup keeps them from being removed.

A backup copies the database first and the files after it, so a file that the copy names must stay
until it is copied. While a backup holds the lock on ``backup.lock``, nothing removes a file: what
can wait (retention) waits, and a file that was replaced is noted in ``blobs/removed`` and removed
later. The kernel releases the lock if the process of the backup dies. A backup that takes too long,
because it is frozen, loses its right to the files after ``MAX_PAUSE``, and fails.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from longshore.adapters.shared.failpoints import reach
from longshore.errors import BackendUnavailable, CommandRefused

FOLDER_MODE = 0o700
FILE_MODE = 0o600
MAX_PAUSE = timedelta(hours=12)
_REMOVED = "removed"  # the folder with the names of files to remove
_LOCK_TIMEOUT_S = 30.0
_LOCK_POLL_S = 0.02


def file_path(folder: Path, file: str) -> Path:
    """The file of a large blob."""
    return folder / "blobs" / file[:2] / file


def create_lock(folder: Path) -> None:
    """Create the lock's file, so that files can be removed when the disk is full."""
    with _open_lock(folder):
        pass


@contextlib.contextmanager
def removal(folder: Path) -> Iterator[bool]:
    """Whether files of blobs may be removed now; no backup begins until the end of the block."""
    with _open_lock(folder) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield _is_overdue(lock)
        else:
            yield True


def remove_file(folder: Path, file: str) -> None:
    """Remove the file of a blob to which no row refers any more, now or after a backup."""
    # An error leaves a file without a row, as a crash does: the caller's write is committed.
    with contextlib.suppress(OSError), removal(folder) as allowed:
        if allowed:
            file_path(folder, file).unlink(missing_ok=True)
        else:
            note = folder / "blobs" / _REMOVED / file
            note.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
            note.touch(mode=FILE_MODE)
    reach("blob.removed")


def remove_noted(folder: Path) -> None:
    """Remove the files that could not be removed during a backup; in a ``removal`` block."""
    notes = folder / "blobs" / _REMOVED
    for file in os.listdir(notes) if notes.exists() else ():
        file_path(folder, file).unlink(missing_ok=True)
        reach("blob.noted_removed")
        (notes / file).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Pause:
    """The right of a backup to every file of a blob."""

    _lock: int

    def check(self) -> None:
        """Check that no file was removed so far.

        Raises:
            BackendUnavailable: the backup has taken too long.
        """
        if _is_overdue(self._lock):
            hours = f"{MAX_PAUSE.total_seconds() / 3600:g} hours"
            message = f"the backup took more than {hours}, for which nothing is removed; try again"
            raise BackendUnavailable(message)


@contextlib.contextmanager
def pause_removal(folder: Path) -> Iterator[Pause]:
    """Let nothing remove files of blobs until the end of the block.

    Raises:
        CommandRefused: another backup is under way.
        BackendUnavailable: something has been removing files for too long.
    """
    with _open_lock(folder) as lock:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(lock, 100, 0).decode(errors="replace")
                if holder.isdigit() and _is_alive(int(holder)):
                    reason = f"a backup by process {holder} is under way; try again when it is done"
                    raise CommandRefused(str(folder), reason) from None
                if time.monotonic() > deadline:
                    message = f"{folder}: files of blobs are being removed; try again"
                    raise BackendUnavailable(message) from None
                time.sleep(_LOCK_POLL_S)  # noqa: TID251 - the caller waits for the lock
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            os.utime(lock)
            reach("backup.locked")
            yield Pause(lock)
        finally:
            os.ftruncate(lock, 0)


@contextlib.contextmanager
def _open_lock(folder: Path) -> Iterator[int]:
    lock = os.open(folder / "backup.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        yield lock
    finally:
        os.close(lock)


def _is_overdue(lock: int) -> bool:
    return time.time() - os.fstat(lock).st_mtime > MAX_PAUSE.total_seconds()


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
