"""Failures: why an attempt did not succeed, as a value, and whether to try again.

An attempt fails by an exception or by the way its process ended; both become one ``Failure``, which
the row keeps and the events tell. Its message is masked and cut here, once, because it travels far:
into the store, on the bus, to a page. Whether it is worth another attempt follows from its
category, unless the task (by raising ``Retry`` or ``Fail``) or its definition (by naming exit
codes) decided otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from signal import Signals

from longshore.core.classification import attribute, category_of, text_of
from longshore.core.error_categories import ErrorCategory
from longshore.core.sanitise import safe_excerpt

__all__ = [
    "MESSAGE_LIMIT",
    "ErrorCategory",
    "Failed",
    "Failure",
    "category_of",
    "error_text",
    "failure_of",
    "failure_of_exit",
    "late_text",
]

MESSAGE_LIMIT = 500
"""Characters of an error's text that are kept."""

# Far more than anybody waits, far less than a timedelta can hold.
_LONGEST_WAIT_S = 10.0**9
_DECISIONS = {"retry": True, "fail": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt failed. The message is safe to show: bring yours through ``error_text``."""

    category: ErrorCategory
    message: str
    error_type: str | None = None  # the class of the exception, with its module
    exit_code: int | None = None
    signal: str | None = None  # by name: "SIGKILL"
    retry_after: timedelta | None = None  # not before this long from now
    retry: bool | None = None  # what the task or its definition decided; None: the category does
    peak_rss_bytes: int | None = None  # the most memory that the attempt had, where it is known

    @property
    def retryable(self) -> bool:
        """Whether another attempt is worth it, if one is left."""
        return self.category.retryable if self.retry is None else self.retry


class Failed(Exception):
    """Raised by whoever knows already why the attempt failed."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)


def error_text(text: str) -> str:
    """A text as a failure may carry it: secrets masked, and ``MESSAGE_LIMIT`` long at most."""
    return safe_excerpt(text, limit=MESSAGE_LIMIT)


def late_text(timeout: timedelta) -> str:
    """What is said of an attempt whose time was up."""
    return f"no result within {timeout.total_seconds():g} s"


def failure_of(error: BaseException) -> Failure:
    """Why an attempt failed that raised ``error``."""
    if isinstance(error, Failed):
        return error.failure
    decision = attribute(error, "longshore_decision")
    return Failure(
        category=category_of(error),
        message=error_text(text_of(error)),
        error_type=_type_name(error),
        exit_code=_exit_code_of(error),
        retry_after=_retry_after_of(error),
        retry=_DECISIONS.get(decision) if isinstance(decision, str) else None,
    )


def failure_of_exit(
    exit_code: int | None,
    signal: int | None,
    *,
    retryable_codes: Collection[int] = (),
    out_of_memory: bool = False,
    peak_rss_bytes: int | None = None,
) -> Failure:
    """Why an attempt failed whose process ended in this way, and not by our own doing.

    Args:
        exit_code: None if a signal ended it, or nobody saw its end; below zero, as
            ``subprocess`` has it, the number of a signal.
        retryable_codes: Exit codes that the definition says are worth another attempt.
        out_of_memory: The memory limit was what ended it, whatever the code says.
        peak_rss_bytes: The most memory that it had, where that is known.
    """
    if exit_code is not None and exit_code < 0:
        signal, exit_code = signal or -exit_code, None
    name = None if signal is None else _signal_name(signal)
    peak = "" if peak_rss_bytes is None else f" ({_size(peak_rss_bytes)} at its peak)"
    if out_of_memory:
        category, message = ErrorCategory.OUT_OF_MEMORY, f"the process ran out of memory{peak}"
    else:
        category, message = _ending(exit_code, name, peak)
    return Failure(
        category=category,
        message=message,
        exit_code=exit_code,
        signal=name,
        retry=True if exit_code in retryable_codes else None,
        peak_rss_bytes=peak_rss_bytes,
    )


def _ending(exit_code: int | None, signal: str | None, peak: str) -> tuple[ErrorCategory, str]:
    if signal == Signals.SIGKILL.name:
        # The kernel says no more than this when it kills for want of memory.
        message = f"the process was ended by {signal}: lack of memory is possible{peak}"
        return ErrorCategory.CRASH, message
    if signal is not None:
        return ErrorCategory.CRASH, f"the process was ended by {signal}"
    if exit_code is None:
        return ErrorCategory.CRASH, "the process vanished without an exit code"
    if exit_code == 0:
        message = "exit code 0 is no failure: say what else was wrong"
        raise ValueError(message)
    return ErrorCategory.EXIT_CODE, f"the process ended with exit code {exit_code}"


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{round(size, 1):g} {unit}"


def _exit_code_of(error: BaseException) -> int | None:
    names = ("code",) if isinstance(error, SystemExit) else ("returncode", "exit_code")
    codes = (attribute(error, name) for name in names)
    return next((code for code in codes if isinstance(code, int)), None)


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    # Real-time signals have numbers only.
    except ValueError:
        return f"signal {number}"


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _retry_after_of(error: BaseException) -> timedelta | None:
    """What the task, or the server that it spoke to, asked to wait."""
    asked = (
        attribute(error, "after"),
        attribute(error, "retry_after"),
        _header(attribute(error, "response")),
        _header(error),
    )
    return next((wait for value in asked if (wait := _wait(value)) is not None), None)


def _header(holder: object) -> object:
    headers = attribute(holder, "headers")
    try:
        # Not every library's headers ignore case.
        return headers.get("retry-after") or headers.get("Retry-After")
    # Whatever these headers are, they are not ours, and an answer is a courtesy.
    except Exception:  # noqa: BLE001
        return None


def _wait(value: object) -> timedelta | None:
    """A wait given as a duration or in seconds; a date is of no use without a clock."""
    if isinstance(value, timedelta):
        return max(value, timedelta(0))
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(seconds):
        return None
    return timedelta(seconds=min(max(seconds, 0.0), _LONGEST_WAIT_S))
