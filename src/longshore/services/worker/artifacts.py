"""Files of an attempt: moved from its folder to the blob store before its outcome is committed.

They are ``artifacts/**``, ``traces/**`` and ``logs/summary.log``. What is in that folder was
written by the task's code, so nothing there is trusted: links are followed only if they stay in
their part of the folder, names are normalised, and everything is limited. Files that are skipped
are named in one line of the output.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from longshore.core.documents import attempt_file_key, safe_name
from longshore.errors import BackendError
from longshore.services.resilience import log_and_continue, pauses_within, race, retry_unavailable
from longshore.services.worker.context import ArtifactPolicy, WorkerContext

logger = logging.getLogger(__name__)

SUMMARY = "logs/summary.log"
# The small and informative files first: what exceeds a limit is skipped.
_PARTS = (SUMMARY, "traces", "artifacts")
_CHUNK_BYTES = 256 * 1024
_ENTRIES_PER_FILE = 10  # folder entries that are read for each file that may be stored
_LISTED_LIMIT = 5

ResultT = TypeVar("ResultT")
Upload = Callable[[], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    path: str
    size: int
    owner: int | None  # a file of another user is not read; None: of any


@dataclass(slots=True)
class _FolderScan:
    owner: int | None = None  # whose task had the folder, if not the worker's user
    files: list[_File] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # each with the reason
    bytes: int = 0

    def skip(self, name: str, reason: str) -> None:
        self.skipped.append(f"{safe_name(name)} ({reason})")


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """The files of one attempt, and its summaries if it wrote no ``logs/summary.log``."""

    context: WorkerContext
    task_id: str
    attempt: int
    summaries: Sequence[str]

    async def store(self, folder: Path | None, deadline_near: asyncio.Event) -> str | None:
        """Store the files until the deadline is near. Returns a note if some are missing."""
        if not has_artifacts(folder) and not self.summaries:
            return None
        note: str | None = "files that are not stored: all, the worker had no time left"
        if deadline_near.is_set():
            return note
        async with race(self._store(folder), deadline_near.wait()) as (storing, _):
            if storing.done():
                note = await storing
        return note

    async def _store(self, folder: Path | None) -> str | None:
        with log_and_continue(logger, "artifacts.store_failed", task_id=self.task_id):
            scan = _FolderScan()
            if has_artifacts(folder):
                policy = self.context.artifacts
                scan = await _in_thread(lambda: _scan_folder(Path(folder or ""), policy))
            uploads: dict[str, Upload] = {
                file.name: partial(self._upload, file) for file in scan.files
            }
            if self.summaries and SUMMARY not in uploads:
                uploads[SUMMARY] = self._upload_summaries
            await self._upload_all(uploads, scan)
            return _skipped_note(scan.skipped)
        return "files that are not stored: some, or all, the worker could not store them"

    async def _upload(self, file: _File) -> int:
        if file.size <= _CHUNK_BYTES:
            return await self._put(file.name, await _in_thread(lambda: _read_whole(file)))
        async with aclosing(_read_chunks(file)) as chunks:
            return await self._put(file.name, chunks)

    async def _upload_summaries(self) -> int:
        text = "".join(f"{line}\n" for line in self.summaries).encode(errors="replace")
        return await self._put(SUMMARY, text)

    async def _put(self, name: str, data: bytes | AsyncIterator[bytes]) -> int:
        key = attempt_file_key(self.task_id, self.attempt, safe_name(name))
        return await self.context.backend.blobs.put(key, data)

    async def _upload_all(self, uploads: dict[str, Upload], scan: _FolderScan) -> None:
        clock = self.context.backend.clock
        for number, (name, upload) in enumerate(uploads.items()):
            # The outcome matters more: storing files must not delay it beyond the lease.
            pauses = pauses_within(clock, self.context.lease.duration / 3)
            try:
                await retry_unavailable(clock, upload, pauses, task_id=self.task_id)
            except OSError as error:
                scan.skip(name, _read_error(error))
            except BackendError as error:
                # The store is unavailable, so the other files would fail too.
                logger.warning("artifacts.unavailable", extra={"error": str(error)})
                for left in list(uploads)[number:]:
                    scan.skip(left, "the store could not be reached")
                return


def has_artifacts(folder: Path | None) -> bool:
    """Whether an attempt left files to store."""
    return folder is not None and any(os.path.lexists(folder / part) for part in _PARTS)


def _skipped_note(skipped: Sequence[str]) -> str | None:
    if not skipped:
        return None
    named, more = skipped[:_LISTED_LIMIT], len(skipped) - _LISTED_LIMIT
    rest = f" and {more} more" if more > 0 else ""
    return f"files that are not stored: {', '.join(named)}{rest}"


def _scan_folder(folder: Path, policy: ArtifactPolicy) -> _FolderScan:
    scan = _FolderScan()
    root = os.path.realpath(folder)
    if (owner := os.stat(root).st_uid) != os.geteuid():
        # The worker can read more than the task: a link of any kind must not use that.
        scan.owner = owner
    budget = _ENTRIES_PER_FILE * policy.limit_files
    for part in _PARTS:
        for path in _entries(os.path.join(root, part), root, scan, limit=budget + 1):
            if budget == 0:
                scan.skip(part, "too many entries")
                break
            budget -= 1
            _add_file(path, root, part, scan, policy)
    return scan


def _entries(top: str, root: str, scan: _FolderScan, *, limit: int) -> Iterator[str]:
    """Yields every file below a path, or the path itself; links are not followed.

    At most ``limit`` entries of a folder are read.
    """
    waiting = [top] if os.path.lexists(top) else []
    while waiting:
        path = waiting.pop()
        if os.path.islink(path) or not os.path.isdir(path):
            yield path
            continue
        try:
            with os.scandir(path) as entries:
                names = [entry.name for entry in islice(entries, limit)]
        except OSError as error:
            scan.skip(os.path.relpath(path, root), _read_error(error))
            continue
        waiting += [os.path.join(path, name) for name in sorted(names, reverse=True)]


def _add_file(path: str, root: str, part: str, scan: _FolderScan, policy: ArtifactPolicy) -> None:
    name, real, top = os.path.relpath(path, root), os.path.realpath(path), os.path.join(root, part)
    if real != top and not real.startswith(os.path.join(top, "")):
        scan.skip(name, f"a link that leads out of {part}")
        return
    try:
        about = os.stat(real)
    except OSError as error:
        scan.skip(name, _read_error(error))
        return
    if not stat.S_ISREG(about.st_mode):
        scan.skip(name, "no file")
    elif len(scan.files) >= policy.limit_files:
        scan.skip(name, f"more than {policy.limit_files} files")
    elif scan.bytes + about.st_size > policy.limit_bytes:
        scan.skip(name, f"more than {policy.limit_bytes} bytes in all")
    else:
        scan.bytes += about.st_size
        scan.files.append(_File(name, real, about.st_size, scan.owner))


def _read_error(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _open(file: _File) -> BinaryIO:
    # The entry may have been replaced since it was read: follow no link, block on no pipe.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    opened = os.fdopen(os.open(file.path, flags), "rb")
    about = os.fstat(opened.fileno())
    if stat.S_ISREG(about.st_mode) and file.owner in (None, about.st_uid):
        return opened
    opened.close()
    raise PermissionError(errno.EPERM, "it is no file of the task")


def _read_whole(file: _File) -> bytes:
    with _open(file) as opened:
        return opened.read(file.size)


async def _read_chunks(file: _File) -> AsyncGenerator[bytes, None]:
    left = file.size
    with _open(file) as opened:
        while chunk := await _in_thread(partial(opened.read, min(_CHUNK_BYTES, left))):
            left -= len(chunk)
            yield chunk


async def _in_thread(work: Callable[[], ResultT]) -> ResultT:
    """Run a blocking call in a thread; without a free thread, run it here."""
    try:
        return await asyncio.to_thread(work)
    except RuntimeError:
        return work()
