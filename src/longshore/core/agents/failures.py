"""Endings: from how a query to an agent ended to what the attempt says of it.

The SDK and its CLI tell of a failure in many places, and none of them alone can be believed: a
refused request has the subtype "success", a missing result is no error at all, a status says less
than the name beside it. So all that was seen is put into one ``Ending``, and the rows below are
asked in turn; the first that fits is the reason. Nothing of the SDK is imported: its errors are
known by the names of their classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from longshore.core.agents.failure_reasons import (
    MEANINGS,
    FailureMeaning,
    QueryFailureReason,
    meaning_of_status,
)
from longshore.core.tasks.error_categories import (
    ErrorCategory,
    category_of,
    message_of,
    safe_getattr,
)
from longshore.core.tasks.failures import (
    Failure,
    error_text,
    failure_of,
    failure_of_exit,
    timeout_text,
)

__all__ = [
    "QueryEnding",
    "QueryFailure",
    "QueryFailureReason",
    "query_failure_for",
    "query_failure_of",
    "schema_failure",
]

# Exit codes above this are a shell's way to name a signal.
_SIGNALLED = 128
_SHOWN_CHARACTERS = 300
_COMPLETED_REASONS = ("", "completed")
# What the CLI puts around the API's words: it would send the reader to the wrong place, because
# the address that it knows is ours.
_ADVICE = re.compile(
    r"^API Error: (?:\d{3} )?|\s*(?:This is (?:a server-side issue|usually temporary)"
    r"|Check the gateway|Learn more: |Request ID: ).*",
    re.DOTALL,
)
# What the API asks to wait says something about the API only in these.
_RETRY_AFTER_CATEGORIES = (ErrorCategory.RATE_LIMIT, ErrorCategory.SERVER_ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEnding:
    """All that was seen of how a query ended."""

    result: Mapping[str, Any] | None = None  # the last result frame; None: none came
    error: BaseException | None = None
    assistant_error: str | None = None  # of the agent's last message; None if that was a good one
    api_status: int | None = None  # of the API's last answer, if it was an error
    api_failure_category: ErrorCategory | None = None  # why the last request got no answer at all
    retry_after: timedelta | None = None  # what the API asked to wait, by a header or a limit
    stderr: str = ""  # the last lines
    late: timedelta | None = None  # the time that the step had, if our own deadline ended it
    model: str | None = None
    wants_structure: bool = False  # only what was handed in for the schema is a result

    @classmethod
    def from_query(
        cls, error: BaseException | None, result: object | None, **seen: Any
    ) -> QueryEnding:
        """The ending of a query that raised ``error``, or nothing, after the message ``result``.

        The SDK's ``ResultError`` brings the CLI's own frame, which has fields that the message
        lacks; it is believed over the message. ``seen`` is the rest of the fields.
        """
        frame = safe_getattr(error, "data") if _is_instance(error, "ResultError") else None
        if not isinstance(frame, Mapping) or not frame:
            frame = result if result is None or isinstance(result, Mapping) else vars(result)
        return cls(error=error, result=frame, **seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailure:
    """Why a query failed, and what the attempt says of it."""

    reason: QueryFailureReason
    failure: Failure

    @property
    def is_limit(self) -> bool:
        """Whether a limit of ours ended it; with a higher one the session can go on."""
        return self.reason in (QueryFailureReason.TURNS, QueryFailureReason.BUDGET)

    @property
    def is_schema_mismatch(self) -> bool:
        """Whether there was an answer and only its form was wrong: it can be repaired."""
        return self.reason is QueryFailureReason.SCHEMA_MISMATCH

    @property
    def is_session_missing(self) -> bool:
        """Whether the session to be resumed is not there: it has to begin anew."""
        return self.reason is QueryFailureReason.SESSION_MISSING

    @property
    def is_session_existing(self) -> bool:
        """Whether the session to be begun is there already: it has to be resumed."""
        return self.reason is QueryFailureReason.SESSION_EXISTS


def query_failure_of(ending: QueryEnding) -> QueryFailure | None:
    """Why the query failed; None if it did what was asked."""
    reason = _reason_of(ending)
    if reason is None:
        return None
    return QueryFailure(reason=reason, failure=_failure_of(reason, ending))


def query_failure_for(
    reason: QueryFailureReason, problem: str = "", *, model: str | None = None
) -> QueryFailure:
    """What is said when somebody else has found the reason, before a query or after it.

    Args:
        problem: What else is known of it.
    """
    meaning = MEANINGS[reason]
    words = _fill_text(meaning, QueryEnding(model=model))
    text = error_text(f"{words}: {problem}" if problem else words)
    failure = Failure(category=meaning.category, message=text, retry=meaning.retry)
    return QueryFailure(reason=reason, failure=failure)


def schema_failure(problem: str) -> QueryFailure:
    """Of a result that came and does not fit; ``problem`` says where."""
    return query_failure_for(QueryFailureReason.SCHEMA_MISMATCH, problem)


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the rows ask of an ending whose result is there."""

    ending: QueryEnding
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""

    @property
    def errors(self) -> list[str]:
        given = self.fields.get("errors")
        return [text for text in given if isinstance(text, str)] if isinstance(given, list) else []

    @property
    def message(self) -> str:
        return " ".join(text for text in (self.text("result"), *self.errors) if text)

    @property
    def is_error(self) -> bool:
        return bool(self.fields.get("is_error"))

    @property
    def terminal(self) -> str:
        return self.text("terminal_reason")

    @property
    def failed_at_api(self) -> bool:
        return self.terminal == "api_error"

    @property
    def status(self) -> int | None:
        """Of the request that failed: by the CLI, or else by who stands between it and the API."""
        own = self.fields.get("api_error_status")
        if isinstance(own, int):
            return own
        return self.ending.api_status if self.failed_at_api else None

    def contains(self, *words: str) -> bool:
        return any(word in self.message for word in words)

    def has(self, name: str, *values: str) -> bool:
        return self.text(name) in values

    def assistant(self, *names: str) -> bool:
        return self.ending.assistant_error in names


# The first row that fits wins. Names that mean one thing stand above the status (a lack of credit
# has 400, and so has a prompt that is too long), and the status above those that mean several:
# what is called a server error may be the network.
_ROWS: tuple[tuple[QueryFailureReason, Callable[[_Frame], bool]], ...] = (
    (
        QueryFailureReason.TURNS,
        lambda it: it.has("subtype", "error_max_turns") or it.terminal == "max_turns",
    ),
    (
        QueryFailureReason.BUDGET,
        lambda it: it.has("subtype", "error_max_budget_usd") or it.terminal == "budget_exhausted",
    ),
    (
        QueryFailureReason.SCHEMA_MISMATCH,
        lambda it: it.has("subtype", "error_max_structured_output_retries"),
    ),
    (QueryFailureReason.SESSION_MISSING, lambda it: it.contains("No conversation found")),
    (QueryFailureReason.BILLING, lambda it: it.assistant("billing_error")),
    (
        QueryFailureReason.TOO_LONG,
        lambda it: it.terminal in ("prompt_too_long", "blocking_limit", "rapid_refill_breaker"),
    ),
    (QueryFailureReason.USAGE_LIMIT, lambda it: it.has("api_error", "usage_limit_reached")),
    (
        QueryFailureReason.API_UNREACHABLE,
        lambda it: it.failed_at_api and it.ending.api_failure_category is not None,
    ),
    (QueryFailureReason.STATUS, lambda it: it.status is not None),
    (
        QueryFailureReason.INTERRUPTED,
        lambda it: it.terminal in ("aborted_streaming", "aborted_tools"),
    ),
    (QueryFailureReason.TOO_LONG, lambda it: it.terminal == "image_error"),
    (QueryFailureReason.MALFORMED_CALLS, lambda it: it.terminal == "malformed_tool_use_exhausted"),
    (QueryFailureReason.REFUSAL, lambda it: it.is_error and it.has("stop_reason", "refusal")),
    (
        QueryFailureReason.NETWORK,
        lambda it: it.has("api_error", "connection_failed") or it.contains("ECONN", "ENOTFOUND"),
    ),
    (
        QueryFailureReason.NO_ANSWER,
        lambda it: (
            it.has("api_error", "no_response", "stream_idle_timeout") or it.contains("timed out")
        ),
    ),
    (QueryFailureReason.NO_CREDENTIALS, lambda it: it.assistant("authentication_failed")),
    (QueryFailureReason.OUTPUT_LIMIT, lambda it: it.assistant("max_output_tokens")),
    (
        QueryFailureReason.BAD_ANSWER,
        lambda it: it.contains("malformed response", "JSON Parse error"),
    ),
    (QueryFailureReason.USAGE_LIMIT, lambda it: it.assistant("rate_limit")),
    (QueryFailureReason.SERVER, lambda it: it.assistant("server_error", "overloaded")),
    (
        QueryFailureReason.EXECUTION,
        lambda it: it.has("subtype", "error_during_execution") and bool(it.errors),
    ),
    (QueryFailureReason.CLI_ENDED, lambda it: it.has("subtype", "error_during_execution")),
    (QueryFailureReason.UNKNOWN, lambda _: True),
)


def _reason_of(ending: QueryEnding) -> QueryFailureReason | None:
    frame = None if ending.result is None else _Frame(ending, ending.result)
    ours = (
        ending.error is None
        or ending.late is not None
        or _is_instance(ending.error, "ClaudeSDKError")
    )
    if frame is not None and not frame.is_error and ours:
        # A result that came is one, whatever went wrong while the CLI was closed.
        return _reason_of_success(ending, frame)
    if ending.late is not None:
        return _reason_of_timeout(ending)
    if ending.error is not None and not _is_instance(ending.error, "ResultError"):
        return _reason_of_error(ending, ending.error)
    if frame is None:
        return QueryFailureReason.NO_RESULT
    return next(reason for reason, fits in _ROWS if fits(frame))


def _reason_of_success(ending: QueryEnding, frame: _Frame) -> QueryFailureReason | None:
    if frame.terminal not in _COMPLETED_REASONS:
        return QueryFailureReason.STOPPED
    missing = ending.wants_structure and frame.fields.get("structured_output") is None
    return QueryFailureReason.SCHEMA_MISMATCH if missing else None


def _reason_of_timeout(ending: QueryEnding) -> QueryFailureReason:
    """The CLI asks again by itself: what the API said last is why it took so long."""
    if ending.api_failure_category is not None:
        return QueryFailureReason.API_UNREACHABLE
    return QueryFailureReason.DEADLINE if ending.api_status is None else QueryFailureReason.STATUS


def _reason_of_error(ending: QueryEnding, error: BaseException) -> QueryFailureReason:
    if _is_instance(error, "CLINotFoundError"):
        return QueryFailureReason.CLI_MISSING
    if _is_instance(error, "CLIConnectionError"):
        return _reason_of_start(message_of(error))
    if _is_instance(error, "CLIJSONDecodeError", "MessageParseError"):
        return QueryFailureReason.CLI_OUTPUT
    if _is_instance(error, "ProcessError"):
        if _signal_of(error) is not None:
            return QueryFailureReason.CLI_KILLED
        return (
            QueryFailureReason.SESSION_EXISTS
            if "already in use" in ending.stderr
            else QueryFailureReason.OPTIONS
        )
    return (
        QueryFailureReason.CLI_SILENT
        if "Control request timeout" in message_of(error)
        else QueryFailureReason.RAISED
    )


def _reason_of_start(message: str) -> QueryFailureReason:
    if "Working directory does not exist" in message:
        return QueryFailureReason.FOLDER_MISSING
    gone = ("terminated process", "exited with error", "process stdin", "not ready for writing")
    return (
        QueryFailureReason.CLI_ENDED
        if any(words in message for words in gone)
        else QueryFailureReason.CLI_START
    )


def _failure_of(reason: QueryFailureReason, ending: QueryEnding) -> Failure:
    error = ending.error
    if reason is QueryFailureReason.RAISED and error is not None:
        return failure_of(error)
    meaning = _meaning_of(reason, ending)
    failure = Failure(
        category=meaning.category,
        message=error_text(_message(reason, meaning, ending)),
        error_type=None if error is None else failure_of(error).error_type,
        retry_after=ending.retry_after if meaning.category in _RETRY_AFTER_CATEGORIES else None,
        retry=meaning.retry,
    )
    if reason is not QueryFailureReason.CLI_KILLED:
        return failure
    exit_ = failure_of_exit(None, _signal_of(error))
    return replace(failure, message=f"{meaning.text}: {exit_.message}", signal=exit_.signal)


def _meaning_of(reason: QueryFailureReason, ending: QueryEnding) -> FailureMeaning:
    meaning = MEANINGS[reason]
    if reason is QueryFailureReason.STATUS:
        return meaning_of_status(_status_of(ending))
    if reason is QueryFailureReason.API_UNREACHABLE:
        return replace(meaning, category=ending.api_failure_category or meaning.category)
    if (
        reason is QueryFailureReason.CLI_START
        and ending.error is not None
        and ending.error.__cause__
    ):
        # A machine that is full for a moment, and not what somebody wrote.
        of_cause = category_of(ending.error.__cause__)
        return replace(meaning, category=of_cause) if of_cause.retryable else meaning
    return meaning


def _message(reason: QueryFailureReason, meaning: FailureMeaning, ending: QueryEnding) -> str:
    late = "" if ending.late is None else timeout_text(ending.late)
    if reason is QueryFailureReason.DEADLINE:
        return late
    words = ": ".join(part for part in (late, _fill_text(meaning, ending)) if part)
    said = _ADVICE.sub("", _detail(reason, ending))[:_SHOWN_CHARACTERS]
    return f"{words}; it said: {said}" if said else words


def _fill_text(meaning: FailureMeaning, ending: QueryEnding) -> str:
    frame = _Frame(ending, ending.result or {})
    return meaning.text.format(
        model=repr(ending.model) if ending.model else "of this task",
        status=_status_of(ending),
        terminal=frame.terminal,
    )


def _detail(reason: QueryFailureReason, ending: QueryEnding) -> str:
    """What the CLI or the SDK said itself, where that is more than we say."""
    if reason is QueryFailureReason.OPTIONS:
        return ending.stderr.strip()[-_SHOWN_CHARACTERS:]
    if reason in _DETAIL_FROM_ERROR and ending.error is not None:
        return message_of(ending.error)
    return "" if reason in _WITHOUT_DETAIL else _Frame(ending, ending.result or {}).message


_DETAIL_FROM_ERROR = (
    QueryFailureReason.CLI_MISSING,
    QueryFailureReason.CLI_START,
    QueryFailureReason.CLI_ENDED,
    QueryFailureReason.CLI_OUTPUT,
    QueryFailureReason.FOLDER_MISSING,
)
# The CLI's own words are for somebody who sits in front of it ("Please run /login"), or are what
# the model said.
_WITHOUT_DETAIL = (QueryFailureReason.NO_CREDENTIALS, QueryFailureReason.STOPPED)


def _status_of(ending: QueryEnding) -> int:
    frame = _Frame(ending, ending.result or {})
    return frame.status or ending.api_status or 0


def _signal_of(error: BaseException | None) -> int | None:
    code = safe_getattr(error, "exit_code")
    if not isinstance(code, int) or 0 <= code <= _SIGNALLED:
        return None
    return -code if code < 0 else code - _SIGNALLED


def _is_instance(error: BaseException | None, *names: str) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)
