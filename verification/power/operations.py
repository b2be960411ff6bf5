"""What a program asks of a file system, one operation after the other.

Files and folders go by a number, given when they are made: names come and go, and a file that is
open is still the same when it is called something else.
"""

from __future__ import annotations

from dataclasses import dataclass

ROOT = 0  # the folder above everything; it was there before


@dataclass(frozen=True, slots=True)
class Created:
    """A file or folder got its first name."""

    folder: int
    name: str
    node: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class Wrote:
    """Bytes went into a file."""

    node: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    """A file was given a length."""

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
    """A name was taken away."""

    folder: int
    name: str


@dataclass(frozen=True, slots=True)
class Synced:
    """What a file contains, or which names a folder has, is on disk."""

    node: int


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The machine was shut down in an orderly way: everything is on disk."""


DiskOperation = Created | Wrote | Resized | Renamed | Removed | Synced | ShutDown
