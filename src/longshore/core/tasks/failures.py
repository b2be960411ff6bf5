"""Failures: why an attempt did not succeed, as a value, and whether to try again.

An attempt fails by an exception or by the way its process ended; both become one ``Failure``, which
is in the row and in the events. Its message is masked and truncated here, once, because it is
stored, published and shown. Whether to retry follows from its category, unless the task (by raising
``Retry`` or ``Fail``) or its definition (by naming exit codes) decided otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from signal import Signals

from longshore.core.tasks.error_categories import (
    ErrorCategory,
    category_of,
    message_of,
    safe_getattr,
)
from longshore.core.text.sanitise import safe_excerpt

__all__ = [
    "MESSAGE_LIMIT",
    "ErrorCategory",
    "Failure",
    "FailureRaised",
    "category_of",
    "error_text",
    "failure_of",
    "failure_of_exit",
    "timeout_text",
]

MESSAGE_LIMIT = 500
"""Longest error message, in characters."""

# Far longer than any real wait, far shorter than a timedelta can hold.
_MAX_WAIT_S = 10.0**9
_DECISIONS = {"retry": True, "fail": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt failed. The message must be made by ``error_text``, so that it is safe."""

    category: ErrorCategory
    message: str
    error_type: str | None = None  # the class of the exception, with its module
    exit_code: int | None = None
    signal: str | None = None  # by name: "SIGKILL"
    retry_after: timedelta | None = None  # the shortest wait before the next attempt
    retry: bool | None = None  # what the task or its definition decided; None: the category does
    peak_rss_bytes: int | None = None  # peak memory of the attempt, if measured

    @property
    def retryable(self) -> bool:
        """Whether to retry, if an attempt is left."""
        return self.category.retryable if self.retry is None else self.retry


class FailureRaised(Exception):
    """Raised with a failure that is already classified."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)


def error_text(text: str) -> str:
    """Returns a text with secrets masked and truncated, as a failure may contain it."""
    return safe_excerpt(text, limit=MESSAGE_LIMIT)


def timeout_text(timeout: timedelta) -> str:
    """Returns the message of an attempt that timed out."""
    return f"no result within {timeout.total_seconds():g} s"


def failure_of(error: BaseException) -> Failure:
    """Returns the failure of an attempt that raised ``error``."""
    if isinstance(error, FailureRaised):
        return error.failure
    decision = safe_getattr(error, "longshore_decision")
    return Failure(
        category=category_of(error),
        message=error_text(message_of(error)),
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
    """Returns the failure of an attempt whose process ended in this way by itself.

    Args:
        exit_code: None if a signal ended it or its end was not observed; a negative number is a
            signal, as in ``subprocess``.
        retryable_codes: Exit codes that the definition says are worth another attempt.
        out_of_memory: The memory limit ended it; the exit code does not matter.
        peak_rss_bytes: Its peak memory, if measured.
    """
    if exit_code is not None and exit_code < 0:
        signal, exit_code = signal or -exit_code, None
    name = None if signal is None else _signal_name(signal)
    peak = "" if peak_rss_bytes is None else f" ({_format_size(peak_rss_bytes)} at its peak)"
    if out_of_memory:
        category, message = ErrorCategory.OUT_OF_MEMORY, f"the process ran out of memory{peak}"
    else:
        category, message = _exit_failure(exit_code, name, peak)
    return Failure(
        category=category,
        message=message,
        exit_code=exit_code,
        signal=name,
        retry=True if exit_code in retryable_codes else None,
        peak_rss_bytes=peak_rss_bytes,
    )


def _exit_failure(
    exit_code: int | None, signal: str | None, peak: str
) -> tuple[ErrorCategory, str]:
    if signal == Signals.SIGKILL.name:
        # The kernel gives no other sign when it kills a process because memory is exhausted.
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


def _format_size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{round(size, 1):g} {unit}"


def _exit_code_of(error: BaseException) -> int | None:
    names = ("code",) if isinstance(error, SystemExit) else ("returncode", "exit_code")
    codes = (safe_getattr(error, name) for name in names)
    return next((code for code in codes if isinstance(code, int)), None)


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    # Real-time signals have no names.
    except ValueError:
        return f"signal {number}"


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _retry_after_of(error: BaseException) -> timedelta | None:
    """Returns the wait that the task, or the server that it called, requested."""
    requested = (
        safe_getattr(error, "after"),
        safe_getattr(error, "retry_after"),
        _retry_after_header(safe_getattr(error, "response")),
        _retry_after_header(error),
    )
    return next((wait for value in requested if (wait := _parse_wait(value)) is not None), None)


def _retry_after_header(holder: object) -> object:
    headers = safe_getattr(holder, "headers")
    try:
        # The headers of some libraries are case-sensitive.
        return headers.get("retry-after") or headers.get("Retry-After")
    # The headers are an object of another library, and may raise anything.
    except Exception:  # noqa: BLE001
        return None


def _parse_wait(value: object) -> timedelta | None:
    """Returns a wait given as a duration or in seconds; a date would need a clock."""
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
    return timedelta(seconds=min(max(seconds, 0.0), _MAX_WAIT_S))
