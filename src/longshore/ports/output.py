"""The output log: what attempts print and log while they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

CHUNK_LIMIT_BYTES = 256 * 1024
"""The data of one chunk has at most this size."""


class Stream(StrEnum):
    """The source of a chunk of output."""

    STDOUT = "stdout"
    STDERR = "stderr"
    LOG = "log"  # logged by the task through its context
    LOST = "lost"  # a marker: output up to its ``last`` sequence was lost


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChunk:
    """A chunk of output; sequences count from 1 within an attempt."""

    attempt: int
    sequence: int
    at: datetime
    stream: Stream
    data: bytes
    last: int | None = None  # the last sequence that a marker covers

    @property
    def end(self) -> int:
        """The last sequence that this chunk covers."""
        return self.sequence if self.last is None else self.last


@dataclass(frozen=True, slots=True, order=True)
class OutputPosition:
    """A position in a task's output: everything up to this chunk has been read."""

    attempt: int = 0
    sequence: int = 0


OUTPUT_START = OutputPosition()


class OutputLog(Protocol):
    """An ordered stream per task: by attempt, then by sequence."""

    async def append(self, task_id: str, chunks: Sequence[OutputChunk]) -> None:
        """Store chunks; a chunk whose attempt and sequence are already stored changes nothing.

        An attempt has one writer. It appends in order, and repeats an append whose outcome is
        unknown before it appends more.
        """
        ...

    async def read(
        self, task_id: str, *, after: OutputPosition = OUTPUT_START, limit: int = 1000
    ) -> list[OutputChunk]:
        """Returns chunks after a position, in order.

        Writers append in order: a reader that continues after a position does not see a chunk that
        is later stored before it.
        """
        ...

    async def wait_for_output(
        self, task_id: str, *, after: OutputPosition, timeout: timedelta
    ) -> bool:
        """Returns True as soon as there is output after the position, False after ``timeout``."""
        ...
