"""The messages of failed queries: a remedy, and no secrets."""

from datetime import timedelta

import pytest

from longshore.core.agents.failures import QueryEnding, query_failure_of
from longshore.core.tasks.failures import MESSAGE_LIMIT
from longshore.core.tasks.failures import ErrorCategory as Category
from longshore.core.text.sanitise import MASK
from longshore.errors import Retry
from tests.unit.core.agents.failure_samples import (
    MODEL,
    CLIConnectionError,
    CLINotFoundError,
    ProcessError,
    classify,
    classify_frame,
    frame,
)

NINETY_SECONDS = timedelta(seconds=90)


def test_without_credentials_the_message_names_the_variables_and_where_they_belong() -> None:
    _, failure = classify_frame(
        {"result": "Not logged in · Please run /login"}, assistant_error="authentication_failed"
    )

    for words in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "environment of the worker"):
        assert words in failure.message
    assert "/login" not in failure.message


@pytest.mark.parametrize("status", [403, 404])
def test_a_refused_model_is_named(status: int) -> None:
    _, failure = classify_frame({"api_error_status": status})

    assert f"model {MODEL!r}" in failure.message


def test_a_default_model_is_called_the_model_of_the_task() -> None:
    ending = QueryEnding(result=frame(stop_reason="refusal"), model=None)

    query_failure = query_failure_of(ending)

    assert query_failure is not None
    assert query_failure.failure.message.startswith("model of this task refused")


def test_the_failure_for_a_missing_cli_names_what_to_install() -> None:
    _, failure = classify(CLINotFoundError("Claude Code not found at: /x"))

    assert "install longshore[agent]" in failure.message


def test_a_cli_that_refused_its_options_is_quoted_from_its_stderr() -> None:
    _, failure = classify(ProcessError(), stderr="\nerror: unknown option '--x'\n")

    assert failure.message.endswith("; message: error: unknown option '--x'")


def test_the_api_is_quoted_without_the_advice_of_the_cli() -> None:
    output = (
        "API Error: 529 Overloaded today. This is a server-side issue, usually temporary — try "
        "again in a moment. If it persists, check your inference gateway (127.0.0.1:38379)."
    )

    _, failure = classify_frame({"api_error_status": 529, "result": output})

    assert failure.message == "the API is overloaded (529); message: Overloaded today."


def test_secrets_in_a_quoted_message_are_masked_and_long_messages_truncated() -> None:
    output = "password=hunter2 " + "long words " * 100

    _, failure = classify_frame({"api_error_status": 400, "result": output})

    assert MASK in failure.message
    assert "hunter2" not in failure.message
    assert len(failure.message) <= MESSAGE_LIMIT


@pytest.mark.parametrize(("exit_code", "signal"), [(-9, "SIGKILL"), (143, "SIGTERM")])
def test_a_killed_cli_names_the_signal(exit_code: int, signal: str) -> None:
    _, failure = classify(ProcessError(exit_code=exit_code))

    assert failure.signal == signal
    assert signal in failure.message


def test_a_failure_names_the_class_of_its_error() -> None:
    _, failure = classify(CLINotFoundError("x"))

    assert failure.error_type == f"{CLINotFoundError.__module__}.CLINotFoundError"


@pytest.mark.parametrize(
    ("cause", "category"),
    [
        (OSError(12, "Cannot allocate memory"), Category.OUT_OF_MEMORY),
        (PermissionError(13, "Permission denied"), Category.PROGRAMMING),
    ],
)
def test_a_cli_that_could_not_start_for_lack_of_memory_is_retried(
    cause: Exception, category: Category
) -> None:
    error = CLIConnectionError("Failed to start Claude Code")
    error.__cause__ = cause

    _, failure = classify(error)

    assert failure.category is category


def test_an_error_of_a_tool_of_ours_may_decide_for_itself() -> None:
    _, failure = classify(Retry("later", after=NINETY_SECONDS))

    assert (failure.retryable, failure.retry_after) == (True, NINETY_SECONDS)
