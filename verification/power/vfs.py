"""A SQLite VFS that records writes.

It forwards every call to SQLite's default VFS and records what changes the database, its
write-ahead log or its journal. The default VFS syncs the folder of a log or journal by itself, with
the first sync of each handle that may have created one. Shared memory is left out: the first
process that opens the database rebuilds it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from verification.power.operations import Resized, Synced, Wrote
from verification.power.recorder import Recorder

_NAME = "longshore-power"
_RECORDED_FLAGS = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
_LOG_FLAGS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL


@contextlib.contextmanager
def record_sqlite(recorder: Recorder) -> Iterator[None]:
    """Record connections that are opened in this context; close them before it ends."""
    vfs = _RecordingVfs(recorder)
    try:
        yield
    finally:
        vfs.unregister()


class _RecordingVfs(apsw.VFS):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._base = apsw.vfs_names()[0]  # the default until now
        super().__init__(_NAME, self._base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or not flags[0] & _RECORDED_FLAGS:
            return apsw.VFSFile(self._base, name, flags)
        open_flags = flags[0]
        exists = Path(path).exists()
        file = _RecordedVfsFile(self._base, name, flags, self._recorder)
        node = self._recorder.node(path) if exists else self._recorder.record_created(path)
        if node is None:
            return file
        names_folder = bool(open_flags & _LOG_FLAGS and open_flags & apsw.SQLITE_OPEN_CREATE)
        file.attach(node, path if names_folder else None)
        return file

    def xDelete(self, name: str, sync_folder: bool) -> None:  # noqa: FBT001, N802
        super().xDelete(name, sync_folder)
        is_recorded = self._recorder.node(name) is not None
        self._recorder.record_removed(name)
        if is_recorded and sync_folder:
            self._recorder.record_folder_sync(name)


class _RecordedVfsFile(apsw.VFSFile):
    def __init__(self, base: str, name: Any, flags: list[int], recorder: Recorder) -> None:
        super().__init__(base, name, flags)
        self._recorder = recorder
        self._node: int | None = None
        self._unsynced_path: str | None = None  # its path, until its folder is synced

    def attach(self, node: int, unsynced_path: str | None) -> None:
        self._node, self._unsynced_path = node, unsynced_path

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        if self._node is not None:
            self._recorder.record(Wrote(self._node, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        if self._node is not None:
            self._recorder.record(Resized(self._node, size))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        if self._node is None:
            return
        self._recorder.record(Synced(self._node))
        if self._unsynced_path is not None:
            self._recorder.record_folder_sync(self._unsynced_path)
            self._unsynced_path = None
