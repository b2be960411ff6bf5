"""Records the file-system operations below one folder, in order, while they are carried out.

SQLite writes through ``vfs``; all other code writes through ``os``, of which a few functions are
replaced during a recording. Locks, pipes and shared memory do not outlive a power loss and are not
recorded.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from verification.power.operations import (
    ROOT,
    Created,
    DiskOperation,
    Removed,
    Renamed,
    Resized,
    Synced,
    Wrote,
)


class Recorder:
    """The operations so far, and the number of each file and folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.log: list[DiskOperation] = []
        self._nodes: dict[str, int] = {str(self.root): ROOT}
        self._node_count = 0
        self._lock = threading.Lock()

    @property
    def position(self) -> int:
        """The number of operations so far."""
        return len(self.log)

    def record(self, operation: DiskOperation) -> None:
        self.log.append(operation)

    def node(self, path: Any) -> int | None:
        """The number of the file or folder at a path, or None if it is not recorded."""
        return self._nodes.get(_text(path))

    def record_created(self, path: Any, *, is_folder: bool = False) -> int | None:
        """Record a new file or folder. Returns its number, or None if it is outside the root."""
        folder, name = os.path.split(_text(path))
        with self._lock:
            if (node := self._nodes.get(_text(path))) is not None:
                return node
            if (above := self._nodes.get(folder)) is None:
                return None
            self._node_count += 1
            self._nodes[_text(path)] = self._node_count
            self.record(Created(above, name, self._node_count, is_folder))
            return self._node_count

    def record_renamed(self, old: Any, new: Any) -> None:
        """Record a new name of a file or folder."""
        (folder, was), (to, now) = os.path.split(_text(old)), os.path.split(_text(new))
        with self._lock:
            if (node := self._nodes.pop(_text(old), None)) is None:
                return
            if folder != to:
                message = f"{old} became {new}: a move between folders is not modelled"
                raise NotImplementedError(message)
            self._nodes[_text(new)] = node
            self.record(Renamed(self._nodes[folder], was, now, node))

    def record_removed(self, path: Any) -> None:
        """Record that a name was removed."""
        folder, name = os.path.split(_text(path))
        with self._lock:
            if self._nodes.pop(_text(path), None) is not None:
                self.record(Removed(self._nodes[folder], name))

    def record_folder_sync(self, path: Any) -> None:
        """Record a sync of the folder that contains a path."""
        self.record(Synced(self._nodes[os.path.dirname(_text(path))]))


@contextlib.contextmanager
def patched(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """Replace an attribute for the length of a context."""
    before = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def record_os_calls(recorder: Recorder) -> Iterator[None]:
    """Record writes through ``os``, also those by ``pathlib``."""
    calls = _OsCalls(recorder)
    with contextlib.ExitStack() as stack:
        for name, instead in calls.replacements.items():
            stack.enter_context(patched(os, name, instead))
        yield


class _OsCalls:
    """Functions of ``os`` that also record what they do."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open_files: dict[int, int] = {}  # nodes by descriptor
        self._open, self._close, self._fdopen = os.open, os.close, os.fdopen
        self.replacements: dict[str, Callable[..., Any]] = {
            "open": self.open,
            "close": self.close,
            "fdopen": self.fdopen,
            "fsync": self._recording_sync(os.fsync),
            "fdatasync": self._recording_sync(os.fdatasync),
            "rename": self._recording_rename(os.rename),
            "replace": self._recording_rename(os.replace),
            "unlink": self._recording_remove(os.unlink),
            "remove": self._recording_remove(os.remove),
            "rmdir": self._recording_remove(os.rmdir),
            "mkdir": self._recording_create(os.mkdir),
        }

    def open(self, path: Any, flags: int, mode: int = 0o777, **keywords: Any) -> int:
        descriptor = self._open(path, flags, mode, **keywords)
        create = flags & os.O_CREAT
        node = self._recorder.record_created(path) if create else self._recorder.node(path)
        self._open_files.pop(descriptor, None)
        if node is not None:
            self._open_files[descriptor] = node
            if flags & os.O_TRUNC:
                self._recorder.record(Resized(node, 0))
        return descriptor

    def close(self, descriptor: int) -> None:
        self._open_files.pop(descriptor, None)
        self._close(descriptor)

    def fdopen(self, descriptor: int, mode: str = "r", *rest: Any, **keywords: Any) -> Any:
        node = self._open_files.get(descriptor)
        if node is None or mode != "wb":
            return self._fdopen(descriptor, mode, *rest, **keywords)
        return io.BufferedWriter(_RecordedFile(descriptor, node, self._recorder))

    def _recording_sync(self, sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def syncing(file: Any) -> None:
            sync(file)
            node = self._open_files.get(file if isinstance(file, int) else file.fileno())
            if node is not None:
                self._recorder.record(Synced(node))

        return syncing

    def _recording_rename(self, rename: Callable[..., None]) -> Callable[..., None]:
        def renaming(old: Any, new: Any, **named: Any) -> None:
            rename(old, new, **named)
            self._recorder.record_renamed(old, new)

        return renaming

    def _recording_remove(self, remove: Callable[..., None]) -> Callable[..., None]:
        def removing(path: Any, **named: Any) -> None:
            remove(path, **named)
            self._recorder.record_removed(path)

        return removing

    def _recording_create(self, make: Callable[..., None]) -> Callable[..., None]:
        def making(path: Any, *rest: Any, **named: Any) -> None:
            make(path, *rest, **named)
            self._recorder.record_created(path, is_folder=True)

        return making


class _RecordedFile(io.FileIO):
    """A file that is written from its start to its end."""

    def __init__(self, descriptor: int, node: int, recorder: Recorder) -> None:
        super().__init__(descriptor, "wb")
        self._node = node
        self._recorder = recorder

    def write(self, data: Any) -> int:
        offset = self.seek(0, os.SEEK_CUR)
        count = super().write(data)
        self._recorder.record(Wrote(self._node, offset, bytes(memoryview(data)[:count])))
        return count


def _text(path: Any) -> str:
    # Symbolic links are not resolved.
    return str(os.path.abspath(os.fspath(path)))
