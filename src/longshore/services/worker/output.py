"""What an attempt leaves: its output, what it reported, and its documents and files.

All of it is stored before the command that refers to it, and is the same for attempts in child
slots and for those with a process of their own.

Each chunk of output gets a sequence, from 1. Output that cannot be stored (over the limit, or the
log stays unavailable) is replaced by a marker that covers its sequences, so that readers know about
the gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.core.documents import Document, conversation_part_key, task_document_key
from longshore.core.events.types import NO_USAGE, Activity, Usage
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure, error_text
from longshore.core.tasks.rows import TaskRow
from longshore.errors import BackendError, BackendUnavailable, NotFound, UsageError
from longshore.ports.output import CHUNK_LIMIT_BYTES, OutputChunk, Stream
from longshore.ports.runner import (
    ActivityReport,
    ChildReport,
    ConversationReport,
    OutputReport,
    ProgressReport,
    StepReport,
    SummaryReport,
)
from longshore.services.resilience import log_and_continue, pauses_within, retry_unavailable
from longshore.services.worker.artifacts import AttemptFiles
from longshore.services.worker.context import WorkerContext

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OutputPump:
    """Stores the output of one attempt in the output log."""

    context: WorkerContext
    task_id: str
    attempt: int
    _sequence: int = 0
    _stored: int = 0  # the log has everything up to here
    _bytes: int = 0
    _waiting: list[OutputChunk] = field(default_factory=list)  # in order
    _waiting_bytes: int = 0
    _over_limit_from: int | None = None  # everything from here on exceeds the limit
    _timer: asyncio.Task[None] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

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
        policy = self.context.output
        if self._bytes > policy.limit_bytes:
            self._over_limit_from = self._over_limit_from or self._sequence
            return
        self._waiting.append(self._chunk(self._sequence, stream, data))
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= policy.batch_bytes:
            await self.flush()
        elif self._timer is None:
            self._timer = asyncio.ensure_future(self._flush_later())

    async def _flush_later(self) -> None:
        await self.context.backend.clock.sleep(self.context.output.flush_after)
        self._timer = None
        await self.flush()

    async def flush(self) -> None:
        """Store the waiting chunks in order; if that fails, a marker waits in their place."""
        clock, log = self.context.backend.clock, self.context.backend.output
        async with self._lock:
            batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
            if not batch:
                return
            try:
                await retry_unavailable(clock, lambda: log.append(self.task_id, batch))
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
            first, last = printed[0].sequence, printed[-1].sequence
            markers.append(self._chunk(first, Stream.LOST, last=last))
        return markers

    def _chunk(
        self, sequence: int, stream: Stream, data: bytes = b"", *, last: int | None = None
    ) -> OutputChunk:
        return OutputChunk(
            attempt=self.attempt,
            sequence=sequence,
            at=self.context.backend.clock.now(),
            stream=stream,
            data=data,
            last=last,
        )

    async def finish(self) -> None:
        """Store the rest, and markers for chunks that were not stored, as far as possible now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.flush()
        if self._over_limit_from is not None:
            first, last = self._over_limit_from, self._sequence
            self._waiting.append(self._chunk(first, Stream.LOST, last=last))
        await self.flush()

    async def settle(self) -> None:
        """Store what is still missing after ``finish``.

        An outcome names the last sequence, so everything up to it must be stored before.

        Raises:
            BackendError: the log is still unavailable, or refuses the chunks.
        """
        async with self._lock:
            if self._waiting:
                await self.context.backend.output.append(self.task_id, self._waiting)
                self._stored = self._waiting[-1].end
                self._waiting = []


_SUMMARY_LINES = 1_000
_ACTIVITY_CHARACTERS = 200


@dataclass(slots=True)
class AttemptReports:
    """Records the reports of a child; heartbeats show its progress and summaries too."""

    pump: OutputPump
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
        now = self.pump.context.backend.clock.now()
        self.activity = Activity(type="step_running", step_name=shown, timestamp=now)
        await self.pump.add(Stream.LOG, f"{kind}: {text}\n".encode(errors="replace"))


Outcome = c.Complete | c.AttemptFailed | c.TimeOut | c.ConfirmCancel | c.Release | c.Park
"""The commands that end an attempt."""

# Long enough for another worker to claim the task, in case this worker is broken.
_RETRY_AFTER_WORKER_ERROR = timedelta(seconds=10)
STOPPING = "the worker stops"


def worker_failure(error: Exception) -> Failure:
    """The failure of an attempt whose worker failed."""
    return Failure(
        category=ErrorCategory.CRASH,
        message=error_text(f"the worker failed: {type(error).__name__}: {error}"),
        retry_after=_RETRY_AFTER_WORKER_ERROR,
    )


def failed_before_start(error: Exception) -> Failure:
    """The failure of an attempt for which something could not be read."""
    match error:
        case UsageError() | NotFound():
            return _failure(ErrorCategory.VALIDATION, error)
        case BackendUnavailable():
            return _failure(ErrorCategory.NETWORK, error)
        case _:
            return worker_failure(error)


def _failure(category: ErrorCategory, error: Exception) -> Failure:
    return Failure(category=category, message=error_text(str(error)))


async def store_step(
    context: WorkerContext, row: TaskRow, fence: int, step: StepReport, *, previous: str | None
) -> c.SaveCheckpoint:
    """Store the result of a step. Returns the command that records it.

    Args:
        previous: The checkpoint of the step before.
    """
    number = context.transitions.new_id()
    key = task_document_key(row.spec.job_id, row.spec.key, f"steps/{fence}-{number}")
    document = {"step": step.name, "result": step.result, "previous": previous}
    await context.transitions.retry_unavailable(lambda: context.documents.store_key(key, document))
    return c.SaveCheckpoint(fence=fence, key=key)


async def store_conversation(
    context: WorkerContext, row: TaskRow, report: ConversationReport, number: int
) -> None:
    """Store a part of a conversation. If that fails, the next attempt may have to pay for it again.

    Args:
        number: Counts the parts of the attempt, from 1.
    """
    spec = row.spec
    key = conversation_part_key(spec.job_id, spec.key, attempt=row.attempt, number=number)
    part = {"session": report.conversation, "revision": row.revision, "entries": report.entries}
    with log_and_continue(logger, "conversation.store_failed", task_id=row.id):
        await context.transitions.retry_unavailable(lambda: context.documents.store_key(key, part))


async def store_result(
    context: WorkerContext, row: TaskRow, store: Callable[..., Awaitable[Document]], result: Any
) -> Document | Failure:
    """Store a result, through an outage; one that cannot be stored is a failure.

    Args:
        store: A method of ``DocumentStore``.
    """
    key = task_document_key(row.spec.job_id, row.spec.key, f"result-{row.attempt}")
    clock, limit = context.backend.clock, context.result_limit_bytes
    pauses = pauses_within(clock, context.lease.duration)
    try:
        return await retry_unavailable(
            clock, lambda: store(result, key, limit_bytes=limit), pauses, task_id=row.id
        )
    except (ValueError, UsageError) as error:
        return _failure(ErrorCategory.PARSE, error)


async def store_files(
    context: WorkerContext, row: TaskRow, reports: AttemptReports, folder: Path | None
) -> None:
    """Store the files in an attempt's folder if there is time, and log which are missing."""
    files = AttemptFiles(context, row.id, row.attempt, reports.summaries)
    if (note := await files.store(folder, reports.deadline_near)) is not None:
        await reports.pump.add(Stream.LOG, f"longshore: {note}\n".encode())


async def store_output(context: WorkerContext, task_id: str, pump: OutputPump) -> bool:
    """Store what is left of an attempt's output, through an outage of the log.

    The outcome names only what is stored, so it is not delayed longer than a lease lasts unless the
    ledger is unavailable, too: both may recover together.

    Returns False if neither recovers: then it is unknown what is stored, and no outcome may say so.
    """
    clock, lasts = context.backend.clock, context.lease.duration
    ledger = context.transitions
    try:
        try:
            await retry_unavailable(
                clock, pump.settle, pauses_within(clock, lasts), task_id=task_id
            )
        except BackendUnavailable:
            pauses = pauses_within(clock, 2 * lasts)
            try:
                await retry_unavailable(
                    clock, lambda: ledger.read(task_id), pauses, task_id=task_id
                )
            except BackendUnavailable:
                return False
            await retry_unavailable(clock, pump.settle, task_id=task_id)
    except Exception:  # an error of the output log must not cost the work
        logger.exception("output.abandoned", extra={"task_id": task_id})
    return True


# Shown to every tenant of the queue, so it does not name the task that was rate limited.
_HOLD_REASON = "rate limit of the model's API"


async def hold_queue(context: WorkerContext, row: TaskRow, outcome: Outcome) -> None:
    """Hold the queue of an agent if the attempt met a rate limit with a stated wait."""
    failure = outcome.failure if isinstance(outcome, c.AttemptFailed) else None
    if failure is None or failure.category is not ErrorCategory.RATE_LIMIT:
        return
    lasts = min(failure.retry_after or timedelta(0), context.longest_hold)
    if lasts <= timedelta(0):
        return
    queue, now = row.spec.queue, context.backend.clock.now()
    about = {"queue": queue, "task_id": row.id, "lasts": str(lasts)}
    with log_and_continue(logger, "hold.failed", unavailable="hold.unavailable", **about):
        hold = await context.backend.queue_controls.hold(
            queue, until=now + lasts, by=context.worker_id, reason=_HOLD_REASON, now=now
        )
        logger.warning("queue.held", extra={**about, "until": str(hold.until)})
