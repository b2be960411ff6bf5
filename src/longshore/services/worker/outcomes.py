"""Commands that report the end of an attempt, with its usage and its last output."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from longshore.core.definitions.definition import RunnerKind
from longshore.core.documents import Document
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure, error_text
from longshore.core.tasks.rows import TaskRow
from longshore.ports.runner import AttemptEnding
from longshore.services.resilience import log_and_continue
from longshore.services.worker.budget_check import BudgetStop
from longshore.services.worker.context import AttemptStopReason, WorkerContext
from longshore.services.worker.output import AttemptReports

logger = logging.getLogger(__name__)

# Shown to every tenant of the queue, so it does not name the task that was rate limited.
_REASON = "rate limit of the model's API"


async def hold_queue(
    context: WorkerContext, row: TaskRow, runner: RunnerKind | None, outcome: Outcome
) -> None:
    """Hold the task's queue if the attempt met a rate limit with a stated wait."""
    lasts = min(_requested_hold(runner, outcome), context.longest_hold)
    if lasts <= timedelta(0):
        return
    queue, now = row.spec.queue, context.backend.clock.now()
    about = {"queue": queue, "task_id": row.id, "lasts": str(lasts)}
    with log_and_continue(logger, "hold.failed", unavailable="hold.unavailable", **about):
        hold = await context.backend.queue_controls.hold(
            queue, until=now + lasts, by=context.worker_id, reason=_REASON, now=now
        )
        logger.warning("queue.held", extra={**about, "until": str(hold.until)})


def _requested_hold(runner: RunnerKind | None, outcome: Outcome) -> timedelta:
    if runner is not RunnerKind.AGENT or not isinstance(outcome, c.AttemptFailed):
        return timedelta(0)
    failure = outcome.failure
    if failure.category is not ErrorCategory.RATE_LIMIT or failure.retry_after is None:
        return timedelta(0)
    return failure.retry_after


Outcome = c.Complete | c.AttemptFailed | c.TimeOut | c.ConfirmCancel | c.Release | c.Park
"""The commands that end an attempt."""

# Long enough for another worker to claim the task, in case this worker is broken.
_RETRY_AFTER_WORKER_ERROR = timedelta(seconds=10)
_DEATH_CATEGORIES = frozenset({ErrorCategory.CRASH, ErrorCategory.OUT_OF_MEMORY})


def worker_failure(error: Exception) -> Failure:
    """The failure of an attempt whose worker failed."""
    return Failure(
        category=ErrorCategory.CRASH,
        message=error_text(f"the worker failed: {type(error).__name__}: {error}"),
        retry_after=_RETRY_AFTER_WORKER_ERROR,
    )


@dataclass(slots=True, kw_only=True)
class Outcomes:
    """Builds the command for each way in which an attempt can end."""

    fence: int
    started_at: timedelta
    reports: AttemptReports
    jitter: Callable[[], float]
    _ended_at: timedelta | None = None

    def record_child_end(self) -> None:
        """The child has ended: what the worker does from now on is not part of the duration."""
        self._ended_at = self.reports.clock.elapsed()

    @property
    def _duration(self) -> timedelta:
        return (
            self.reports.clock.elapsed() if self._ended_at is None else self._ended_at
        ) - self.started_at

    @property
    def _facts(self) -> dict[str, Any]:
        """What every outcome has."""
        return {
            "fence": self.fence,
            "usage": self.reports.usage,
            "last_output": self.reports.pump.last_sequence,
        }

    def completed(self, result: Document, exit_code: int | None) -> c.Complete:
        """The attempt ended with a result."""
        return c.Complete(
            result=result,
            duration=self._duration,
            exit_code=exit_code or 0,
            **self._facts,
        )

    def failed(self, failure: Failure) -> c.AttemptFailed:
        """The attempt ended without a result."""
        return c.AttemptFailed(
            failure=failure,
            jitter=self.jitter(),
            duration=self._duration,
            **self._facts,
        )

    def failed_with(self, category: ErrorCategory, error: Exception) -> c.AttemptFailed:
        """The attempt could not start, or its result could not be stored."""
        return self.failed(Failure(category=category, message=error_text(str(error))))

    def worker_error(self, error: Exception) -> c.AttemptFailed:
        """The worker itself failed; another worker may succeed."""
        return self.failed(worker_failure(error))

    def child_failed(self, failure: Failure, ending: AttemptEnding) -> c.AttemptFailed:
        """The child reported a failure or died; the peak memory may explain a death."""
        if failure.category in _DEATH_CATEGORIES and failure.peak_rss_bytes is None:
            failure = replace(failure, peak_rss_bytes=ending.peak_rss_bytes)
        return self.failed(failure)

    def timed_out(self, signal: str, timeout: timedelta) -> c.TimeOut:
        """The attempt exceeded its timeout."""
        return c.TimeOut(
            timeout=timeout,
            elapsed=self._duration,
            signal=signal,
            jitter=self.jitter(),
            **self._facts,
        )

    def stopped(
        self, reason: AttemptStopReason, *, due_at: datetime | None = None
    ) -> Outcome | None:
        """The attempt was asked to stop; None: nothing may be reported.

        Args:
            due_at: The place of a task that had not begun; None: it had begun.
        """
        match reason:
            case AttemptStopReason.CANCELLED:
                return c.ConfirmCancel(**self._facts)
            case AttemptStopReason.DRAINED:
                return self.released("the worker stops", due_at=due_at)
            case AttemptStopReason.FENCED:
                return None

    def parked(self, stop: BudgetStop) -> c.Park:
        """A budget is used up: the task is parked, and the attempt does not count."""
        return c.Park(
            scope=stop.scope,
            unit=stop.exhausted.unit,
            reason=stop.reason,
            until=stop.until,
            allowance=stop.allowance,
            duration=self._duration,
            **self._facts,
        )

    def released(self, reason: str, *, due_at: datetime | None = None) -> c.Release:
        """The task is released unfinished, and the attempt does not count."""
        return c.Release(
            reason=error_text(reason),
            due_at=due_at,
            **self._facts,
        )
