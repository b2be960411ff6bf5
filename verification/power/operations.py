"""The operations of a program on a file system.

Files and folders have a number from their creation, because an open file stays the same file when
its name changes.
"""

from __future__ import annotations

from dataclasses import dataclass

ROOT = 0  # the root folder, which exists before the recording


@dataclass(frozen=True, slots=True)
class Created:
    """A file or folder got its first name."""

    folder: int
    name: str
    node: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class Wrote:
    """Bytes were written to a file."""

    node: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    """The length of a file was set."""

    node: int
    size: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """A file or folder got another name in the same folder."""

    folder: int
    old: str
    new: str
    node: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A name was removed."""

    folder: int
    name: str


@dataclass(frozen=True, slots=True)
class Synced:
    """The content of a file, or the names in a folder, were synced."""

    node: int


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The machine was shut down in an orderly way: everything is on disk."""


DiskOperation = Created | Wrote | Resized | Renamed | Removed | Synced | ShutDown
