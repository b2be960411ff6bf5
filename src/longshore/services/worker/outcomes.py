"""What an attempt leaves, and the commands that report its end.

Steps, the result, files and output are stored before the command that refers to them. All of it is
the same for attempts in child slots and for those with a process of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.core.documents import Document, conversation_part_key, task_document_key
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure, error_text
from longshore.core.tasks.rows import TaskRow
from longshore.errors import BackendUnavailable, NotFound, UsageError
from longshore.ports.output import Stream
from longshore.ports.runner import ConversationReport, StepReport
from longshore.services.resilience import log_and_continue, pauses_within, retry_unavailable
from longshore.services.worker.artifacts import AttemptFiles
from longshore.services.worker.context import WorkerContext
from longshore.services.worker.output import AttemptReports, OutputPump

logger = logging.getLogger(__name__)

# Shown to every tenant of the queue, so it does not name the task that was rate limited.
_REASON = "rate limit of the model's API"


async def hold_queue(context: WorkerContext, row: TaskRow, outcome: Outcome) -> None:
    """Hold the queue of an agent if the attempt met a rate limit with a stated wait."""
    lasts = min(_requested_hold(outcome), context.longest_hold)
    if lasts <= timedelta(0):
        return
    queue, now = row.spec.queue, context.backend.clock.now()
    about = {"queue": queue, "task_id": row.id, "lasts": str(lasts)}
    with log_and_continue(logger, "hold.failed", unavailable="hold.unavailable", **about):
        hold = await context.backend.queue_controls.hold(
            queue, until=now + lasts, by=context.worker_id, reason=_REASON, now=now
        )
        logger.warning("queue.held", extra={**about, "until": str(hold.until)})


def _requested_hold(outcome: Outcome) -> timedelta:
    if not isinstance(outcome, c.AttemptFailed):
        return timedelta(0)
    failure = outcome.failure
    if failure.category is not ErrorCategory.RATE_LIMIT or failure.retry_after is None:
        return timedelta(0)
    return failure.retry_after


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
    files = AttemptFiles(
        blobs=context.backend.blobs,
        clock=context.backend.clock,
        policy=context.artifacts,
        task_id=row.id,
        attempt=row.attempt,
        summaries=reports.summaries,
        # The outcome matters more: storing files must not delay it beyond the lease.
        timeout=context.lease.duration / 3,
    )
    if (note := await files.store(folder, reports.deadline_near)) is not None:
        await reports.pump.add(Stream.LOG, f"longshore: {note}\n".encode())


async def store_output(context: WorkerContext, task_id: str, pump: OutputPump) -> None:
    """Store what is left of an attempt's output, through an outage of the log.

    The outcome names only what is stored, so it is not delayed longer than a lease lasts unless the
    ledger is unavailable, too: both may recover together.
    """
    clock, lasts = context.backend.clock, context.lease.duration
    ledger = context.transitions
    try:
        try:
            await retry_unavailable(
                clock, pump.settle, pauses_within(clock, lasts), task_id=task_id
            )
        except BackendUnavailable:
            await retry_unavailable(
                clock, lambda: ledger.read(task_id), pauses_within(clock, lasts), task_id=task_id
            )
            await retry_unavailable(clock, pump.settle, task_id=task_id)
    except Exception:  # an error of the output log must not cost the work
        logger.exception("output.abandoned", extra={"task_id": task_id})
