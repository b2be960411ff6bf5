"""Failures: what is kept of an error or an exit, and whether it is worth another attempt."""

import os
import pickle
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from email.message import Message
from signal import SIGKILL, SIGSEGV
from types import SimpleNamespace

import pytest

from longshore.core.tasks.failures import (
    MESSAGE_LIMIT,
    ErrorCategory,
    Failure,
    FailureRaised,
    failure_of,
    failure_of_exit,
    failure_of_silent_exit,
    failure_of_too_many_processes,
    timeout_text,
)
from longshore.core.text.sanitise import MASK
from longshore.errors import Fail, Retry

MINUTE = timedelta(minutes=1)


class Foreign(Exception):
    """An error of a library, with any attributes."""

    def __init__(self, **attributes: object) -> None:
        super().__init__("foreign")
        self.__dict__.update(attributes)


def test_an_error_becomes_its_category_text_and_type() -> None:
    assert failure_of(TimeoutError("too slow")) == Failure(
        category=ErrorCategory.TIMEOUT, message="too slow", error_type="TimeoutError"
    )


def test_the_type_of_a_library_is_named_with_its_module() -> None:
    assert failure_of(Foreign()).error_type == f"{__name__}.Foreign"


def test_the_text_is_masked() -> None:
    assert failure_of(ValueError("bad password=hunter2")).message == f"bad password={MASK}"


def test_the_text_is_kept_up_to_the_limit() -> None:
    whole = failure_of(ValueError("x y " * 125)).message
    cut = failure_of(ValueError("x y " * 125 + "z")).message

    assert whole == "x y " * 125
    assert len(cut) == MESSAGE_LIMIT
    assert cut.endswith("[cut]")


def test_text_that_no_store_could_write_is_made_writable() -> None:
    failure_of(OSError("file \udcff\x00")).message.encode()


@pytest.mark.parametrize("category", [*ErrorCategory])
def test_without_a_decision_the_category_says_whether_to_retry(category: ErrorCategory) -> None:
    failure = Failure(category=category, message="")

    assert failure.retryable is category.retryable


def test_a_task_may_request_a_retry_after_any_error() -> None:
    failure = failure_of(Retry("not yet", after=MINUTE))

    assert (failure.retryable, failure.retry_after) == (True, MINUTE)
    assert (failure.category, failure.message) == (ErrorCategory.UNKNOWN, "not yet")


def test_a_task_may_refuse_a_retry_after_any_error() -> None:
    failure = failure_of(Fail("HTTP 503, and it will stay so"))

    assert (failure.retryable, failure.category) == (False, ErrorCategory.SERVER_ERROR)


def test_a_task_may_name_the_category_of_its_refusal() -> None:
    assert failure_of(Fail("no", category="auth")).category is ErrorCategory.AUTH


@pytest.mark.parametrize("decision", ["maybe", None, ["retry"]])
def test_a_decision_that_is_none_leaves_it_to_the_category(decision: object) -> None:
    assert failure_of(Foreign(longshore_decision=decision, status=503)).retryable


@pytest.mark.parametrize(
    ("requested", "wait"),
    [
        (30, timedelta(seconds=30)),
        (1.5, timedelta(seconds=1.5)),
        ("120", timedelta(minutes=2)),
        (MINUTE, MINUTE),
        (-MINUTE, timedelta(0)),
        (-3, timedelta(0)),
        (0, timedelta(0)),
        (10**400, None),
        (1e300, timedelta(seconds=1e9)),
        (float("nan"), None),
        ("inf", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        (True, None),
        ([1], None),
        (None, None),
    ],
    ids=str,
)
def test_a_wait_is_understood_in_seconds_or_as_a_duration(requested: object, wait: object) -> None:
    assert failure_of(Foreign(retry_after=requested)).retry_after == wait


def a_message(**headers: str) -> Message:
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return message


@pytest.mark.parametrize(
    "attributes",
    [
        pytest.param({"response": SimpleNamespace(headers={"retry-after": "60"})}, id="lower"),
        pytest.param({"response": SimpleNamespace(headers={"Retry-After": "60"})}, id="title"),
        pytest.param({"headers": a_message(Retry_After="60")}, id="standard library"),
    ],
)
def test_the_header_of_a_response_is_honoured(attributes: dict[str, object]) -> None:
    assert failure_of(Foreign(status=429, **attributes)).retry_after == MINUTE


@pytest.mark.parametrize("headers", [None, {}, [("retry-after", "60")], 7])
def test_headers_of_another_shape_say_nothing(headers: object) -> None:
    assert failure_of(Foreign(response=SimpleNamespace(headers=headers))).retry_after is None


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (subprocess.CalledProcessError(3, "tool"), 3),
        (Foreign(exit_code=4), 4),
        (SystemExit(5), 5),
        (SystemExit("a text"), None),
        (Foreign(code=6), None),
    ],
    ids=repr,
)
def test_the_exit_code_that_an_error_carries_is_kept(
    error: BaseException, exit_code: int | None
) -> None:
    assert failure_of(error).exit_code == exit_code


def test_a_command_line_in_an_error_keeps_its_secret() -> None:
    error = subprocess.CalledProcessError(1, ["tool", "--token", "hunter2"])

    assert "hunter2" not in failure_of(error).message


def test_an_exit_code_other_than_zero_is_final() -> None:
    failure = failure_of_exit(2)

    assert (failure.category, failure.exit_code) == (ErrorCategory.EXIT_CODE, 2)
    assert not failure.retryable
    assert "exit code 2" in failure.message


def test_an_exit_code_that_the_definition_names_is_retryable() -> None:
    assert failure_of_exit(75, retryable_codes={75}).retryable
    assert not failure_of_exit(74, retryable_codes={75}).retryable


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "KeyError: 'PORT'"),
        (
            os.environ,  # noqa: TID251 - as a task reads it
            "KeyError: 'PORT' (a task has only the variables of worker.pass_environment)",
        ),
    ],
    ids=["a mapping", "a variable"],
)
def test_a_missing_key_is_named_as_such(
    monkeypatch: pytest.MonkeyPatch, values: Mapping[str, str], message: str
) -> None:
    monkeypatch.delenv("PORT", raising=False)
    with pytest.raises(KeyError) as caught:
        values["PORT"]

    assert failure_of(caught.value).message == message
    assert failure_of(KeyError("x")).message == "KeyError: 'x'"


def test_a_signal_is_a_crash() -> None:
    failure = failure_of_exit(-SIGKILL)

    assert (failure.category, failure.signal) == (ErrorCategory.CRASH, "SIGKILL")
    assert (failure.exit_code, failure.retryable) == (None, True)
    assert "SIGKILL" in failure.message


def test_an_unexplained_kill_may_be_a_lack_of_memory_and_has_the_peak() -> None:
    unknown = failure_of_exit(-SIGKILL)
    signals = failure_of_exit(-SIGKILL, peak_rss_bytes=3 * 2**29)

    assert unknown.message == "the process was ended by SIGKILL: lack of memory is possible"
    assert signals.message == f"{unknown.message} (1.5 GiB at its peak)"
    assert (unknown.peak_rss_bytes, signals.peak_rss_bytes) == (None, 3 * 2**29)
    assert signals.category is ErrorCategory.CRASH


def test_another_signal_says_nothing_of_memory() -> None:
    failure = failure_of_exit(-SIGSEGV, peak_rss_bytes=1024)

    assert failure.message == "the process was ended by SIGSEGV"
    assert failure.peak_rss_bytes == 1024


@pytest.mark.parametrize(
    ("peak", "shown"),
    [(1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"), (2**30 - 1, "1024 MiB"), (2**52, "4096 TiB")],
)
def test_a_killed_process_has_the_peak_in_a_readable_unit(peak: int, shown: str) -> None:
    failure = failure_of_exit(-SIGKILL, peak_rss_bytes=peak)

    assert failure.message.endswith(f": lack of memory is possible ({shown} at its peak)")
    assert failure.peak_rss_bytes == peak


def test_a_signal_without_a_name_is_given_by_number() -> None:
    assert failure_of_exit(-50).signal == "signal 50"


def test_an_unobserved_end_is_a_crash() -> None:
    failure = failure_of_exit(None)

    assert (failure.category, failure.signal) == (ErrorCategory.CRASH, None)


def test_a_crash_is_not_made_final_by_the_list_of_codes() -> None:
    assert failure_of_exit(-SIGSEGV, retryable_codes={1}).retryable


def test_exit_code_zero_is_no_failure() -> None:
    with pytest.raises(ValueError, match="exit code 0 is no failure"):
        failure_of_exit(0)


def test_an_attempt_whose_time_was_up_says_how_long_it_had() -> None:
    assert timeout_text(timedelta(seconds=2.5)) == "timed out after 2.5 s"


def test_a_failure_survives_pickle() -> None:
    failure = failure_of(Retry("later", after=MINUTE))

    assert pickle.loads(pickle.dumps(failure)) == failure  # noqa: S301


def test_who_knows_already_why_it_failed_is_believed() -> None:
    signals = Failure(category=ErrorCategory.AUTH, message="no key is set", retry=False)

    assert failure_of(FailureRaised(signals)) is signals
    assert str(FailureRaised(signals)) == "no key is set"


def test_a_process_that_exits_without_a_report_has_crashed() -> None:
    ended = failure_of_silent_exit(0, peak_rss_bytes=None)
    killed = failure_of_silent_exit(-SIGSEGV, peak_rss_bytes=1024)

    assert (ended.category, ended.exit_code) == (ErrorCategory.CRASH, 0)
    assert ended.message == "the process exited with exit code 0 without reporting a result"
    assert (killed.signal, killed.peak_rss_bytes) == ("SIGSEGV", 1024)


def test_too_many_processes_are_not_retried_and_name_the_settings() -> None:
    failure = failure_of_too_many_processes(7)

    assert failure.category is ErrorCategory.PROGRAMMING
    assert "more than 7 processes" in failure.message
    assert "resources.processes" in failure.message
    assert "worker.max_processes" in failure.message
