"""Where an error itself says nothing: its causes, the members of a group, and words at last."""

import urllib.error

import pytest

from longshore.core.tasks.failures import ErrorCategory, category_of


def chained(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


def test_an_error_that_says_nothing_is_judged_by_its_cause() -> None:
    error = chained(RuntimeError("step 3"), chained(RuntimeError("fetch"), TimeoutError()))

    assert category_of(error) is ErrorCategory.TIMEOUT


def test_a_type_of_its_own_outranks_the_cause() -> None:
    assert category_of(chained(ValueError(), TimeoutError())) is ErrorCategory.VALIDATION


def test_the_cause_outranks_words() -> None:
    error = chained(RuntimeError("connection refused"), PermissionError())

    assert category_of(error) is ErrorCategory.AUTH


def test_words_of_the_error_count_when_its_cause_is_silent() -> None:
    error = chained(RuntimeError("connection refused"), RuntimeError("hm"))

    assert category_of(error) is ErrorCategory.NETWORK


def test_what_was_only_being_handled_is_no_cause() -> None:
    error = RuntimeError("cleaning up went wrong")
    error.__context__ = TimeoutError()

    assert category_of(error) is ErrorCategory.UNKNOWN


def test_the_reason_of_a_url_error_is_its_cause() -> None:
    assert category_of(urllib.error.URLError(TimeoutError())) is ErrorCategory.TIMEOUT
    assert category_of(urllib.error.URLError(FileNotFoundError())) is ErrorCategory.NOT_FOUND


def test_a_cycle_of_causes_ends() -> None:
    first, other = RuntimeError("a"), RuntimeError("b")
    first.__cause__, other.__cause__ = other, first

    assert category_of(first) is ErrorCategory.UNKNOWN


def test_a_group_of_failures_that_may_pass_is_retryable() -> None:
    group = ExceptionGroup("two", [TimeoutError(), ConnectionError()])

    assert category_of(group) is ErrorCategory.TIMEOUT


def test_one_final_member_makes_a_group_final() -> None:
    group = ExceptionGroup("two", [TimeoutError(), ExceptionGroup("in", [PermissionError()])])

    assert category_of(group) is ErrorCategory.AUTH


def test_a_group_is_followed_as_a_cause() -> None:
    group = BaseExceptionGroup("one", [TimeoutError()])

    assert category_of(chained(RuntimeError("run"), group)) is ErrorCategory.TIMEOUT


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("HTTP 503", "server-error"),
        ("HTTP/1.1 502 for /x", "server-error"),
        ("HTTP Error 404: gone", "not-found"),
        ("got status code: 429", "rate-limit"),
        ("status=401", "auth"),
        ("status_code=500", "server-error"),
        ('API Error: 529 {"type":"error"}', "server-error"),
        ("Error code: 400 - bad", "validation"),
        ("exit status 137, HTTP 503", "server-error"),
        ("connect ECONNREFUSED 127.0.0.1:1", "network"),
        ("getaddrinfo ENOTFOUND host", "network"),
        ("status = StatusCode.UNAVAILABLE", "server-error"),
        ("An error occurred (ThrottlingException) when calling PutItem", "rate-limit"),
        ("anthropic.RateLimitError: slow down", "rate-limit"),
        ("StrangeError: after an ECONNRESET", "network"),
        ('{"type": "overloaded_error"}', "server-error"),
        ("Rate limit reached for requests", "rate-limit"),
        ("Too Many Requests", "rate-limit"),
        ("request timed out", "timeout"),
        ("Timeout after 30 s", "timeout"),
        ("Connection reset by peer", "network"),
        ("Temporary failure in name resolution", "network"),
        ("Internal Server Error", "server-error"),
        ("the model is currently overloaded", "server-error"),
        ("CUDA out of memory", "out-of-memory"),
        ("Unauthorized", "auth"),
        ("invalid x-api-key", "auth"),
        ("invalid JSON in answer", "parse"),
        ("validation failed for field a", "validation"),
        ("invalid requestId: a/b", "validation"),
        ("model not found", "not-found"),
        ("took 500 ms", "unknown"),
        ("status 500 ms", "unknown"),
        ("processed 429 rows, 503 left", "unknown"),
        ("error: 500 rows were skipped", "unknown"),
        ("HTTP 5031", "unknown"),
        ("separate limits were generated", "unknown"),
        ("the corporate limit", "unknown"),
        ("multitimeouted", "unknown"),
        ("no matching overloaded function", "unknown"),
        ("port 4040, id 400", "unknown"),
    ],
)
def test_words_count_last_and_as_whole_words_only(text: str, category: str) -> None:
    assert category_of(RuntimeError(text)) == category


def test_words_far_into_a_text_are_not_looked_for() -> None:
    assert category_of(RuntimeError("x " * 10_000 + "HTTP 503")) is ErrorCategory.UNKNOWN


def test_a_cancellation_is_not_explained_by_its_words() -> None:
    class Cancelled(BaseException):
        pass

    assert category_of(Cancelled("timed out")) is ErrorCategory.UNKNOWN
