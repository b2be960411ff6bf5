"""What a child may use up, and how far it is kept apart from the others.

The kernel holds a process to most of these by itself; the guard of an attempt holds all processes
of it together to the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Isolation(StrEnum):
    """How an attempt gets its process."""

    FORK = "fork"  # one child an attempt, copied from a process that has everything loaded
    POOL = "pool"  # one child for many attempts of small functions that are trusted
    SPAWN = "spawn"  # one child an attempt, started cold


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """None: as much as the machine gives."""

    cpu: timedelta | None = None  # of each process, in whole seconds
    memory_bytes: int | None = None  # of all processes of the attempt together
    open_files: int | None = None  # of each process
    file_bytes: int | None = None  # of each file that is written

    def __post_init__(self) -> None:
        if self.cpu is not None and self.cpu < timedelta(seconds=1):
            message = "cpu must be at least one second"
            raise ValueError(message)
        for name, least in _MINIMUMS.items():
            value = getattr(self, name)
            if value is not None and value < least:
                message = f"{name} must be at least {least}"
                raise ValueError(message)


# Below these no child can even start: they are mistakes of a unit.
_MINIMUMS = {"memory_bytes": 16 * 1024 * 1024, "open_files": 16, "file_bytes": 1}
UNLIMITED = ResourceLimits()
