"""Removing the folders of attempts, in a thread: a busy disk takes milliseconds for each."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from longshore.failpoints import reach

# A thread costs more than an empty folder: it is woken for all that end in this time.
_TOGETHER_S = 0.05
# With more than that in line the disk does not keep up, and whoever comes next has to wait.
_MOST_IN_LINE = 256


class Cleaner:
    """Removes folders.

    Args:
        keep: Remove nothing.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._in_line: set[Path] = set()
        self._going: set[Path] = set()
        self._removing: asyncio.Future[None] | None = None
        self._closing = asyncio.Event()

    def remove_now(self, folder: Path) -> None:
        """Remove it, and let everybody wait: for one in which nothing has run."""
        if not self._keep:
            _remove((folder,))

    async def remove(self, folder: Path) -> None:
        """Return when it is gone, with all that is in it."""
        if not self._keep:
            await _remove_aside((folder,))

    async def remove_soon(self, folder: Path) -> None:
        """Remove it, with others, in a moment: for an empty one, for which nobody has to wait."""
        if self._keep:
            return
        self._in_line.add(folder)
        if self._removing is None:
            self._removing = asyncio.ensure_future(self._remove_those_in_line())
        if len(self._in_line) > _MOST_IN_LINE:
            await asyncio.shield(self._removing)

    async def _remove_those_in_line(self) -> None:
        while self._in_line:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TOGETHER_S):
                    await self._closing.wait()
            self._going, self._in_line = self._in_line, set()
            await _remove_aside(self._going)
            self._going = set()
        self._removing = None

    async def spare(self, folder: Path) -> None:
        """Return when it can be made and used again."""
        self._in_line.discard(folder)
        if folder in self._going and self._removing is not None:
            await asyncio.shield(self._removing)

    async def remove_forsaken(self, folder: Path, pattern: str, *, before: datetime) -> None:
        """Remove folders in which nobody has made or removed anything since then."""
        if not self._keep:
            await _remove_aside(_forsaken(folder, pattern, before.timestamp()))

    async def close(self) -> None:
        """Return when everything is gone that was to go."""
        self._closing.set()
        if self._removing is not None:
            await asyncio.shield(self._removing)


def _forsaken(folder: Path, pattern: str, before_s: float) -> list[Path]:
    return [one for one in folder.glob(pattern) if _last_used(one) < before_s]


def _last_used(folder: Path) -> float:
    """When it was, as far as it and the folders in it tell."""
    try:
        return max(one.stat().st_mtime for one in (folder, *folder.iterdir()))
    except OSError:
        return math.inf  # somebody else removes it


async def _remove_aside(folders: Collection[Path]) -> None:
    try:
        await asyncio.to_thread(_remove, folders)
    except RuntimeError:
        _remove(folders)  # no thread is to be had, and it still has to be done


def _remove(folders: Collection[Path]) -> None:
    for folder in folders:
        reach("attempt.folder_removing")
        try:
            os.rmdir(folder)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
        reach("attempt.folder_removed")
