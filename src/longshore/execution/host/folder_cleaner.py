"""Removes the folders of attempts in a thread: a busy disk takes milliseconds for each."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from longshore.adapters.shared.failpoints import reach

# A thread costs more than an empty folder: folders that end within this time are removed together.
_BATCH_DELAY_S = 0.05


class FolderCleaner:
    """Removes folders.

    Args:
        keep: Remove nothing.
    """

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self._pending: set[Path] = set()
        self._removal: asyncio.Future[None] | None = None
        self._closing = asyncio.Event()

    def remove_now(self, folder: Path) -> None:
        """Remove a folder in which nothing has run; blocks the event loop."""
        if not self.keep:
            _remove((folder,))

    async def remove(self, folder: Path) -> None:
        """Remove the folder and its content; returns when it is removed."""
        if not self.keep:
            await _remove_in_thread((folder,))

    def remove_later(self, folder: Path) -> None:
        """Remove a folder and its content a moment later, together with others."""
        if not self.keep:
            self._pending.add(folder)
            if self._removal is None:
                self._removal = asyncio.ensure_future(self._remove_pending())

    async def _remove_pending(self) -> None:
        while self._pending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BATCH_DELAY_S):
                    await self._closing.wait()
            folders, self._pending = self._pending, set()
            await _remove_in_thread(folders)
        self._removal = None

    async def remove_stale(self, folder: Path, pattern: str, *, before: datetime) -> None:
        """Remove folders in which no file was created or removed since ``before``."""
        if not self.keep:
            await _remove_in_thread(_stale_folders(folder, pattern, before.timestamp()))

    async def close(self) -> None:
        """Return when every pending folder is removed."""
        self._closing.set()
        if self._removal is not None:
            await asyncio.shield(self._removal)


def _stale_folders(folder: Path, pattern: str, before_s: float) -> list[Path]:
    return [path for path in folder.glob(pattern) if _last_used(path) < before_s]


def _last_used(folder: Path) -> float:
    """Returns the latest modification time of the folder and its direct entries."""
    try:
        return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return math.inf  # another process is removing it


async def _remove_in_thread(folders: Collection[Path]) -> None:
    try:
        await asyncio.to_thread(_remove, folders)
    except RuntimeError:
        _remove(folders)  # no thread can be started


def _remove(folders: Collection[Path]) -> None:
    for folder in folders:
        reach("attempt.folder_removing")
        try:
            os.rmdir(folder)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
        reach("attempt.folder_removed")
