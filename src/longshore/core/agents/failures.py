"""Classifies how a query to an agent ended: the reason of a failure, its category and its message.

The SDK and its CLI report a failure in many places, and none of them is reliable alone: a refused
request has the subtype "success", a missing result is not an error, a status is less specific than
the name beside it. So one ``QueryEnding`` collects everything, and the first row of a table that
matches it is the reason. This module does not import the SDK: it recognises its errors by the names
of their classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, unique
from typing import Any, NamedTuple

from longshore.core.tasks.failures import (
    ErrorCategory,
    Failure,
    category_of,
    error_text,
    failure_of,
    failure_of_exit,
    message_of,
    safe_getattr,
    timeout_text,
)

CREDENTIALS = "ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN"
# A shell reports a signal as an exit code above this.
_SIGNAL_BASE = 128
_QUOTED_CHARACTERS = 300
_COMPLETED_REASONS = ("", "completed")
# The CLI's advice around the API's message: it names the gateway's address, which does not help.
_ADVICE = re.compile(
    r"^API Error: (?:\d{3} )?|\s*(?:This is (?:a server-side issue|usually temporary)"
    r"|Check the gateway|Learn more: |Request ID: ).*",
    re.DOTALL,
)
# Only in these categories the delay that the API asks for is a delay for the whole queue.
_RETRY_AFTER_CATEGORIES = (ErrorCategory.RATE_LIMIT, ErrorCategory.SERVER_ERROR)
_NO_CREDIT = (
    "the account has no credit left: add some, or give the worker another "
    f"{CREDENTIALS} and resume the task"
)


class FailureMeaning(NamedTuple):
    """What a reason means; ``text`` may contain ``{model}``, ``{status}`` and ``{terminal}``."""

    category: ErrorCategory
    text: str

    @property
    def retry(self) -> bool | None:
        """Whether to retry; None: the category decides. The model may answer in another form."""
        return True if self.category is ErrorCategory.PARSE else None


@unique
class QueryFailureReason(Enum):
    """Why a query did not return a result: the fields of its ``FailureMeaning``."""

    DEADLINE = ErrorCategory.TIMEOUT, "the step timed out"
    TURNS = (
        ErrorCategory.VALIDATION,
        "the agent reached its limit of turns: raise maxTurns, or give the step less to do",
    )
    SCHEMA_MISMATCH = (
        ErrorCategory.PARSE,
        "the agent returned no result that matches outputSchema",
    )
    NO_RESULT = ErrorCategory.CRASH, "the agent's CLI ended without a result"
    STOPPED = ErrorCategory.VALIDATION, "the agent was stopped before it finished ({terminal})"
    SESSION_MISSING = (
        ErrorCategory.NOT_FOUND,
        "the agent's session no longer exists: it must start again",
    )
    SESSION_EXISTS = (
        ErrorCategory.VALIDATION,
        "the agent's session already exists: it must be resumed",
    )
    BILLING = ErrorCategory.AUTH, _NO_CREDIT
    TOO_LONG = (
        ErrorCategory.VALIDATION,
        "the conversation is too long for model {model}: give the step a shorter input, or split "
        "it into two steps",
    )
    API_UNREACHABLE = ErrorCategory.NETWORK, "the API could not be reached"
    STATUS = ErrorCategory.UNKNOWN, "the API answered {status}"
    INTERRUPTED = ErrorCategory.TIMEOUT, "the agent was interrupted"
    MALFORMED_CALLS = (ErrorCategory.PARSE, "the model repeatedly called tools in an invalid form")
    REFUSAL = (
        ErrorCategory.VALIDATION,
        "model {model} refused to do this: change the prompt or its input",
    )
    USAGE_LIMIT = ErrorCategory.RATE_LIMIT, "the usage limit of the credentials is reached for now"
    NETWORK = ErrorCategory.NETWORK, "the connection to the API failed"
    NO_ANSWER = ErrorCategory.TIMEOUT, "the API did not answer in time"
    NO_CREDENTIALS = (
        ErrorCategory.AUTH,
        f"there are no credentials for the model: set {CREDENTIALS} in the environment of the "
        "worker (a task's own environment never reaches the API) and start it again",
    )
    OUTPUT_LIMIT = (
        ErrorCategory.VALIDATION,
        "an answer of model {model} exceeded its limit: ask for less at once, or for files",
    )
    BAD_ANSWER = ErrorCategory.PARSE, "the API's response is not a message"
    SERVER = ErrorCategory.SERVER_ERROR, "the API failed"
    EXECUTION = ErrorCategory.VALIDATION, "the agent's CLI could not continue"
    CLI_MISSING = (
        ErrorCategory.NOT_FOUND,
        "the Claude CLI is not installed where the worker runs: install longshore[agent] there "
        "(its wheel brings the CLI; there is none for Alpine)",
    )
    CLI_START = ErrorCategory.PROGRAMMING, "the agent's CLI could not be started"
    CLI_SILENT = ErrorCategory.TIMEOUT, "the agent's CLI started but did not respond"
    CLI_ENDED = ErrorCategory.CRASH, "the agent's CLI ended while it was needed"
    CLI_KILLED = ErrorCategory.CRASH, "the agent's CLI was killed"
    CLI_OUTPUT = ErrorCategory.PARSE, "the output of the agent's CLI cannot be parsed"
    FOLDER_MISSING = ErrorCategory.NOT_FOUND, "the step's working directory does not exist"
    OPTIONS = ErrorCategory.VALIDATION, "the agent's CLI rejected the definition's options"
    RAISED = ErrorCategory.UNKNOWN, "the query failed"
    UNKNOWN = ErrorCategory.UNKNOWN, "the agent failed for an unknown reason"


_INVALID_REQUEST = FailureMeaning(
    ErrorCategory.VALIDATION, "the API rejected the request as invalid ({status})"
)
_SERVER_FAILURE = FailureMeaning(
    ErrorCategory.SERVER_ERROR, "the API had an internal error ({status})"
)
_TIMED_OUT = FailureMeaning(ErrorCategory.TIMEOUT, "the API did not answer in time ({status})")

_STATUSES: Mapping[int, FailureMeaning] = {
    401: FailureMeaning(
        ErrorCategory.AUTH,
        f"the API does not accept the credentials (401): check {CREDENTIALS} of the worker",
    ),
    402: FailureMeaning(ErrorCategory.AUTH, f"{_NO_CREDIT} (402)"),
    403: FailureMeaning(
        ErrorCategory.AUTH,
        "the credentials have no access to model {model} (403): give the worker an "
        f"{CREDENTIALS} that has",
    ),
    404: FailureMeaning(
        ErrorCategory.NOT_FOUND,
        "the API has no model {model} (404): name another in the definition",
    ),
    408: _TIMED_OUT,
    413: FailureMeaning(
        ErrorCategory.VALIDATION,
        "the request is too large for the API (413): give the step a smaller input",
    ),
    429: FailureMeaning(ErrorCategory.RATE_LIMIT, "the API's rate limit is reached (429)"),
    504: _TIMED_OUT,
    529: FailureMeaning(ErrorCategory.SERVER_ERROR, "the API is overloaded (529)"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEnding:
    """Everything that is known about the end of a query."""

    result: Mapping[str, Any] | None = None  # the last result frame; None: there was none
    error: BaseException | None = None
    assistant_error: str | None = None  # of the agent's last message, if that was an error
    api_status: int | None = None  # of the API's last response, if that was an error
    unreachable: bool = False  # whether the last request to the API got no response
    retry_after: timedelta | None = None  # the delay that the API asked for
    stderr: str = ""  # the last lines
    late: timedelta | None = None  # the step's timeout, if it ended the query
    model: str | None = None
    wants_structure: bool = False  # only structured output is a result

    @classmethod
    def from_query(
        cls, error: BaseException | None, result: object | None, **fields: Any
    ) -> QueryEnding:
        """Returns the ending of a query that raised ``error``, or nothing, after ``result``.

        The SDK's ``ResultError`` carries the CLI's own frame, which has fields that the message
        lacks; it is preferred to the message.
        """
        frame = safe_getattr(error, "data") if _is_instance(error, "ResultError") else None
        if not isinstance(frame, Mapping) or not frame:
            frame = result if result is None or isinstance(result, Mapping) else vars(result)
        return cls(error=error, result=frame, **fields)

    def text(self, name: str) -> str:
        """Returns a text field of the result; empty if there is none."""
        value = (self.result or {}).get(name)
        return value if isinstance(value, str) else ""

    @property
    def errors(self) -> list[str]:
        """The errors that the result lists."""
        values = (self.result or {}).get("errors")
        return [text for text in values if isinstance(text, str)] if type(values) is list else []

    @property
    def message(self) -> str:
        """The result's text and errors."""
        return " ".join(text for text in (self.text("result"), *self.errors) if text)

    @property
    def terminal(self) -> str:
        """The CLI's name for the end of the query."""
        return self.text("terminal_reason")

    @property
    def failed_at_api(self) -> bool:
        """Whether a request to the API failed and ended the query."""
        return self.terminal == "api_error"

    @property
    def status(self) -> int | None:
        """The status of the failed request: as the CLI reports it, or else the gateway."""
        reported = (self.result or {}).get("api_error_status")
        if isinstance(reported, int):
            return reported
        return self.api_status if self.failed_at_api else None

    def matches(self, field: str, value: str) -> bool:
        """Whether a field has this value; the message, whether it contains the value."""
        match field:
            case "message":
                return value in self.message
            case "assistant":
                return self.assistant_error == value
            case "request":
                unreachable = self.failed_at_api and self.unreachable
                return unreachable if value == "unreachable" else self.status is not None
            case "execution":
                ended = self.text("subtype") == "error_during_execution"
                return ended and bool(self.errors) is (value == "failed")
        return self.text(field) == value


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailure:
    """Why a query failed, and the failure of the attempt."""

    reason: QueryFailureReason
    failure: Failure


def query_failure_of(ending: QueryEnding) -> QueryFailure | None:
    """Returns why the query failed; None if it succeeded."""
    reason = _reason_of(ending)
    if reason is None:
        return None
    return QueryFailure(reason=reason, failure=_failure_of(reason, ending))


def schema_failure(problem: str) -> QueryFailure:
    """Returns the failure for a result that does not match the schema; ``problem`` says where."""
    reason = QueryFailureReason.SCHEMA_MISMATCH
    failure = _failure_of(reason, QueryEnding())
    message = error_text(f"{failure.message}: {problem}")
    return QueryFailure(reason=reason, failure=replace(failure, message=message))


# A field of the ending, its value (of the message: a part) and the reason. The first row that
# matches wins. Names with one meaning come before the status (a lack of credit has 400, and so has
# a prompt that is too long), and the status comes before names with several meanings: an error
# named "server error" may be one of the network.
_ROWS = (
    ("subtype", "error_max_turns", QueryFailureReason.TURNS),
    ("terminal_reason", "max_turns", QueryFailureReason.TURNS),
    ("subtype", "error_max_structured_output_retries", QueryFailureReason.SCHEMA_MISMATCH),
    ("message", "No conversation found", QueryFailureReason.SESSION_MISSING),
    ("assistant", "billing_error", QueryFailureReason.BILLING),
    ("terminal_reason", "prompt_too_long", QueryFailureReason.TOO_LONG),
    ("terminal_reason", "blocking_limit", QueryFailureReason.TOO_LONG),
    ("terminal_reason", "rapid_refill_breaker", QueryFailureReason.TOO_LONG),
    ("api_error", "usage_limit_reached", QueryFailureReason.USAGE_LIMIT),
    ("request", "unreachable", QueryFailureReason.API_UNREACHABLE),
    ("request", "status", QueryFailureReason.STATUS),
    ("terminal_reason", "aborted_streaming", QueryFailureReason.INTERRUPTED),
    ("terminal_reason", "aborted_tools", QueryFailureReason.INTERRUPTED),
    ("terminal_reason", "image_error", QueryFailureReason.TOO_LONG),
    ("terminal_reason", "malformed_tool_use_exhausted", QueryFailureReason.MALFORMED_CALLS),
    ("stop_reason", "refusal", QueryFailureReason.REFUSAL),
    ("api_error", "connection_failed", QueryFailureReason.NETWORK),
    ("message", "ECONN", QueryFailureReason.NETWORK),
    ("message", "ENOTFOUND", QueryFailureReason.NETWORK),
    ("api_error", "no_response", QueryFailureReason.NO_ANSWER),
    ("api_error", "stream_idle_timeout", QueryFailureReason.NO_ANSWER),
    ("message", "timed out", QueryFailureReason.NO_ANSWER),
    ("assistant", "authentication_failed", QueryFailureReason.NO_CREDENTIALS),
    ("assistant", "max_output_tokens", QueryFailureReason.OUTPUT_LIMIT),
    ("message", "malformed response", QueryFailureReason.BAD_ANSWER),
    ("message", "JSON Parse error", QueryFailureReason.BAD_ANSWER),
    ("assistant", "rate_limit", QueryFailureReason.USAGE_LIMIT),
    ("assistant", "server_error", QueryFailureReason.SERVER),
    ("assistant", "overloaded", QueryFailureReason.SERVER),
    ("execution", "failed", QueryFailureReason.EXECUTION),
    ("execution", "ended", QueryFailureReason.CLI_ENDED),
)


def _reason_of(ending: QueryEnding) -> QueryFailureReason | None:
    closing_error = (
        ending.error is None
        or ending.late is not None
        or _is_instance(ending.error, "ClaudeSDKError")
    )
    if ending.result is not None and not ending.result.get("is_error") and closing_error:
        # The result is valid even if the CLI failed afterwards, while it was closed.
        if ending.terminal not in _COMPLETED_REASONS:
            return QueryFailureReason.STOPPED
        missing = ending.wants_structure and ending.result.get("structured_output") is None
        return QueryFailureReason.SCHEMA_MISMATCH if missing else None
    if ending.late is not None:
        # The API's last failure, if any: the CLI retried until the timeout.
        if ending.unreachable:
            return QueryFailureReason.API_UNREACHABLE
        no_failure = ending.api_status is None
        return QueryFailureReason.DEADLINE if no_failure else QueryFailureReason.STATUS
    if ending.error is not None and not _is_instance(ending.error, "ResultError"):
        return _reason_of_error(ending, ending.error)
    if ending.result is None:
        return QueryFailureReason.NO_RESULT
    return next(
        (reason for field, value, reason in _ROWS if ending.matches(field, value)),
        QueryFailureReason.UNKNOWN,
    )


def _reason_of_error(ending: QueryEnding, error: BaseException) -> QueryFailureReason:
    if _is_instance(error, "CLINotFoundError"):
        return QueryFailureReason.CLI_MISSING
    if _is_instance(error, "CLIConnectionError"):
        return _reason_of_connection_error(message_of(error))
    if _is_instance(error, "CLIJSONDecodeError", "MessageParseError"):
        return QueryFailureReason.CLI_OUTPUT
    if _is_instance(error, "ProcessError"):
        if _killed_code_of(error) is not None:
            return QueryFailureReason.CLI_KILLED
        in_use = "already in use" in ending.stderr
        return QueryFailureReason.SESSION_EXISTS if in_use else QueryFailureReason.OPTIONS
    silent = "Control request timeout" in message_of(error)
    return QueryFailureReason.CLI_SILENT if silent else QueryFailureReason.RAISED


def _reason_of_connection_error(message: str) -> QueryFailureReason:
    if "Working directory does not exist" in message:
        return QueryFailureReason.FOLDER_MISSING
    ended = ("terminated process", "exited with error", "process stdin", "not ready for writing")
    if any(text in message for text in ended):
        return QueryFailureReason.CLI_ENDED
    return QueryFailureReason.CLI_START


def _failure_of(reason: QueryFailureReason, ending: QueryEnding) -> Failure:
    error = ending.error
    if reason is QueryFailureReason.RAISED and error is not None:
        return failure_of(error)
    meaning = _meaning_of(reason, ending)
    failure = Failure(
        category=meaning.category,
        message=error_text(_message(reason, meaning.text, ending)),
        error_type=None if error is None else failure_of(error).error_type,
        retry_after=ending.retry_after if meaning.category in _RETRY_AFTER_CATEGORIES else None,
        retry=meaning.retry,
    )
    if reason is not QueryFailureReason.CLI_KILLED:
        return failure
    exit_ = failure_of_exit(_killed_code_of(error))
    return replace(failure, message=f"{meaning.text}: {exit_.message}", signal=exit_.signal)


def _meaning_of(reason: QueryFailureReason, ending: QueryEnding) -> FailureMeaning:
    meaning = FailureMeaning(*reason.value)
    if reason is QueryFailureReason.STATUS:
        return meaning_of_status(_status_of(ending))
    if reason is QueryFailureReason.CLI_START and ending.error and ending.error.__cause__:
        # The machine may be out of memory or processes for a moment.
        category = category_of(ending.error.__cause__)
        return meaning._replace(category=category) if category.retryable else meaning
    return meaning


def meaning_of_status(status: int) -> FailureMeaning:
    """Returns what a response of the API with this status means."""
    return _STATUSES.get(status, _SERVER_FAILURE if status >= 500 else _INVALID_REQUEST)


def _message(reason: QueryFailureReason, text: str, ending: QueryEnding) -> str:
    late = "" if ending.late is None else timeout_text(ending.late)
    if reason is QueryFailureReason.DEADLINE:
        return late
    model = repr(ending.model) if ending.model else "of this task"
    filled = text.format(model=model, status=_status_of(ending), terminal=ending.terminal)
    message = ": ".join(part for part in (late, filled) if part)
    detail = _ADVICE.sub("", _detail(reason, ending))[:_QUOTED_CHARACTERS]
    return f"{message}; message: {detail}" if detail else message


def _detail(reason: QueryFailureReason, ending: QueryEnding) -> str:
    """Returns the message of the CLI or the SDK, where it adds something."""
    if reason is QueryFailureReason.OPTIONS:
        return ending.stderr.strip()[-_QUOTED_CHARACTERS:]
    if reason in _DETAIL_FROM_ERROR and ending.error is not None:
        return message_of(ending.error)
    return "" if reason in _WITHOUT_DETAIL else ending.message


_DETAIL_FROM_ERROR = (
    QueryFailureReason.CLI_MISSING,
    QueryFailureReason.CLI_START,
    QueryFailureReason.CLI_ENDED,
    QueryFailureReason.CLI_OUTPUT,
    QueryFailureReason.FOLDER_MISSING,
)
# The CLI's message addresses an interactive user ("Please run /login"), or is the model's.
_WITHOUT_DETAIL = (QueryFailureReason.NO_CREDENTIALS, QueryFailureReason.STOPPED)


def _status_of(ending: QueryEnding) -> int:
    return ending.status or ending.api_status or 0


def _killed_code_of(error: BaseException | None) -> int | None:
    """Returns the negative exit code of a process that a signal ended; None for another end."""
    code = safe_getattr(error, "exit_code")
    if not isinstance(code, int) or 0 <= code <= _SIGNAL_BASE:
        return None
    return code if code < 0 else _SIGNAL_BASE - code


def _is_instance(error: BaseException | None, *names: str) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)
