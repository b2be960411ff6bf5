"""What can be found out about an installation without using it, also when it is damaged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from longshore.ports.queue import Depth


class Mark(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    mark: Mark
    detail: str
    expected: str | None = None  # instead of what was found
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """A store as it was found; nothing was changed to find it out."""

    at: datetime  # when it was looked at
    engine: str  # such as "SQLite 3.51.3"
    engine_path: str  # where its library comes from
    engine_trusted: bool  # False: a version with a fault that can damage the file
    folder: Path
    exists: bool  # False: nothing has been stored yet, and the rest says nothing
    file_system: str | None = None  # None: not known
    local: bool = True  # False: on a network file system, which is refused
    size_bytes: int = 0
    schema: int = 0
    known_schema: int = 0
    damage: str | None = None
    newest_at: datetime | None = None  # of the last event that was recorded
    queues: tuple[tuple[str, Depth], ...] = ()
    stale_bells: int = 0  # left behind by processes that were killed
