"""The classification of failed queries: the reason, its category and its remedy."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from longshore.core.agents.failures import (
    FailureMeaning,
    QueryEnding,
    QueryFailureReason,
    meaning_of_status,
    query_failure_of,
    schema_failure,
)
from longshore.core.tasks.failures import ErrorCategory as Category
from tests.unit.core.agents.failure_samples import (
    CLIConnectionError,
    CLIJSONDecodeError,
    CLINotFoundError,
    MessageParseError,
    ProcessError,
    ResultError,
    classify,
    classify_frame,
    frame,
)

NINETY_SECONDS = timedelta(seconds=90)


STATUSES = [
    (400, Category.VALIDATION),
    (401, Category.AUTH),
    (402, Category.AUTH),
    (403, Category.AUTH),
    (404, Category.NOT_FOUND),
    (408, Category.TIMEOUT),
    (409, Category.VALIDATION),
    (413, Category.VALIDATION),
    (422, Category.VALIDATION),
    (429, Category.RATE_LIMIT),
    (500, Category.SERVER_ERROR),
    (502, Category.SERVER_ERROR),
    (503, Category.SERVER_ERROR),
    (504, Category.TIMEOUT),
    (529, Category.SERVER_ERROR),
]

# Fields of the frame, the error of the agent's last message, and what it comes to.
FRAMES = [
    ({"subtype": "error_max_turns"}, None, QueryFailureReason.TURNS, Category.VALIDATION),
    ({"terminal_reason": "max_turns"}, None, QueryFailureReason.TURNS, Category.VALIDATION),
    (
        {"subtype": "error_max_structured_output_retries"},
        None,
        QueryFailureReason.SCHEMA_MISMATCH,
        Category.PARSE,
    ),
    (
        {"subtype": "error_during_execution", "errors": ["No conversation found with …"]},
        None,
        QueryFailureReason.SESSION_MISSING,
        Category.NOT_FOUND,
    ),
    ({"api_error_status": 400}, "billing_error", QueryFailureReason.BILLING, Category.AUTH),
    (
        {"api_error_status": 400, "terminal_reason": "prompt_too_long"},
        "invalid_request",
        QueryFailureReason.TOO_LONG,
        Category.VALIDATION,
    ),
    ({"terminal_reason": "blocking_limit"}, None, QueryFailureReason.TOO_LONG, Category.VALIDATION),
    ({"terminal_reason": "image_error"}, None, QueryFailureReason.TOO_LONG, Category.VALIDATION),
    (
        {"api_error": "usage_limit_reached", "api_error_status": 429},
        "rate_limit",
        QueryFailureReason.USAGE_LIMIT,
        Category.RATE_LIMIT,
    ),
    ({}, "rate_limit", QueryFailureReason.USAGE_LIMIT, Category.RATE_LIMIT),
    (
        {"terminal_reason": "aborted_streaming"},
        None,
        QueryFailureReason.INTERRUPTED,
        Category.TIMEOUT,
    ),
    ({"terminal_reason": "aborted_tools"}, None, QueryFailureReason.INTERRUPTED, Category.TIMEOUT),
    (
        {"terminal_reason": "malformed_tool_use_exhausted"},
        None,
        QueryFailureReason.MALFORMED_CALLS,
        Category.PARSE,
    ),
    (
        {"stop_reason": "refusal"},
        "invalid_request",
        QueryFailureReason.REFUSAL,
        Category.VALIDATION,
    ),
    (
        {"api_error": "connection_failed"},
        "server_error",
        QueryFailureReason.NETWORK,
        Category.NETWORK,
    ),
    (
        {"result": "no luck (ENOTFOUND)"},
        "server_error",
        QueryFailureReason.NETWORK,
        Category.NETWORK,
    ),
    (
        {"result": "Request timed out"},
        "server_error",
        QueryFailureReason.NO_ANSWER,
        Category.TIMEOUT,
    ),
    ({"api_error": "no_response"}, "server_error", QueryFailureReason.NO_ANSWER, Category.TIMEOUT),
    (
        {"api_error": "stream_idle_timeout"},
        "unknown",
        QueryFailureReason.NO_ANSWER,
        Category.TIMEOUT,
    ),
    ({}, "authentication_failed", QueryFailureReason.NO_CREDENTIALS, Category.AUTH),
    ({}, "max_output_tokens", QueryFailureReason.OUTPUT_LIMIT, Category.VALIDATION),
    ({"result": "JSON Parse error: …"}, "unknown", QueryFailureReason.BAD_ANSWER, Category.PARSE),
    ({}, "server_error", QueryFailureReason.SERVER, Category.SERVER_ERROR),
    (
        {"subtype": "error_during_execution", "errors": ["no sandbox"]},
        None,
        QueryFailureReason.EXECUTION,
        Category.VALIDATION,
    ),
    ({"subtype": "error_during_execution"}, None, QueryFailureReason.CLI_ENDED, Category.CRASH),
    ({"subtype": "error_of_tomorrow"}, "unknown", QueryFailureReason.UNKNOWN, Category.UNKNOWN),
]

ERRORS = [
    (
        CLINotFoundError("Claude Code not found at: x"),
        QueryFailureReason.CLI_MISSING,
        Category.NOT_FOUND,
    ),
    (
        CLIConnectionError("Working directory does not exist: /x"),
        QueryFailureReason.FOLDER_MISSING,
        Category.NOT_FOUND,
    ),
    (
        CLIConnectionError("Cannot write to terminated process (exit code: 1)"),
        QueryFailureReason.CLI_ENDED,
        Category.CRASH,
    ),
    (CLIConnectionError("Failed to start"), QueryFailureReason.CLI_START, Category.PROGRAMMING),
    (CLIJSONDecodeError("Failed to decode JSON"), QueryFailureReason.CLI_OUTPUT, Category.PARSE),
    (MessageParseError("no such field"), QueryFailureReason.CLI_OUTPUT, Category.PARSE),
    (ProcessError(exit_code=-9), QueryFailureReason.CLI_KILLED, Category.CRASH),
    (ProcessError(exit_code=143), QueryFailureReason.CLI_KILLED, Category.CRASH),
    (ProcessError(exit_code=1), QueryFailureReason.OPTIONS, Category.VALIDATION),
    (ProcessError(exit_code=None), QueryFailureReason.OPTIONS, Category.VALIDATION),
    (
        Exception("Control request timeout: initialize"),
        QueryFailureReason.CLI_SILENT,
        Category.TIMEOUT,
    ),
    (TypeError("our own"), QueryFailureReason.RAISED, Category.PROGRAMMING),
    (ConnectionResetError("gone"), QueryFailureReason.RAISED, Category.NETWORK),
]


@pytest.mark.parametrize(("status", "category"), STATUSES)
def test_a_status_of_the_api_has_its_category(status: int, category: Category) -> None:
    reason, failure = classify_frame({"api_error_status": status}, assistant_error="server_error")

    assert (reason, failure.category) == (QueryFailureReason.STATUS, category)
    assert failure.retryable is category.retryable
    assert str(status) in failure.message


@pytest.mark.parametrize(("fields", "assistant", "reason", "category"), FRAMES)
def test_a_failed_result_has_its_reason_and_category(
    fields: dict[str, Any], assistant: str | None, reason: QueryFailureReason, category: Category
) -> None:
    match, failure = classify_frame(fields, assistant_error=assistant)

    assert (match, failure.category) == (reason, category)


@pytest.mark.parametrize(("error", "reason", "category"), ERRORS, ids=lambda value: str(value)[:40])
def test_an_error_without_a_result_has_its_reason_and_category(
    error: Exception, reason: QueryFailureReason, category: Category
) -> None:
    match, failure = classify(error)

    assert (match, failure.category) == (reason, category)


def test_a_stream_that_ends_without_a_result_is_a_crash() -> None:
    reason, failure = classify(None)

    assert (reason, failure.category, failure.retryable) == (
        QueryFailureReason.NO_RESULT,
        Category.CRASH,
        True,
    )


@pytest.mark.parametrize(
    "reason",
    [
        QueryFailureReason.SCHEMA_MISMATCH,
        QueryFailureReason.MALFORMED_CALLS,
        QueryFailureReason.BAD_ANSWER,
        QueryFailureReason.CLI_OUTPUT,
    ],
)
def test_unreadable_output_is_retried_although_a_parse_error_is_final(
    reason: QueryFailureReason,
) -> None:
    meaning = FailureMeaning(*reason.value)

    assert (meaning.category, meaning.retry) == (Category.PARSE, True)


def test_a_message_of_the_sdk_is_read_like_a_frame() -> None:
    message = SimpleNamespace(**frame(api_error_status=429))

    reason, failure = classify(None, message)

    assert (reason, failure.category) == (QueryFailureReason.STATUS, Category.RATE_LIMIT)


@pytest.mark.parametrize("data", [{}, None])
def test_an_error_without_a_frame_is_judged_by_the_message_before_it(data: object) -> None:
    reason, _ = classify(ResultError(data), frame(subtype="error_max_turns"))

    assert reason is QueryFailureReason.TURNS


def test_fields_of_wrong_types_are_ignored() -> None:
    reason, failure = classify_frame(
        {"errors": "No conversation found", "result": 7, "api_error": 1}
    )

    assert (reason, failure.category) == (QueryFailureReason.UNKNOWN, Category.UNKNOWN)


# Successful queries.


def test_a_completed_result_is_no_failure() -> None:
    result = {"subtype": "success", "is_error": False, "terminal_reason": "completed"}

    assert query_failure_of(QueryEnding.from_query(None, result)) is None


def test_structured_output_is_a_success() -> None:
    result = {"is_error": False, "structured_output": {"answer": 1}}

    assert query_failure_of(QueryEnding.from_query(None, result, wants_structure=True)) is None


@pytest.mark.parametrize(
    ("error", "late"), [(ProcessError(exit_code=143), None), (TimeoutError(), NINETY_SECONDS)]
)
def test_a_result_is_valid_even_if_an_error_follows(
    error: Exception, late: timedelta | None
) -> None:
    result = {"is_error": False, "terminal_reason": "completed"}

    assert query_failure_of(QueryEnding.from_query(error, result, late=late)) is None


def test_an_error_of_our_own_is_not_hidden_by_a_result() -> None:
    reason, failure = classify(KeyError("tokens"), {"is_error": False})

    assert (reason, failure.category) == (QueryFailureReason.RAISED, Category.PROGRAMMING)


def test_a_success_without_structured_output_is_a_failure_that_quotes_the_text() -> None:
    result = {"is_error": False, "terminal_reason": "completed", "result": "It went well."}

    decision = query_failure_of(QueryEnding.from_query(None, result, wants_structure=True))

    assert decision is not None
    assert decision.reason is QueryFailureReason.SCHEMA_MISMATCH
    assert "It went well." in decision.failure.message


@pytest.mark.parametrize("terminal", ["hook_stopped", "tool_deferred"])
def test_a_success_that_was_stopped_is_a_failure(terminal: str) -> None:
    reason, failure = classify(None, {"is_error": False, "terminal_reason": terminal})

    assert (reason, failure.category) == (QueryFailureReason.STOPPED, Category.VALIDATION)
    assert terminal in failure.message


# The step's timeout, and the gateway between the CLI and the API.


def test_a_step_out_of_time_is_late_by_its_own_time() -> None:
    reason, failure = classify(ProcessError(exit_code=143), late=NINETY_SECONDS)

    assert reason is QueryFailureReason.DEADLINE
    assert (failure.category, failure.message) == (Category.TIMEOUT, "timed out after 90 s")


def test_a_step_that_waited_for_a_rate_limit_until_its_time_was_up_is_rate_limited() -> None:
    reason, failure = classify(
        None, late=NINETY_SECONDS, api_status=429, retry_after=NINETY_SECONDS
    )

    assert (reason, failure.category) == (QueryFailureReason.STATUS, Category.RATE_LIMIT)
    assert failure.retry_after == NINETY_SECONDS
    assert failure.message == "timed out after 90 s: the API's rate limit is reached (429)"


def test_a_step_whose_api_could_not_be_reached_until_its_time_was_up_says_so() -> None:
    reason, failure = classify(None, late=NINETY_SECONDS, unreachable=True, api_status=502)

    assert (reason, failure.category) == (QueryFailureReason.API_UNREACHABLE, Category.NETWORK)


def test_a_connection_error_takes_precedence_over_the_status_derived_from_it() -> None:
    reason, failure = classify_frame({"api_error_status": 502}, unreachable=True)

    assert (reason, failure.category) == (QueryFailureReason.API_UNREACHABLE, Category.NETWORK)


def test_a_status_that_only_the_gateway_saw_is_used_where_the_api_was_the_end() -> None:
    at_api, _ = classify_frame({}, api_status=529, assistant_error="unknown")
    elsewhere, _ = classify_frame({"terminal_reason": "other"}, api_status=529)

    assert (at_api, elsewhere) == (QueryFailureReason.STATUS, QueryFailureReason.UNKNOWN)


@pytest.mark.parametrize(("status", "waits"), [(429, True), (529, True), (401, False)])
def test_the_api_s_retry_delay_is_used_where_waiting_helps(status: int, waits: bool) -> None:
    _, failure = classify_frame({"api_error_status": status}, retry_after=NINETY_SECONDS)

    assert (failure.retry_after == NINETY_SECONDS) is waits


# What the runner does with a failure.


def test_a_reached_limit_is_final() -> None:
    result = ResultError(frame(subtype="error_max_turns"))

    query_failure = query_failure_of(QueryEnding.from_query(result, None))

    assert query_failure is not None
    assert not query_failure.failure.retryable


def test_a_missing_session_is_recognised() -> None:
    missing = frame(errors=["No conversation found with session ID: 1"])
    query_failure = query_failure_of(QueryEnding.from_query(ResultError(missing), None))

    assert query_failure is not None
    assert query_failure.reason is QueryFailureReason.SESSION_MISSING


def test_a_session_that_exists_already_has_its_own_reason() -> None:
    reason, _ = classify(ProcessError(), stderr="Error: Session ID 1 is already in use.")

    assert reason is QueryFailureReason.SESSION_EXISTS


def test_a_result_that_does_not_fit_says_where() -> None:
    decision = schema_failure("/score: must be integer")

    assert decision.reason is QueryFailureReason.SCHEMA_MISMATCH
    assert decision.failure.message.endswith("outputSchema: /score: must be integer")
    assert decision.failure.retryable


@pytest.mark.parametrize(
    ("status", "category"), [(418, Category.VALIDATION), (599, "server-error")]
)
def test_an_unknown_status_is_classified_by_its_first_digit(
    status: int, category: Category
) -> None:
    assert meaning_of_status(status).category == category
