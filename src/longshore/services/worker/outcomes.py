"""The command that reports an attempt's end, with all that is known of the attempt by then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from longshore.core import commands as c
from longshore.core.failures import ErrorCategory, Failure, error_text
from longshore.core.values import Document
from longshore.ports.clock import Clock
from longshore.ports.runner import Ending
from longshore.services.worker.output import OutputPump
from longshore.services.worker.purse import Exhausted
from longshore.services.worker.telling import Telling
from longshore.services.worker.tools import Stop

Outcome = c.Complete | c.AttemptFailed | c.TimeOut | c.ConfirmCancel | c.Release | c.Park
"""What can be reported of an attempt that is over."""

# Long enough for another worker to be found, if it is this one that is not well.
_AFTER_A_FAULT = timedelta(seconds=10)
_DIED = frozenset({ErrorCategory.CRASH, ErrorCategory.OUT_OF_MEMORY})


class Outcomes:
    """One method for each way to end."""

    def __init__(
        self,
        fence: int,
        began: timedelta,
        *,
        told: Telling,
        pump: OutputPump,
        clock: Clock,
        roll: Callable[[], float],
    ) -> None:
        self._fence = fence
        self._began = began
        self._ended: timedelta | None = None
        self._told = told
        self._pump = pump
        self._clock = clock
        self._roll = roll

    def child_ended(self) -> None:
        """From now on only our own work is left, which is not counted as the attempt's."""
        self._ended = self._clock.elapsed()

    @property
    def _duration(self) -> timedelta:
        return (self._clock.elapsed() if self._ended is None else self._ended) - self._began

    def completed(self, result: Document, exit_code: int | None) -> c.Complete:
        """It ended with a result."""
        return c.Complete(
            fence=self._fence,
            result=result,
            duration=self._duration,
            exit_code=exit_code or 0,
            usage=self._told.usage,
            last_output=self._pump.last_sequence,
        )

    def failed(self, failure: Failure) -> c.AttemptFailed:
        """It ended without one."""
        return c.AttemptFailed(
            fence=self._fence,
            failure=failure,
            roll=self._roll(),
            duration=self._duration,
            usage=self._told.usage,
            last_output=self._pump.last_sequence,
        )

    def failed_by(self, category: ErrorCategory, error: Exception) -> c.AttemptFailed:
        """It could not begin, or its result could not be kept."""
        return self.failed(Failure(category=category, message=error_text(str(error))))

    def broken(self, error: Exception) -> c.AttemptFailed:
        """Something broke in the worker that carried it out: another one may fare better."""
        message = error_text(f"the worker broke: {type(error).__name__}: {error}")
        return self.failed(
            Failure(category=ErrorCategory.CRASH, message=message, retry_after=_AFTER_A_FAULT)
        )

    def failed_so(self, failure: Failure, ending: Ending) -> c.AttemptFailed:
        """Its child ended so. Of those who died, the memory they had may be why."""
        if failure.category in _DIED and failure.peak_rss_bytes is None:
            failure = replace(failure, peak_rss_bytes=ending.peak_rss_bytes)
        return self.failed(failure)

    def timed_out(self, signal: str, timeout: timedelta) -> c.TimeOut:
        """Its time was up."""
        return c.TimeOut(
            fence=self._fence,
            timeout=timeout,
            elapsed=self._duration,
            signal=signal,
            roll=self._roll(),
            usage=self._told.usage,
            last_output=self._pump.last_sequence,
        )

    def given_up(self, why: Stop) -> Outcome | None:
        """Somebody wanted it to end; None: nothing may be reported."""
        match why:
            case Stop.CANCELLED:
                return self.cancelled()
            case Stop.DRAINED:
                return self.released("the worker stops")
            case Stop.FENCED:
                return None

    def cancelled(self) -> c.ConfirmCancel:
        """A user wanted it to end."""
        return c.ConfirmCancel(
            fence=self._fence,
            usage=self._told.usage,
            last_output=self._pump.last_sequence,
        )

    def parked(self, exhausted: Exhausted) -> c.Park:
        """A budget is used up: it rests, and costs none of the task's attempts."""
        return c.Park(
            fence=self._fence,
            scope=exhausted.scope,
            reason=exhausted.reason,
            until=exhausted.until,
            allowance=exhausted.allowance,
            duration=self._duration,
            usage=self._told.usage,
            last_output=self._pump.last_sequence,
        )

    def released(self, reason: str) -> c.Release:
        """It is given back unfinished, and costs none of the task's attempts."""
        return c.Release(
            fence=self._fence,
            reason=error_text(reason),
            usage=self._told.usage,
            last_output=self._pump.last_sequence,
        )
