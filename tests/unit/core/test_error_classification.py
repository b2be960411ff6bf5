"""Classification: which evidence leads to which category, and which evidence is none."""

import binascii
import errno
import json
import ssl
import subprocess
import urllib.error
import xml.etree.ElementTree as ElementTree
from concurrent.futures.process import BrokenProcessPool
from email.message import Message
from enum import Enum
from http import HTTPStatus
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.tasks.failures import (
    ErrorCategory,
    category_of,
    message_of,
)
from longshore.errors import BackendUnavailable, Fail, NotFound

FINAL = {"auth", "validation", "parse", "not-found", "programming", "exit-code", "unknown"}
RETRYABLE = {"timeout", "network", "rate-limit", "server-error", "crash", "out-of-memory"}


class Foreign(Exception):
    """An error of a library, with any attributes."""

    def __init__(self, text: str = "", **attributes: object) -> None:
        super().__init__(text)
        self.__dict__.update(attributes)


def make_error_type(name: str, *bases: type[BaseException]) -> BaseException:
    return type(name, bases or (Exception,), {})()


def raised(function) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - any error is what is wanted here
        return error
    pytest.fail("nothing was raised")


def test_every_category_is_either_final_or_retryable() -> None:
    assert {category.value for category in ErrorCategory if not category.retryable} == FINAL
    assert {category.value for category in ErrorCategory if category.retryable} == RETRYABLE


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (raised(lambda: json.loads("{")), "parse"),
        (raised(lambda: b"\xff".decode()), "parse"),
        (TimeoutError(), "timeout"),
        (ConnectionResetError(), "network"),
        (BrokenPipeError(), "network"),
        (FileNotFoundError(), "not-found"),
        (NotADirectoryError(), "not-found"),
        (PermissionError(), "auth"),
        (MemoryError(), "out-of-memory"),
        (TypeError(), "programming"),
        (NameError(), "programming"),
        (UnboundLocalError(), "programming"),
        (AttributeError(), "programming"),
        (KeyError("x"), "programming"),
        (IndexError(), "programming"),
        (AssertionError(), "programming"),
        (RecursionError(), "programming"),
        (NotImplementedError(), "programming"),
        (ZeroDivisionError(), "programming"),
        (StopIteration(), "programming"),
        (raised(lambda: compile("def", "task.py", "exec")), "programming"),
        (ModuleNotFoundError("No module named 'x'"), "not-found"),
        (ImportError("cannot import name 'x'"), "not-found"),
        (ValueError(), "validation"),
        (raised(lambda: "\ud800".encode()), "validation"),
        (SystemExit(3), "exit-code"),
        (KeyboardInterrupt(), "unknown"),
        (Exception(), "unknown"),
        (RuntimeError("it did not work"), "unknown"),
        (OSError(errno.ENOSPC, "No space left on device"), "unknown"),
    ],
    ids=lambda value: repr(value) if isinstance(value, BaseException) else value,
)
def test_a_built_in_type_decides(error: BaseException, category: str) -> None:
    assert category_of(error) == category


class Code(Enum):
    UNAVAILABLE = (14, "unavailable")


@pytest.mark.parametrize(
    ("code", "category"),
    [
        ("ECONNREFUSED", "network"),
        ("ENOTFOUND", "network"),
        ("ECONNRESET", "network"),
        ("ETIMEDOUT", "timeout"),
        (errno.ECONNREFUSED, "network"),
        (errno.ETIMEDOUT, "timeout"),
        (errno.ENOMEM, "out-of-memory"),
        ("EACCES", "auth"),
        ("ENOENT", "not-found"),
        ("deadline_exceeded", "timeout"),
        ("RESOURCE_EXHAUSTED", "rate-limit"),
        (Code.UNAVAILABLE, "server-error"),
        (HTTPStatus.SERVICE_UNAVAILABLE, "server-error"),
        (503, "server-error"),
        ("overloaded_error", "server-error"),
        pytest.param(lambda: "UNAVAILABLE", "unknown", id="a method-unknown"),
        ("TIMEOUT", "timeout"),
        ("MODULE_NOT_FOUND", "not-found"),
        ("E_SOMETHING", "unknown"),
        (True, "unknown"),
        (1006, "unknown"),
    ],
    ids=str,
)
def test_a_code_decides(code: object, category: str) -> None:
    assert category_of(Foreign(code=code)) == category


def test_the_number_of_a_socket_error_decides() -> None:
    error = OSError(errno.EHOSTUNREACH, "No route to host")

    assert category_of(error) is ErrorCategory.NETWORK


def test_a_small_number_of_a_tls_error_is_not_taken_for_a_missing_file() -> None:
    error = ssl.SSLError(errno.ENOENT, "The operation did not complete")

    assert category_of(error) is ErrorCategory.NETWORK


def test_a_certificate_that_cannot_be_trusted_is_not_tried_again() -> None:
    assert category_of(ssl.SSLCertVerificationError()) is ErrorCategory.AUTH


@pytest.mark.parametrize(
    ("status", "category"),
    [
        (400, "validation"),
        (401, "auth"),
        (403, "auth"),
        (404, "not-found"),
        (408, "timeout"),
        (410, "not-found"),
        (422, "validation"),
        (429, "rate-limit"),
        (500, "server-error"),
        (503, "server-error"),
        (529, "server-error"),
        (599, "server-error"),
        ("503", "server-error"),
        (HTTPStatus.TOO_MANY_REQUESTS, "rate-limit"),
        (200, "unknown"),
        (409, "unknown"),
        (600, "unknown"),
        ("failed", "unknown"),
        ("٥٠٣", "server-error"),
        (None, "unknown"),
        ([503], "unknown"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "holder",
    [
        pytest.param(lambda status: {"status": status}, id="status"),
        pytest.param(lambda status: {"status_code": status}, id="status_code"),
        pytest.param(
            lambda status: {"response": SimpleNamespace(status_code=status)}, id="response"
        ),
        pytest.param(
            lambda status: {"response": SimpleNamespace(status=status)}, id="response.status"
        ),
        pytest.param(
            lambda status: {"response": {"ResponseMetadata": {"HTTPStatusCode": status}}}, id="aws"
        ),
    ],
)
def test_a_status_number_decides(holder, status: object, category: str) -> None:
    assert category_of(Foreign(**holder(status))) == category


def test_a_response_that_counts_as_false_is_still_read() -> None:
    class Response(SimpleNamespace):
        def __bool__(self) -> bool:
            return False

    assert category_of(Foreign(response=Response(status_code=503))) == "server-error"


def test_a_code_says_more_than_the_status_it_came_with() -> None:
    throttled = {
        "Error": {"Code": "ThrottlingException"},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }

    assert category_of(Foreign(response=throttled)) is ErrorCategory.RATE_LIMIT


@pytest.mark.parametrize("response", [{}, {"Error": "text", "ResponseMetadata": None}])
def test_a_response_of_another_shape_says_nothing(response: object) -> None:
    assert category_of(Foreign(response=response)) is ErrorCategory.UNKNOWN


def test_an_http_error_of_the_standard_library_is_read() -> None:
    error = urllib.error.HTTPError("http://h", 503, "Service Unavailable", Message(), None)

    assert category_of(error) is ErrorCategory.SERVER_ERROR


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (make_error_type("AuthenticationError"), "auth"),
        (make_error_type("RateLimitError"), "rate-limit"),
        (make_error_type("APIConnectionError"), "network"),
        (
            make_error_type("APITimeoutError", type("APIConnectionError", (Exception,), {})),
            "timeout",
        ),
        (make_error_type("ValidationError"), "validation"),
        (make_error_type("MyOwn", type("RateLimitError", (Exception,), {})), "rate-limit"),
        (subprocess.TimeoutExpired("x", 1), "timeout"),
        (subprocess.CalledProcessError(2, "x"), "exit-code"),
        (BrokenProcessPool(), "crash"),
        (raised(lambda: ElementTree.fromstring("<a>")), "parse"),  # noqa: S314
        (make_error_type("TOMLDecodeError", ValueError), "parse"),
        (binascii.Error(), "validation"),
        (NotFound("job", "x"), "not-found"),
        (BackendUnavailable(), "server-error"),
        (make_error_type("AbortError"), "timeout"),
        (make_error_type("RangeError"), "programming"),
        (make_error_type("ReferenceError"), "programming"),
        (make_error_type("Exception2"), "unknown"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_the_class_name_of_a_known_library_decides(error: BaseException, category: str) -> None:
    assert category_of(error) == category


def test_a_status_says_more_than_a_broad_base() -> None:
    class ApiError(ValueError):
        status_code = 503

    assert category_of(ApiError()) is ErrorCategory.SERVER_ERROR


@pytest.mark.parametrize("category", [*ErrorCategory])
def test_a_task_that_decides_names_the_category(category: ErrorCategory) -> None:
    assert category_of(Fail("no", category=category.value)) is category


@pytest.mark.parametrize("category", [None, "no such", ["auth"]])
def test_a_decision_without_a_known_category_is_judged_as_any_error(category: object) -> None:
    error = Foreign("HTTP 503", longshore_decision="fail", category=category)

    assert category_of(error) is ErrorCategory.SERVER_ERROR


def test_a_category_attribute_without_a_decision_is_ignored() -> None:
    assert category_of(Foreign(category="auth")) is ErrorCategory.UNKNOWN


class Broken(Exception):
    """Raises on every access."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    @property
    def status_code(self) -> int:
        raise RuntimeError("not set")


def test_an_error_that_fails_when_looked_at_is_unknown() -> None:
    assert category_of(Broken()) is ErrorCategory.UNKNOWN


def test_an_error_that_cannot_say_anything_is_called_by_its_class() -> None:
    assert message_of(Broken()) == "Broken"
    assert message_of(TimeoutError()) == "TimeoutError"


@given(
    st.dictionaries(
        st.sampled_from(["code", "errno", "status", "response", "reason", "longshore_decision"]),
        st.none() | st.integers() | st.text() | st.lists(st.integers()) | st.just({"Error": 1}),
    ),
    st.text(),
)
def test_every_error_has_a_category(attributes, text: str) -> None:
    assert category_of(Foreign(text, **attributes)) in ErrorCategory
