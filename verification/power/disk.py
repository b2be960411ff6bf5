"""A disk that keeps only the guarantees of POSIX: after a power loss, synced data is there.

Any other operation may be lost independently of the others. A write since the last sync of its file
may be lost, stored, or torn at a sector; a file may have grown without the written bytes; a change
of a folder's names may be lost. A sync of a file does not sync its name, which belongs to the
folder. Real file systems lose less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from verification.power.operations import (
    ROOT,
    Created,
    DiskOperation,
    Removed,
    Renamed,
    Resized,
    ShutDown,
    Synced,
    Wrote,
)

SECTOR = 512


@dataclass(slots=True)
class _File:
    content: bytes = b""  # surely on disk
    pending: list[Wrote | Resized] = field(default_factory=list)

    def sync(self) -> None:
        if self.pending:
            content = bytearray(self.content)
            for change in self.pending:
                _apply(content, change)
            self.content = bytes(content)
            self.pending.clear()


@dataclass(slots=True)
class _Folder:
    names: dict[str, int] = field(default_factory=dict)  # surely on disk
    pending: list[Created | Renamed | Removed] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            _rename(self.names, change)
        self.pending.clear()


@dataclass(frozen=True, slots=True)
class LossProfile:
    """How likely it is that an unsynced operation is on disk nevertheless."""

    names: float  # a change of a folder's names
    writes: float  # a write to a file
    torn: float  # a stored write has only some of its sectors
    grown: float  # the length of a file without the written bytes

    @classmethod
    def draw(cls, rng: Random) -> LossProfile:
        """Draw a profile: everything lost, nothing lost, or in between."""

        def likelihood() -> float:
            return rng.choice((0.0, 0.0, 1.0, rng.random(), rng.random()))

        names, writes = likelihood(), likelihood()
        if rng.random() < 0.25:
            # The simplest case, which finds most bugs.
            return cls(names=0.0, writes=0.0, torn=0.0, grown=0.0)
        return cls(names=names, writes=writes, torn=likelihood() * 0.5, grown=likelihood())


@dataclass(slots=True)
class DiskImage:
    """The disk after the power loss: file contents by path, and folders."""

    files: dict[str, bytes] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    torn: int = 0  # partly stored writes
    lost: int = 0  # lost writes and changes of names

    def write_to(self, folder: Path) -> None:
        """Write the files and folders below a folder."""
        for path in self.folders:
            (folder / path).mkdir(mode=0o700)
        for path, content in self.files.items():
            (folder / path).write_bytes(content)


class Disk:
    """A disk after some operations."""

    def __init__(self) -> None:
        self._nodes: dict[int, _File | _Folder] = {ROOT: _Folder()}

    def apply(self, operation: DiskOperation) -> None:
        match operation:
            case Created():
                self._nodes[operation.node] = _Folder() if operation.is_folder else _File()
                self._folder(operation.folder).pending.append(operation)
            case Renamed() | Removed():
                self._folder(operation.folder).pending.append(operation)
            case Wrote() | Resized():
                self._file(operation.node).pending.append(operation)
            case Synced():
                self._nodes[operation.node].sync()
            case ShutDown():
                for node in self._nodes.values():
                    node.sync()

    def _folder(self, number: int) -> _Folder:
        node = self._nodes[number]
        assert isinstance(node, _Folder)
        return node

    def _file(self, number: int) -> _File:
        node = self._nodes[number]
        assert isinstance(node, _File)
        return node

    def cut(self, profile: LossProfile, rng: Random) -> DiskImage:
        """Draw the image that a power loss leaves now."""
        left = DiskImage()
        self._collect(ROOT, "", left, profile, rng)
        return left

    def _collect(
        self, number: int, path: str, image: DiskImage, profile: LossProfile, rng: Random
    ) -> None:
        names = dict(self._folder(number).names)
        for change in self._folder(number).pending:
            if rng.random() < profile.names:
                _rename(names, change)
            else:
                image.lost += 1
        for name, below in sorted(names.items()):
            child_path = f"{path}{name}"
            node = self._nodes[below]
            if isinstance(node, _Folder):
                image.folders.append(child_path)
                self._collect(below, f"{child_path}/", image, profile, rng)
            else:
                image.files[child_path] = _content(node, image, profile, rng)


def _rename(names: dict[str, int], change: Created | Renamed | Removed) -> None:
    match change:
        case Created():
            names[change.name] = change.node
        case Renamed():
            if names.get(change.old) == change.node:
                del names[change.old]
            names[change.new] = change.node
        case Removed():
            names.pop(change.name, None)


def _apply(content: bytearray, change: Wrote | Resized) -> None:
    if isinstance(change, Resized):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    content.extend(bytes(max(change.offset - len(content), 0)))
    content[change.offset : change.offset + len(change.data)] = change.data


def _content(file: _File, image: DiskImage, profile: LossProfile, rng: Random) -> bytes:
    if not file.pending:
        return file.content
    content = bytearray(file.content)
    for change in file.pending:
        if rng.random() >= profile.writes:
            image.lost += 1
            _grow(content, change, profile, rng)
        elif isinstance(change, Wrote) and rng.random() < profile.torn:
            image.torn += 1
            _grow(content, change, profile, rng)
            for piece in _sectors(change):
                if rng.random() < 0.5:
                    _apply(content, piece)
        else:
            _apply(content, change)
    return bytes(content)


def _grow(content: bytearray, change: Wrote | Resized, profile: LossProfile, rng: Random) -> None:
    """Draw whether the file has grown without the bytes."""
    if isinstance(change, Wrote) and rng.random() < profile.grown:
        missing = max(change.offset + len(change.data) - len(content), 0)
        content.extend(rng.randbytes(missing) if rng.random() < 0.3 else bytes(missing))


def _sectors(write: Wrote) -> Iterator[Wrote]:
    """Split a write at sector boundaries."""
    start, end = write.offset, write.offset + len(write.data)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        yield Wrote(write.node, start, write.data[start - write.offset : stop - write.offset])
        start = stop
