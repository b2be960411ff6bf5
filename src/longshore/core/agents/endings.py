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

from longshore.core.agents.ending_reasons import MEANINGS, Meaning, Reason, meaning_of_status
from longshore.core.classification import attribute, category_of, text_of
from longshore.core.error_categories import ErrorCategory
from longshore.core.failures import Failure, error_text, failure_of, failure_of_exit, late_text

__all__ = ["Ending", "Reason", "Verdict", "shape_verdict", "verdict_for", "verdict_of"]

# Exit codes above this are a shell's way to name a signal.
_SIGNALLED = 128
_SHOWN_CHARACTERS = 300
_DONE = ("", "completed")
# What the CLI puts around the API's words: it would send the reader to the wrong place, because
# the address that it knows is ours.
_ADVICE = re.compile(
    r"^API Error: (?:\d{3} )?|\s*(?:This is (?:a server-side issue|usually temporary)"
    r"|Check the gateway|Learn more: |Request ID: ).*",
    re.DOTALL,
)
# What the API asks to wait says something about the API only in these.
_PUT_OFF = (ErrorCategory.RATE_LIMIT, ErrorCategory.SERVER_ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """All that was seen of how a query ended."""

    result: Mapping[str, Any] | None = None  # the last result frame; None: none came
    error: BaseException | None = None
    assistant_error: str | None = None  # of the agent's last message; None if that was a good one
    api_status: int | None = None  # of the API's last answer, if it was an error
    api_trouble: ErrorCategory | None = None  # why the last request got no answer at all
    retry_after: timedelta | None = None  # what the API asked to wait, by a header or a limit
    stderr: str = ""  # the last lines
    late: timedelta | None = None  # the time that the step had, if our own deadline ended it
    model: str | None = None
    wants_structure: bool = False  # only what was handed in for the schema is a result

    @classmethod
    def of(cls, error: BaseException | None, result: object | None, **seen: Any) -> Ending:
        """The ending of a query that raised ``error``, or nothing, after the message ``result``.

        The SDK's ``ResultError`` brings the CLI's own frame, which has fields that the message
        lacks; it is believed over the message. ``seen`` is the rest of the fields.
        """
        frame = attribute(error, "data") if _is(error, "ResultError") else None
        if not isinstance(frame, Mapping) or not frame:
            frame = result if result is None or isinstance(result, Mapping) else vars(result)
        return cls(error=error, result=frame, **seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a query failed, and what the attempt says of it."""

    reason: Reason
    failure: Failure

    @property
    def limit(self) -> bool:
        """Whether a limit of ours ended it; with a higher one the session can go on."""
        return self.reason in (Reason.TURNS, Reason.BUDGET)

    @property
    def shape(self) -> bool:
        """Whether there was an answer and only its form was wrong: it can be repaired."""
        return self.reason is Reason.SHAPE

    @property
    def session_gone(self) -> bool:
        """Whether the session to be resumed is not there: it has to begin anew."""
        return self.reason is Reason.SESSION_GONE

    @property
    def session_taken(self) -> bool:
        """Whether the session to be begun is there already: it has to be resumed."""
        return self.reason is Reason.SESSION_TAKEN


def verdict_of(ending: Ending) -> Verdict | None:
    """Why the query failed; None if it did what was asked."""
    reason = _reason_of(ending)
    if reason is None:
        return None
    return Verdict(reason=reason, failure=_failure_of(reason, ending))


def verdict_for(reason: Reason, problem: str = "", *, model: str | None = None) -> Verdict:
    """What is said when somebody else has found the reason, before a query or after it.

    Args:
        problem: What else is known of it.
    """
    meaning = MEANINGS[reason]
    words = _filled(meaning, Ending(model=model))
    text = error_text(f"{words}: {problem}" if problem else words)
    failure = Failure(category=meaning.category, message=text, retry=meaning.retry)
    return Verdict(reason=reason, failure=failure)


def shape_verdict(problem: str) -> Verdict:
    """Of a result that came and does not fit; ``problem`` says where."""
    return verdict_for(Reason.SHAPE, problem)


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the rows ask of an ending whose result is there."""

    ending: Ending
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""

    @property
    def errors(self) -> list[str]:
        given = self.fields.get("errors")
        return [text for text in given if isinstance(text, str)] if isinstance(given, list) else []

    @property
    def said(self) -> str:
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

    def says(self, *words: str) -> bool:
        return any(word in self.said for word in words)

    def has(self, name: str, *values: str) -> bool:
        return self.text(name) in values

    def assistant(self, *names: str) -> bool:
        return self.ending.assistant_error in names


# The first row that fits wins. Names that mean one thing stand above the status (a lack of credit
# has 400, and so has a prompt that is too long), and the status above those that mean several:
# what is called a server error may be the network.
_ROWS: tuple[tuple[Reason, Callable[[_Frame], bool]], ...] = (
    (Reason.TURNS, lambda it: it.has("subtype", "error_max_turns") or it.terminal == "max_turns"),
    (
        Reason.BUDGET,
        lambda it: it.has("subtype", "error_max_budget_usd") or it.terminal == "budget_exhausted",
    ),
    (Reason.SHAPE, lambda it: it.has("subtype", "error_max_structured_output_retries")),
    (Reason.SESSION_GONE, lambda it: it.says("No conversation found")),
    (Reason.BILLING, lambda it: it.assistant("billing_error")),
    (
        Reason.TOO_LONG,
        lambda it: it.terminal in ("prompt_too_long", "blocking_limit", "rapid_refill_breaker"),
    ),
    (Reason.USAGE_LIMIT, lambda it: it.has("api_error", "usage_limit_reached")),
    (Reason.TROUBLE, lambda it: it.failed_at_api and it.ending.api_trouble is not None),
    (Reason.STATUS, lambda it: it.status is not None),
    (Reason.INTERRUPTED, lambda it: it.terminal in ("aborted_streaming", "aborted_tools")),
    (Reason.TOO_LONG, lambda it: it.terminal == "image_error"),
    (Reason.MALFORMED_CALLS, lambda it: it.terminal == "malformed_tool_use_exhausted"),
    (Reason.REFUSAL, lambda it: it.is_error and it.has("stop_reason", "refusal")),
    (
        Reason.NETWORK,
        lambda it: it.has("api_error", "connection_failed") or it.says("ECONN", "ENOTFOUND"),
    ),
    (
        Reason.NO_ANSWER,
        lambda it: (
            it.has("api_error", "no_response", "stream_idle_timeout") or it.says("timed out")
        ),
    ),
    (Reason.NO_CREDENTIALS, lambda it: it.assistant("authentication_failed")),
    (Reason.OUTPUT_LIMIT, lambda it: it.assistant("max_output_tokens")),
    (Reason.BAD_ANSWER, lambda it: it.says("malformed response", "JSON Parse error")),
    (Reason.USAGE_LIMIT, lambda it: it.assistant("rate_limit")),
    (Reason.SERVER, lambda it: it.assistant("server_error", "overloaded")),
    (Reason.EXECUTION, lambda it: it.has("subtype", "error_during_execution") and bool(it.errors)),
    (Reason.CLI_ENDED, lambda it: it.has("subtype", "error_during_execution")),
    (Reason.UNKNOWN, lambda _: True),
)


def _reason_of(ending: Ending) -> Reason | None:
    frame = None if ending.result is None else _Frame(ending, ending.result)
    ours = ending.error is None or ending.late is not None or _is(ending.error, "ClaudeSDKError")
    if frame is not None and not frame.is_error and ours:
        # A result that came is one, whatever went wrong while the CLI was closed.
        return _reason_of_success(ending, frame)
    if ending.late is not None:
        return _reason_of_lateness(ending)
    if ending.error is not None and not _is(ending.error, "ResultError"):
        return _reason_of_error(ending, ending.error)
    if frame is None:
        return Reason.NO_RESULT
    return next(reason for reason, fits in _ROWS if fits(frame))


def _reason_of_success(ending: Ending, frame: _Frame) -> Reason | None:
    if frame.terminal not in _DONE:
        return Reason.STOPPED
    missing = ending.wants_structure and frame.fields.get("structured_output") is None
    return Reason.SHAPE if missing else None


def _reason_of_lateness(ending: Ending) -> Reason:
    """The CLI asks again by itself: what the API said last is why it took so long."""
    if ending.api_trouble is not None:
        return Reason.TROUBLE
    return Reason.DEADLINE if ending.api_status is None else Reason.STATUS


def _reason_of_error(ending: Ending, error: BaseException) -> Reason:
    if _is(error, "CLINotFoundError"):
        return Reason.CLI_MISSING
    if _is(error, "CLIConnectionError"):
        return _reason_of_start(text_of(error))
    if _is(error, "CLIJSONDecodeError", "MessageParseError"):
        return Reason.CLI_OUTPUT
    if _is(error, "ProcessError"):
        if _signal_of(error) is not None:
            return Reason.CLI_KILLED
        return Reason.SESSION_TAKEN if "already in use" in ending.stderr else Reason.OPTIONS
    return Reason.CLI_SILENT if "Control request timeout" in text_of(error) else Reason.RAISED


def _reason_of_start(said: str) -> Reason:
    if "Working directory does not exist" in said:
        return Reason.FOLDER_MISSING
    gone = ("terminated process", "exited with error", "process stdin", "not ready for writing")
    return Reason.CLI_ENDED if any(words in said for words in gone) else Reason.CLI_START


def _failure_of(reason: Reason, ending: Ending) -> Failure:
    error = ending.error
    if reason is Reason.RAISED and error is not None:
        return failure_of(error)
    meaning = _meaning_of(reason, ending)
    failure = Failure(
        category=meaning.category,
        message=error_text(_message(reason, meaning, ending)),
        error_type=None if error is None else failure_of(error).error_type,
        retry_after=ending.retry_after if meaning.category in _PUT_OFF else None,
        retry=meaning.retry,
    )
    if reason is not Reason.CLI_KILLED:
        return failure
    exit_ = failure_of_exit(None, _signal_of(error))
    return replace(failure, message=f"{meaning.words}: {exit_.message}", signal=exit_.signal)


def _meaning_of(reason: Reason, ending: Ending) -> Meaning:
    meaning = MEANINGS[reason]
    if reason is Reason.STATUS:
        return meaning_of_status(_status_of(ending))
    if reason is Reason.TROUBLE:
        return replace(meaning, category=ending.api_trouble or meaning.category)
    if reason is Reason.CLI_START and ending.error is not None and ending.error.__cause__:
        # A machine that is full for a moment, and not what somebody wrote.
        of_cause = category_of(ending.error.__cause__)
        return replace(meaning, category=of_cause) if of_cause.retryable else meaning
    return meaning


def _message(reason: Reason, meaning: Meaning, ending: Ending) -> str:
    late = "" if ending.late is None else late_text(ending.late)
    if reason is Reason.DEADLINE:
        return late
    words = ": ".join(part for part in (late, _filled(meaning, ending)) if part)
    said = _ADVICE.sub("", _said(reason, ending))[:_SHOWN_CHARACTERS]
    return f"{words}; it said: {said}" if said else words


def _filled(meaning: Meaning, ending: Ending) -> str:
    frame = _Frame(ending, ending.result or {})
    return meaning.words.format(
        model=repr(ending.model) if ending.model else "of this task",
        status=_status_of(ending),
        terminal=frame.terminal,
    )


def _said(reason: Reason, ending: Ending) -> str:
    """What the CLI or the SDK said itself, where that is more than we say."""
    if reason is Reason.OPTIONS:
        return ending.stderr.strip()[-_SHOWN_CHARACTERS:]
    if reason in _SAID_BY_ERROR and ending.error is not None:
        return text_of(ending.error)
    return "" if reason in _SAID_ENOUGH else _Frame(ending, ending.result or {}).said


_SAID_BY_ERROR = (
    Reason.CLI_MISSING,
    Reason.CLI_START,
    Reason.CLI_ENDED,
    Reason.CLI_OUTPUT,
    Reason.FOLDER_MISSING,
)
# The CLI's own words are for somebody who sits in front of it ("Please run /login"), or are what
# the model said.
_SAID_ENOUGH = (Reason.NO_CREDENTIALS, Reason.STOPPED)


def _status_of(ending: Ending) -> int:
    frame = _Frame(ending, ending.result or {})
    return frame.status or ending.api_status or 0


def _signal_of(error: BaseException | None) -> int | None:
    code = attribute(error, "exit_code")
    if not isinstance(code, int) or 0 <= code <= _SIGNALLED:
        return None
    return -code if code < 0 else code - _SIGNALLED


def _is(error: BaseException | None, *names: str) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)
