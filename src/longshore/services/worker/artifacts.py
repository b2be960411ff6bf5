"""Files of an attempt: moved from its folder to the blob store before its outcome is committed.

They are ``artifacts/**``, ``traces/**`` and ``logs/summary.log``. What is in that folder was
written by the task's code, so nothing there is trusted: links are followed only if they stay in
their part of the folder, names are normalised, and everything is limited. Files that are skipped
are named in one line of the output.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from longshore.core.documents import attempt_file_key, safe_name
from longshore.core.tasks.rows import TaskRow
from longshore.errors import BackendError
from longshore.ports.blobs import BlobStore
from longshore.ports.clock import Clock
from longshore.services.resilience import log_and_continue, pauses_within, race, retry_unavailable

logger = logging.getLogger(__name__)

SUMMARY = "logs/summary.log"
# The small and informative files first: what exceeds a limit is skipped.
_PARTS = (SUMMARY, "traces", "artifacts")
_CHUNK_BYTES = 256 * 1024
_ENTRIES_PER_FILE = 10  # folder entries that are read for each file that may be stored
_LISTED_LIMIT = 5

ResultT = TypeVar("ResultT")
RetryUpload = Callable[[Callable[[], Awaitable[int]]], Awaitable[int]]
"""Makes a call that is safe to repeat, and repeats it a limited number of times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactPolicy:
    """Limits of what is stored of one attempt."""

    limit_files: int = 1_000
    limit_bytes: int = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    path: str
    size: int


@dataclass(slots=True)
class _FolderScan:
    files: list[_File] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # each with the reason
    bytes: int = 0

    def skip(self, name: str, reason: str) -> None:
        self.skipped.append(f"{safe_name(name)} ({reason})")


class Artifacts:
    """Stores files of attempts."""

    def __init__(self, blobs: BlobStore, policy: ArtifactPolicy) -> None:
        self._blobs = blobs
        self._policy = policy

    async def store(
        self,
        task_id: str,
        attempt: int,
        folder: Path | None,
        *,
        summaries: Sequence[str] = (),
        retry: RetryUpload,
    ) -> str | None:
        """Store the files of an ended attempt. Returns a note if something was skipped.

        Args:
            summaries: The summaries of an attempt that wrote no ``logs/summary.log``.
        """
        scan = _FolderScan()
        if has_artifacts(folder):
            scan = await _in_thread(lambda: _scan_folder(Path(folder or ""), self._policy))
        puts = {file.name: self._upload_of(task_id, attempt, file) for file in scan.files}
        if summaries and SUMMARY not in puts:
            text = "".join(f"{line}\n" for line in summaries).encode(errors="replace")
            key = attempt_file_key(task_id, attempt, SUMMARY)
            puts[SUMMARY] = lambda: self._blobs.put(key, text)
        await _upload_all(puts, scan, retry)
        return _skipped_note(scan.skipped)

    def _upload_of(self, task_id: str, attempt: int, file: _File) -> Callable[[], Awaitable[int]]:
        key = attempt_file_key(task_id, attempt, safe_name(file.name))

        async def put() -> int:
            if file.size <= _CHUNK_BYTES:
                return await self._blobs.put(key, await _in_thread(lambda: _read_whole(file)))
            async with aclosing(_read_chunks(file)) as chunks:
                return await self._blobs.put(key, chunks)

        return put


def has_artifacts(folder: Path | None) -> bool:
    """Whether an attempt left files to store."""
    return folder is not None and any(os.path.lexists(folder / part) for part in _PARTS)


async def _upload_all(
    uploads: dict[str, Callable[[], Awaitable[int]]], scan: _FolderScan, retry: RetryUpload
) -> None:
    waiting = list(uploads.items())
    while waiting:
        name, put = waiting.pop(0)
        try:
            await retry(put)
        except OSError as error:
            scan.skip(name, _read_error(error))
        except BackendError as error:
            # The store is unavailable, so the other files would fail too.
            logger.warning("artifacts.unavailable", extra={"error": str(error)})
            for left, _ in [(name, put), *waiting]:
                scan.skip(left, "the store could not be reached")
            return


def _skipped_note(skipped: Sequence[str]) -> str | None:
    if not skipped:
        return None
    named, more = skipped[:_LISTED_LIMIT], len(skipped) - _LISTED_LIMIT
    rest = f" and {more} more" if more > 0 else ""
    return f"files that are not stored: {', '.join(named)}{rest}"


def _scan_folder(folder: Path, policy: ArtifactPolicy) -> _FolderScan:
    scan = _FolderScan()
    root = os.path.realpath(folder)
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
        scan.files.append(_File(name, real, about.st_size))


def _read_error(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _open(file: _File) -> BinaryIO:
    # The entry may have been replaced since it was read: follow no link, block on no pipe.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(file.path, flags), "rb")


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


class AttemptFiles:
    """The files of one attempt and its summaries; stored while there is time."""

    def __init__(
        self,
        artifacts: Artifacts,
        clock: Clock,
        row: TaskRow,
        summaries: Sequence[str],
        *,
        timeout: timedelta,
    ) -> None:
        self._artifacts = artifacts
        self._clock = clock
        self._row = row
        self._summaries = summaries
        self._timeout = timeout

    async def store(self, folder: Path | None, deadline_near: asyncio.Event) -> str | None:
        """Store the files until the deadline is near. Returns a note if some are missing."""
        if not has_artifacts(folder) and not self._summaries:
            return None
        note: str | None = "files that are not stored: all, the worker had no time left"
        if deadline_near.is_set():
            return note
        async with race(self._store(folder), deadline_near.wait()) as (storing, _):
            if storing.done():
                note = await storing
        return note

    async def _store(self, folder: Path | None) -> str | None:
        task_id, clock = self._row.id, self._clock
        with log_and_continue(logger, "artifacts.store_failed", task_id=task_id):
            return await self._artifacts.store(
                task_id,
                self._row.attempt,
                folder,
                summaries=self._summaries,
                retry=lambda put: retry_unavailable(
                    clock, put, pauses_within(clock, self._timeout), task_id=task_id
                ),
            )
        return "files that are not stored: some, or all, the worker could not store them"
