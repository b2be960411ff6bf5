"""What commands show of an installation: checks of a store, and the progress of a deployment.

These are values only. Adapters make them, and interfaces print them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class QueueDepthLike(Protocol):
    """How many messages a queue holds."""

    @property
    def ready(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def dead_letters(self) -> int: ...


class CheckStatus(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: CheckStatus
    detail: str
    expected: str | None = None  # instead of what was found
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """A store as it was found; nothing was changed to find it out."""

    inspected_at: datetime  # when it was looked at
    engine: str  # such as "SQLite 3.51.3"
    engine_path: str  # where its library comes from
    engine_trusted: bool  # False: a version with a fault that can damage the file
    folder: Path
    exists: bool  # False: nothing has been stored yet, and the rest says nothing
    file_system: str | None = None  # None: not known
    local: bool = True  # False: on a network file system, which is refused
    size_bytes: int = 0
    schema: int = 0
    supported_schema: int = 0
    damage: str | None = None
    last_event_at: datetime | None = None  # of the last event that was recorded
    queues: tuple[tuple[str, QueueDepthLike], ...] = ()
    stale_wakeups: int = 0  # left behind by processes that were killed


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudAccount:
    """Whose installation it is, and where."""

    id: str
    region: str
    caller: str  # who asks


class DeployProgressKind(StrEnum):
    """What can be told while it is under way."""

    STARTED = "started"
    WAITING = "waiting"  # for something that was begun before
    RESOURCE = "resource"
    UNCHANGED = "unchanged"
    DONE = "done"
    RETAINED = "retained"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployProgress:
    """Something that has happened on the way."""

    stack: str
    kind: DeployProgressKind
    text: str = ""
    resource: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """One stack as it is now."""

    name: str
    full_name: str
    status: str | None  # None: it is not there
    changed_at: datetime | None = None
    protected: bool = False
    outputs: Mapping[str, str]


ReportProgress = Callable[[DeployProgress], None]
