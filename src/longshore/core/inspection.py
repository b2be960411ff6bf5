"""Values that commands show of an installation: checks, facts of a store, deployment progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from longshore.core.queues import QueueDepth


class CheckStatus(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """A check and its result."""

    name: str
    status: CheckStatus
    detail: str
    expected: str | None = None  # instead of the actual value
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """A store as it is; inspecting it changes nothing."""

    inspected_at: datetime
    engine: str  # such as "SQLite 3.51.3"
    engine_path: str  # of its library
    engine_trusted: bool  # False: this version can corrupt the file
    folder: Path
    exists: bool  # False: nothing is stored yet, and the other fields are empty
    file_system: str | None = None  # None: unknown
    local: bool = True  # False: on a network file system, which is refused
    size_bytes: int = 0
    schema: int = 0
    supported_schema: int = 0
    damage: str | None = None
    ended_jobs: int = 0
    oldest_end: datetime | None = None  # of these jobs
    unreadable: str | None = None  # why its content is unknown: nothing says that it is damaged
    last_event_at: datetime | None = None  # of the last event that was recorded
    queues: tuple[tuple[str, QueueDepth], ...] = ()
    stale_wakeups: int = 0  # left behind by processes that were killed


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupFacts:
    """What is in a backup; its manifest."""

    created_at: datetime
    version: str  # of Longshore
    schema: int
    epoch: int
    jobs: int
    tasks: int
    blobs: int  # files beside the database
    missing_blobs: int  # which the store should have and has not
    size_bytes: int  # of all files in the backup, without the checksums


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFacts:
    """A restored store, and what has been changed in it."""

    backup: BackupFacts
    restored_at: datetime
    folder: Path
    epoch: int
    leases_ended: int  # of workers of the store that was backed up
    key_file: Path


ReportBytes = Callable[[int, int], None]
"""Takes how many bytes are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudAccount:
    """The account and region of an installation."""

    id: str
    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """The state of a stack."""

    name: str
    full_name: str
    status: str | None  # None: it does not exist
    changed_at: datetime | None = None
    protected: bool = False
    outputs: Mapping[str, str]


ReportProgress = Callable[[str], None]
"""Takes the lines that say how far a deployment is."""
