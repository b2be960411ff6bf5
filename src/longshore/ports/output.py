"""The output log: what attempts print and report while they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol


class Stream(StrEnum):
    """Where a piece of output came from."""

    STDOUT = "stdout"
    STDERR = "stderr"
    LOG = "log"  # said by the task through its channel
    LOST = "lost"  # a marker: output up to its ``last`` sequence could not be kept


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChunk:
    """One piece of output; sequences count from 1 within an attempt."""

    attempt: int
    sequence: int
    at: datetime
    stream: Stream
    data: bytes
    last: int | None = None  # a marker covers the sequences up to here

    @property
    def end(self) -> int:
        """The last sequence that this entry stands for."""
        return self.sequence if self.last is None else self.last


@dataclass(frozen=True, slots=True, order=True)
class OutputPosition:
    """A place in a task's output: everything up to this entry has been seen."""

    attempt: int = 0
    sequence: int = 0


OUTPUT_START = OutputPosition()


class OutputLog(Protocol):
    """An ordered stream a task: by attempt, then by sequence."""

    async def append(self, task_id: str, chunks: Sequence[OutputChunk]) -> None:
        """Store entries; one whose attempt and sequence are stored already changes nothing.

        An attempt has one writer. It appends in order, and repeats an append whose outcome is
        unknown before it appends more.
        """
        ...

    async def read(
        self, task_id: str, *, after: OutputPosition = OUTPUT_START, limit: int = 1000
    ) -> list[OutputChunk]:
        """Entries after a place, in order. What is appended late at an earlier place than one
        already read is not seen by a reader that goes on from there, so writers append in order."""
        ...

    async def wait_for_output(
        self, task_id: str, *, after: OutputPosition, timeout: timedelta
    ) -> bool:
        """Return True as soon as there is something after the place, False after ``wait``."""
        ...
