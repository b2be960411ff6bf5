"""Output of an attempt: numbers what the child prints and stores it in batches.

Each chunk gets a sequence, from 1. Output that cannot be stored (over the limit, or the log stays
unavailable) is replaced by a marker that covers its sequences, so that readers know about the gap.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import timedelta

from longshore.core.events.types import NO_USAGE, Activity, Usage
from longshore.core.tasks.rows import TaskRow
from longshore.errors import BackendError
from longshore.ports.clock import Clock
from longshore.ports.output import CHUNK_LIMIT_BYTES, OutputChunk, OutputLog, Stream
from longshore.ports.runner import (
    ActivityReport,
    ChildReport,
    OutputReport,
    ProgressReport,
    SummaryReport,
)
from longshore.services.resilience import retry_unavailable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPolicy:
    """How output is batched and limited."""

    flush_after: timedelta = timedelta(milliseconds=50)
    batch_bytes: int = 256 * 1024
    limit_bytes: int = 100 * 1024 * 1024


@dataclass(slots=True)
class OutputPump:
    """Stores the output of one attempt in the output log."""

    log: OutputLog
    clock: Clock
    task_id: str
    attempt: int
    policy: OutputPolicy
    _sequence: int = 0
    _stored: int = 0  # the log has everything up to here
    _bytes: int = 0
    _waiting: list[OutputChunk] = field(default_factory=list)  # in order
    _waiting_bytes: int = 0
    _over_limit_from: int | None = None  # everything from here on exceeds the limit
    _timer: asyncio.Task[None] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def last_sequence(self) -> int | None:
        """The sequence of the last chunk so far; None if there was none."""
        return self._sequence or None

    @property
    def last_stored(self) -> int | None:
        """The sequence up to which everything is stored; None if nothing is."""
        return self._stored or None

    async def add(self, stream: Stream, data: bytes) -> None:
        """Add a chunk, or several; stored soon, at the latest when ``finish`` returns."""
        if len(data) > CHUNK_LIMIT_BYTES:
            for at in range(0, len(data), CHUNK_LIMIT_BYTES):
                await self.add(stream, data[at : at + CHUNK_LIMIT_BYTES])
            return
        self._sequence += 1
        self._bytes += len(data)
        if self._bytes > self.policy.limit_bytes:
            self._over_limit_from = self._over_limit_from or self._sequence
            return
        self._waiting.append(
            OutputChunk(
                attempt=self.attempt,
                sequence=self._sequence,
                at=self.clock.now(),
                stream=stream,
                data=data,
            )
        )
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= self.policy.batch_bytes:
            await self.flush()
        elif self._timer is None:
            self._timer = asyncio.ensure_future(self._flush_later())

    async def _flush_later(self) -> None:
        await self.clock.sleep(self.policy.flush_after)
        self._timer = None
        await self.flush()

    async def flush(self) -> None:
        """Store the waiting chunks in order; if that fails, a marker waits in their place."""
        async with self._lock:
            batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
            if not batch:
                return
            try:
                await retry_unavailable(self.clock, lambda: self.log.append(self.task_id, batch))
                self._stored = batch[-1].end
            except Exception as error:  # no error of the log may leave a gap
                unexpected = not isinstance(error, BackendError)
                logger.warning("output.lost", extra={"error": str(error)}, exc_info=unexpected)
                self._waiting[:0] = self._markers_for(batch)

    def _markers_for(self, batch: list[OutputChunk]) -> list[OutputChunk]:
        """Returns a marker for the chunks of a batch, and the markers of earlier batches.

        Markers are not joined: if the log stored a batch and only the answer was lost, it ignores
        the marker of that batch, so the marker must not cover anything else.
        """
        markers = [entry for entry in batch if entry.stream is Stream.LOST]
        printed = [entry for entry in batch if entry.stream is not Stream.LOST]
        if printed:
            markers.append(self._marker(printed[0].sequence, printed[-1].sequence))
        return markers

    def _marker(self, first: int, last: int) -> OutputChunk:
        return OutputChunk(
            attempt=self.attempt,
            sequence=first,
            at=self.clock.now(),
            stream=Stream.LOST,
            data=b"",
            last=last,
        )

    async def finish(self) -> None:
        """Store the rest, and markers for chunks that were not stored, as far as possible now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.flush()
        if self._over_limit_from is not None:
            self._waiting.append(self._marker(self._over_limit_from, self._sequence))
        await self.flush()

    async def settle(self) -> None:
        """Store what is still missing after ``finish``.

        An outcome names the last sequence, so everything up to it must be stored before.

        Raises:
            BackendError: the log is still unavailable, or refuses the chunks.
        """
        async with self._lock:
            if self._waiting:
                await self.log.append(self.task_id, self._waiting)
                self._stored = self._waiting[-1].end
                self._waiting = []


_SUMMARY_LINES = 1_000
_ACTIVITY_CHARACTERS = 200


@dataclass(slots=True)
class AttemptReports:
    """Records the reports of a child; heartbeats show its progress and summaries too."""

    pump: OutputPump
    clock: Clock
    row: TaskRow  # as last read
    activity: Activity = field(default_factory=Activity)
    usage: Usage = NO_USAGE
    summaries: list[str] = field(default_factory=list)
    checkpoint: str | None = None  # of the last step of this attempt
    conversation_parts: int = 0
    deadline_near: asyncio.Event = field(default_factory=asyncio.Event)  # no time for files is left
    error: Exception | None = None  # of the worker, while it recorded reports
    waiting: list[ChildReport] = field(default_factory=list)
    recording: asyncio.Task[None] | None = None  # records the reports that wait

    def update_row(self, row: TaskRow) -> None:
        """Take over a row. Answers may arrive out of order: an older one changes nothing."""
        if row.version > self.row.version:
            self.row = row

    async def record(
        self, report: OutputReport | ActivityReport | ProgressReport | SummaryReport
    ) -> None:
        """Record one report, or add it to the output."""
        match report:
            case OutputReport(stream, data):
                await self.pump.add(stream, data)
            case ActivityReport(activity):
                self.activity = activity
            case ProgressReport():
                await self._log_line("progress", str(report))
            case SummaryReport(text):
                if len(self.summaries) < _SUMMARY_LINES:
                    self.summaries.append(text)
                await self._log_line("summary", text)

    async def _log_line(self, kind: str, text: str) -> None:
        shown = text[:_ACTIVITY_CHARACTERS]
        self.activity = Activity(type=kind, step_name=shown, timestamp=self.clock.now())
        await self.pump.add(Stream.LOG, f"{kind}: {text}\n".encode(errors="replace"))
