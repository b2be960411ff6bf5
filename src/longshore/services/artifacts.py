"""Files that an attempt leaves: brought from its folder to the blob store before its end is told.

They are ``artifacts/**``, ``traces/**`` and ``logs/summary.log``. What is in that folder was
written by whatever the task has run, so nothing there is trusted: links are followed only if they
stay in their part of the folder, names are put right, and there is a limit to everything. What is
left out is told in one line of the output.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from longshore.core.blob_keys import attempt_file, safe_name
from longshore.errors import BackendError
from longshore.ports.blobs import BlobStore

logger = logging.getLogger(__name__)

SUMMARY = "logs/summary.log"
# The small and telling ones first: of what is too much, the rest is left out.
_PARTS = (SUMMARY, "traces", "artifacts")
_PIECE_BYTES = 256 * 1024
_LOOKS_FOR_EACH = 10  # entries of folders that are looked at for each file that may be kept
_NAMED_AT_MOST = 5

ResultT = TypeVar("ResultT")
Insistently = Callable[[Callable[[], Awaitable[int]]], Awaitable[int]]
"""Makes a call that may be repeated, again and again while it fails, within reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactPolicy:
    """How much is kept of one attempt."""

    limit_files: int = 1_000
    limit_bytes: int = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    path: str
    size: int


@dataclass(slots=True)
class _Found:
    files: list[_File] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # each with the reason
    bytes: int = 0

    def leave_out(self, name: str, why: str) -> None:
        self.left_out.append(f"{safe_name(name)} ({why})")


class Artifacts:
    """Keeps files of attempts."""

    def __init__(self, blobs: BlobStore, policy: ArtifactPolicy) -> None:
        self._blobs = blobs
        self._policy = policy

    async def keep(
        self,
        task_id: str,
        attempt: int,
        folder: Path | None,
        *,
        summaries: Sequence[str] = (),
        insistently: Insistently,
    ) -> str | None:
        """Store what an attempt that has ended left; what to tell if something was left out.

        Args:
            summaries: What the attempt said of itself, for one that wrote no ``logs/summary.log``.
        """
        found = _Found()
        if anything_in(folder):
            found = await _aside(lambda: _found_in(Path(folder or ""), self._policy))
        puts = {file.name: self._putting(task_id, attempt, file) for file in found.files}
        if summaries and SUMMARY not in puts:
            text = "".join(f"{line}\n" for line in summaries).encode(errors="replace")
            key = attempt_file(task_id, attempt, SUMMARY)
            puts[SUMMARY] = lambda: self._blobs.put(key, text)
        await _all(puts, found, insistently)
        return _note(found.left_out)

    def _putting(self, task_id: str, attempt: int, file: _File) -> Callable[[], Awaitable[int]]:
        key = attempt_file(task_id, attempt, safe_name(file.name))

        async def put() -> int:
            if file.size <= _PIECE_BYTES:
                return await self._blobs.put(key, await _aside(lambda: _whole(file)))
            async with aclosing(_pieces(file)) as pieces:
                return await self._blobs.put(key, pieces)

        return put


def anything_in(folder: Path | None) -> bool:
    """Whether an attempt left anything that is to be kept."""
    return folder is not None and any(os.path.lexists(folder / part) for part in _PARTS)


async def _all(
    puts: dict[str, Callable[[], Awaitable[int]]], found: _Found, insistently: Insistently
) -> None:
    waiting = list(puts.items())
    while waiting:
        name, put = waiting.pop(0)
        try:
            await insistently(put)
        except OSError as error:
            found.leave_out(name, _cannot_be_read(error))
        except BackendError as error:
            # The store's trouble, not the file's: the others would fare no better.
            logger.warning("artifacts.unavailable", extra={"error": str(error)})
            for left, _ in [(name, put), *waiting]:
                found.leave_out(left, "the store could not be reached")
            return


def _note(left_out: Sequence[str]) -> str | None:
    if not left_out:
        return None
    named, more = left_out[:_NAMED_AT_MOST], len(left_out) - _NAMED_AT_MOST
    rest = f" and {more} more" if more > 0 else ""
    return f"files that are not kept: {', '.join(named)}{rest}"


def _found_in(folder: Path, policy: ArtifactPolicy) -> _Found:
    found = _Found()
    root = os.path.realpath(folder)
    budget = _LOOKS_FOR_EACH * policy.limit_files
    for part in _PARTS:
        for path in _entries(os.path.join(root, part), root, found, most=budget + 1):
            if budget == 0:
                found.leave_out(part, "more than anybody would look through")
                break
            budget -= 1
            _consider(path, root, part, found, policy)
    return found


def _entries(top: str, root: str, found: _Found, *, most: int) -> Iterator[str]:
    """Everything below a path that is no folder, or the path itself; links are not followed.

    Of a folder with more than ``most`` entries only so many are looked at.
    """
    waiting = [top] if os.path.lexists(top) else []
    while waiting:
        path = waiting.pop()
        if os.path.islink(path) or not os.path.isdir(path):
            yield path
            continue
        try:
            with os.scandir(path) as entries:
                names = [entry.name for entry in islice(entries, most)]
        except OSError as error:
            found.leave_out(os.path.relpath(path, root), _cannot_be_read(error))
            continue
        waiting += [os.path.join(path, name) for name in sorted(names, reverse=True)]


def _consider(path: str, root: str, part: str, found: _Found, policy: ArtifactPolicy) -> None:
    name, real, top = os.path.relpath(path, root), os.path.realpath(path), os.path.join(root, part)
    if real != top and not real.startswith(os.path.join(top, "")):
        found.leave_out(name, f"a link that leads out of {part}")
        return
    try:
        about = os.stat(real)
    except OSError as error:
        found.leave_out(name, _cannot_be_read(error))
        return
    if not stat.S_ISREG(about.st_mode):
        found.leave_out(name, "no file")
    elif len(found.files) >= policy.limit_files:
        found.leave_out(name, f"more than {policy.limit_files} files")
    elif found.bytes + about.st_size > policy.limit_bytes:
        found.leave_out(name, f"more than {policy.limit_bytes} bytes in all")
    else:
        found.bytes += about.st_size
        found.files.append(_File(name, real, about.st_size))


def _cannot_be_read(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"


def _open(file: _File) -> BinaryIO:
    # Not through a link and not into a pipe, whatever has come there since it was looked at.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(file.path, flags), "rb")


def _whole(file: _File) -> bytes:
    with _open(file) as opened:
        return opened.read(file.size)


async def _pieces(file: _File) -> AsyncGenerator[bytes, None]:
    left = file.size
    with _open(file) as opened:
        while piece := await _aside(partial(opened.read, min(_PIECE_BYTES, left))):
            left -= len(piece)
            yield piece


async def _aside(work: Callable[[], ResultT]) -> ResultT:
    """Do what may block in a thread; if there is none to be had, it still has to be done."""
    try:
        return await asyncio.to_thread(work)
    except RuntimeError:
        return work()
