"""Failures: why an attempt did not succeed, as a value, and whether to try again.

An attempt fails by an exception or by the way its process ended; both become one ``Failure``, which
is in the row and in the events. Its message is masked and truncated here, once, because it is
stored, published and shown. Whether to retry follows from its category, unless the task (by raising
``Retry`` or ``Fail``) or its definition (by naming exit codes) decided otherwise.

A task may raise anything. To find the category, the evidence is weighed from strongest to weakest:
codes, status numbers, the names of the class and of its bases, and the cause. Words in the message
come last and only as whole words: "took 500 ms" is not a server error. An error without evidence is
unknown and is not retried: a retry could do harm twice.

Codes and names of other libraries are text, so that the libraries are not imported. The exception
is an object of another library: reading its attributes must not fail.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, StrEnum
from signal import Signals
from typing import Any

from longshore.core.text.sanitise import safe_excerpt

MESSAGE_LIMIT = 500
"""Longest error message, in characters."""

# Far longer than any real wait, far shorter than a timedelta can hold.
_MAX_WAIT_S = 10.0**9
_DECISIONS = {"retry": True, "fail": False}


class ErrorCategory(StrEnum):
    """The kind of a failure; it decides whether to retry."""

    AUTH = "auth"
    VALIDATION = "validation"
    PARSE = "parse"
    NOT_FOUND = "not-found"
    PROGRAMMING = "programming"
    EXIT_CODE = "exit-code"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"
    NETWORK = "network"
    RATE_LIMIT = "rate-limit"
    SERVER_ERROR = "server-error"
    CRASH = "crash"
    OUT_OF_MEMORY = "out-of-memory"

    @property
    def retryable(self) -> bool:
        """Whether another attempt may succeed."""
        return self in _RETRYABLE


_RETRYABLE = frozenset(
    {
        ErrorCategory.TIMEOUT,
        ErrorCategory.NETWORK,
        ErrorCategory.RATE_LIMIT,
        ErrorCategory.SERVER_ERROR,
        ErrorCategory.CRASH,
        ErrorCategory.OUT_OF_MEMORY,
    }
)


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

    @property
    def uses_attempt(self) -> bool:
        """Whether it uses up an attempt of the task: a rate limit that names a wait does not."""
        return self.category is not ErrorCategory.RATE_LIMIT or self.retry_after is None


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
    return f"timed out after {timeout.total_seconds():g} s"


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
    *,
    retryable_codes: Collection[int] = (),
    peak_rss_bytes: int | None = None,
) -> Failure:
    """Returns the failure of an attempt whose process ended in this way by itself.

    Args:
        exit_code: None if its end was not observed; a negative number is a signal, as in
            ``subprocess``.
        retryable_codes: Exit codes that the definition says are worth another attempt.
        peak_rss_bytes: Its peak memory, if measured.
    """
    if exit_code == 0:
        raise ValueError("exit code 0 is no failure: say what else was wrong")
    category, signal = ErrorCategory.CRASH, None
    if exit_code is None:
        message = "the process vanished without an exit code"
    elif exit_code > 0:
        category = ErrorCategory.EXIT_CODE
        message = f"the process ended with exit code {exit_code}"
    else:
        signal, exit_code = signal_name(-exit_code), None
        message = f"the process was ended by {signal}"
        if signal == Signals.SIGKILL.name:
            # The kernel gives no other sign when it kills a process because memory is exhausted.
            peak = (
                "" if peak_rss_bytes is None else f" ({_format_size(peak_rss_bytes)} at its peak)"
            )
            message = f"{message}: lack of memory is possible{peak}"
    return Failure(
        category=category,
        message=message,
        exit_code=exit_code,
        signal=signal,
        retry=True if exit_code in retryable_codes else None,
        peak_rss_bytes=peak_rss_bytes,
    )


def failure_of_too_many_processes(limit: int) -> Failure:
    """Returns the failure of an attempt that was ended because of the number of its processes."""
    message = (
        f"the attempt had more than {limit} processes; if it needs them, raise resources.processes"
        " in its definition or the setting worker.max_processes"
    )
    return Failure(category=ErrorCategory.PROGRAMMING, message=message)


def failure_of_silent_exit(exit_code: int | None, *, peak_rss_bytes: int | None) -> Failure:
    """Like ``failure_of_exit``, for a process that reports every error but has reported nothing."""
    if exit_code is not None and exit_code >= 0:
        message = f"the process exited with exit code {exit_code} without reporting a result"
        return Failure(category=ErrorCategory.CRASH, message=message, exit_code=exit_code)
    return failure_of_exit(exit_code, peak_rss_bytes=peak_rss_bytes)


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


def signal_name(number: int) -> str:
    """``SIGKILL``, or the number of a signal without a name."""
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
    return next((wait for value in requested if (wait := parse_wait(value)) is not None), None)


def _retry_after_header(holder: object) -> object:
    headers = safe_getattr(holder, "headers")
    try:
        # The headers of some libraries are case-sensitive.
        return headers.get("retry-after") or headers.get("Retry-After")
    # The headers are an object of another library, and may raise anything.
    except Exception:  # noqa: BLE001
        return None


def parse_wait(value: object) -> timedelta | None:
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


def _inverted(table: Mapping[ErrorCategory, str]) -> dict[str, ErrorCategory]:
    return {name: category for category, names in table.items() for name in names.split()}


_SOCKET_CODES = _inverted(
    {
        ErrorCategory.TIMEOUT: "ETIMEDOUT",
        ErrorCategory.NETWORK: (
            "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ENETUNREACH EHOSTUNREACH ENETDOWN "
            "EHOSTDOWN ENOTCONN EADDRNOTAVAIL"
        ),
        ErrorCategory.OUT_OF_MEMORY: "ENOMEM",
    }
)

# Only these: TLS libraries use the numbers 1 to 11 of `errno` for other errors.
ERRNO_NUMBERS = {
    number: _SOCKET_CODES[name] for number, name in errno.errorcode.items() if name in _SOCKET_CODES
}

# Codes of Node, AWS, gRPC and model providers, and names of classes: built-in ones, and those of
# well-known libraries.
NAMES = _SOCKET_CODES | _inverted(
    {
        ErrorCategory.AUTH: (
            "EACCES EPERM UNAUTHENTICATED PERMISSION_DENIED AccessDenied AccessDeniedException "
            "UnauthorizedOperation UnrecognizedClientException InvalidClientTokenId "
            "InvalidAccessKeyId ExpiredToken ExpiredTokenException SignatureDoesNotMatch "
            "AuthFailure invalid_api_key authentication_error permission_error "
            "AuthenticationError AuthenticationFailed AuthenticationException Unauthenticated "
            "Unauthorized UnauthorizedError PermissionDenied PermissionDeniedError Forbidden "
            "ForbiddenError NoCredentialsError PartialCredentialsError SSLCertVerificationError "
            "PermissionError"
        ),
        ErrorCategory.VALIDATION: (
            "INVALID_ARGUMENT OUT_OF_RANGE ValidationException InvalidParameterValue "
            "InvalidParameterException MissingParameter context_length_exceeded "
            "invalid_request_error ValidationError BadRequest BadRequestError InvalidArgument "
            "InvalidArgumentError InvalidRequestError UnprocessableEntityError "
            "ParamValidationError SchemaError UsageError ValueError"
        ),
        ErrorCategory.PARSE: (
            "ParseError ParserError ScannerError YAMLError XMLSyntaxError TOMLDecodeError "
            "DecodeError BadZipFile PdfReadError CLIJSONDecodeError MessageParseError "
            "ResponseParserError JSONDecodeError UnicodeDecodeError"
        ),
        ErrorCategory.NOT_FOUND: (
            "ENOENT NOT_FOUND NoSuchKey NoSuchBucket ResourceNotFoundException model_not_found "
            "not_found_error NotFound NotFoundError ResourceNotFound DoesNotExist "
            "CLINotFoundError FileNotFoundError NotADirectoryError MODULE_NOT_FOUND ImportError"
        ),
        ErrorCategory.PROGRAMMING: (
            "ProgrammingError RecursionError NotImplementedError NameError "
            "AttributeError TypeError AssertionError StopIteration StopAsyncIteration SyntaxError "
            "LookupError ArithmeticError RangeError ReferenceError"
        ),
        ErrorCategory.EXIT_CODE: "CalledProcessError ProcessError SystemExit",
        ErrorCategory.TIMEOUT: (
            "ESOCKETTIMEDOUT DEADLINE_EXCEEDED RequestTimeout RequestTimeoutException Timeout "
            "TimeoutError TimeoutException TimeoutExpired APITimeoutError ReadTimeout "
            "ReadTimeoutError ConnectTimeout ConnectTimeoutError ServerTimeoutError "
            "DeadlineExceeded AbortError TIMEOUT"
        ),
        ErrorCategory.NETWORK: (
            "ENOTFOUND EAI_AGAIN ConnectionError APIConnectionError CLIConnectionError "
            "ConnectError NetworkError TransportError ReadError WriteError ProtocolError "
            "RemoteProtocolError ChunkedEncodingError NewConnectionError ClientConnectionError "
            "ClientConnectorError ClientOSError ServerDisconnectedError ConnectionClosed "
            "ConnectionClosedError EndpointConnectionError HTTPClientError IncompleteRead "
            "IncompleteReadError BadStatusLine gaierror herror SSLError"
        ),
        ErrorCategory.RATE_LIMIT: (
            "RESOURCE_EXHAUSTED Throttling ThrottlingException ThrottledException "
            "RequestThrottled RequestThrottledException TooManyRequestsException "
            "ProvisionedThroughputExceededException RequestLimitExceeded SlowDown "
            "rate_limit_error rate_limit_exceeded RateLimitError RateLimitExceeded "
            "TooManyRequests TooManyRequestsError ResourceExhausted ThrottlingError"
        ),
        ErrorCategory.SERVER_ERROR: (
            "UNAVAILABLE INTERNAL ABORTED InternalFailure InternalError "
            "ServiceUnavailableException overloaded_error api_error ServerError "
            "InternalServerError ServiceUnavailable ServiceUnavailableError BadGateway "
            "GatewayTimeout OverloadedError BackendUnavailable"
        ),
        ErrorCategory.CRASH: "BrokenExecutor BrokenProcessPool WorkerLostError",
        ErrorCategory.OUT_OF_MEMORY: "OutOfMemoryError MemoryError",
    }
)

STATUS_NUMBERS = {
    **dict.fromkeys((400, 413, 415, 422), ErrorCategory.VALIDATION),
    **dict.fromkeys((401, 403, 407), ErrorCategory.AUTH),
    **dict.fromkeys((404, 410), ErrorCategory.NOT_FOUND),
    408: ErrorCategory.TIMEOUT,
    429: ErrorCategory.RATE_LIMIT,
    # Also those that only one provider uses, such as 529 for "overloaded".
    **dict.fromkeys(range(500, 600), ErrorCategory.SERVER_ERROR),
}

# A number is a status only after one of these words.
STATUS_IN_TEXT = re.compile(
    r"\b(?:HTTP(?:/[\d.]{1,3}| error)?|status(?:[ _]?code)?|API error|error code)[ :=]{1,3}"
    r"(?P<status>[1-5]\d\d)\b(?! ?(?:ms|s|sec|seconds|bytes|rows|times|%))",
    re.IGNORECASE,
)

# A code or a class name that was printed, as by a command-line tool.
NAME_IN_TEXT = re.compile(
    r"\b(?:StatusCode\.)?(?P<name>E[A-Z_]{4,20}|(?<=StatusCode\.)[A-Z_]{4,30}"
    r"|[a-z]{3,20}(?:_[a-z]{2,20}){0,2}_error|[A-Z][A-Za-z]{3,60}(?:Exception|Error|Exceeded))\b"
)

# The first row that matches wins.
TEXT_PATTERNS: tuple[tuple[re.Pattern[str], ErrorCategory], ...] = tuple(
    (re.compile(rf"\b(?:{words})\b", re.IGNORECASE), category)
    for words, category in (
        (r"out of memory|cannot allocate memory|OOM[- ]?killed", ErrorCategory.OUT_OF_MEMORY),
        (
            r"rate[ -]limit(?:s|ed|ing)?|too many requests|throttl(?:ed|ing)|quota exceeded",
            ErrorCategory.RATE_LIMIT,
        ),
        (
            r"unauthori[sz]ed|forbidden|(?:access|permission) denied|invalid credentials"
            r"|authentication (?:failed|required)|(?:invalid|incorrect) (?:x-)?api[ -]key",
            ErrorCategory.AUTH,
        ),
        (
            r"internal server error|bad gateway|service unavailable|gateway time-?out"
            r"|(?:server|service|model|api|system) (?:is )?(?:currently )?overloaded",
            ErrorCategory.SERVER_ERROR,
        ),
        (r"time-?out|timed[ -]out|deadline exceeded", ErrorCategory.TIMEOUT),
        (
            r"connection (?:was )?(?:refused|reset|aborted|closed|lost|error)|broken pipe"
            r"|network (?:is )?(?:unreachable|error)|no route to host|socket hang up"
            r"|name or service not known|temporary failure in name resolution|fetch failed",
            ErrorCategory.NETWORK,
        ),
        (
            r"(?:invalid|malformed|unparsable) json|parse error|failed to parse"
            r"|unexpected (?:token|end of (?:json|input|file))",
            ErrorCategory.PARSE,
        ),
        (
            r"validation (?:failed|errors?)"
            r"|invalid (?:input|arguments?|parameters?|request(?: ?id)?)",
            ErrorCategory.VALIDATION,
        ),
        (r"not found|no such file or directory|does not exist", ErrorCategory.NOT_FOUND),
    )
)


_MAX_CAUSE_DEPTH = 8  # a chain of causes may be a cycle
_TEXT_LIMIT_CHARACTERS = 4_000
_MAX_MEMBERS = 50  # of an exception group


def category_of(error: BaseException) -> ErrorCategory:
    """Returns the category of an error that a task raised."""
    return _category(error, 0) or ErrorCategory.UNKNOWN


def message_of(error: BaseException) -> str:
    """Returns the message of the error, or the name of its class if it has none."""
    try:
        text = str(error)
    # The class may have a broken `__str__`; its failure must still be reported.
    except Exception:  # noqa: BLE001
        text = ""
    if type(error) is KeyError:
        # Its text is only the key.
        return f"KeyError: {text}{_environment_hint(error)}"
    return text or type(error).__name__


def _environment_hint(error: BaseException) -> str:
    """Says that a variable was not passed on, if the error is of ``os.environ``."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_variable = trace is not None and trace.tb_frame.f_globals.get("__name__") == "os"
    return " (a task has only the variables of worker.pass_environment)" if is_variable else ""


def safe_getattr(holder: object, name: str) -> Any:
    """Returns an attribute of an object of another library; None if it is missing or raises."""
    try:
        return getattr(holder, name, None)
    # A property may raise anything; httpx2 has one that raises until it is set.
    except Exception:  # noqa: BLE001
        return None


def _category(error: BaseException, depth: int) -> ErrorCategory | None:
    if depth > _MAX_CAUSE_DEPTH:
        return None
    if isinstance(error, BaseExceptionGroup):
        return _group_category(error, depth)
    if category := _by_evidence(error):
        return category
    cause = _cause_of(error)
    from_cause = _category(cause, depth + 1) if cause is not None else None
    return from_cause or _by_text(error)


def _group_category(group: BaseExceptionGroup[BaseException], depth: int) -> ErrorCategory | None:
    """Returns the first category that is not retryable, or that of the first member."""
    members = group.exceptions[:_MAX_MEMBERS]
    categories = [_category(member, depth + 1) or ErrorCategory.UNKNOWN for member in members]
    return next((item for item in categories if not item.retryable), categories[0])


def _by_evidence(error: BaseException) -> ErrorCategory | None:
    return _declared(error) or _by_code(error) or _by_status(error) or _by_name(error)


def _cause_of(error: BaseException) -> BaseException | None:
    # `__context__` is only the error that was being handled, and need not be the cause.
    for candidate in (error.__cause__, safe_getattr(error, "reason")):
        if isinstance(candidate, BaseException):
            return candidate
    return None


def _declared(error: BaseException) -> ErrorCategory | None:
    if safe_getattr(error, "longshore_decision") is None:
        return None
    try:
        return ErrorCategory(safe_getattr(error, "category"))
    except ValueError:
        return None


def _by_code(error: BaseException) -> ErrorCategory | None:
    codes = [safe_getattr(error, name) for name in ("errno", "code")]
    match safe_getattr(error, "response"):
        case {"Error": {"Code": code}}:
            codes.append(code)
    return next(filter(None, map(_category_of_code, codes)), None)


def _category_of_code(code: Any) -> ErrorCategory | None:
    if isinstance(code, int):
        return ERRNO_NUMBERS.get(code)
    name = code.name if isinstance(code, Enum) else code
    if not isinstance(name, str):
        return None
    # Connect uses lower case for the codes of gRPC.
    return NAMES.get(name) or NAMES.get(name.upper())


def _by_status(error: BaseException) -> ErrorCategory | None:
    statuses = [safe_getattr(error, name) for name in ("status", "status_code", "code")]
    match safe_getattr(error, "response"):
        case {"ResponseMetadata": {"HTTPStatusCode": status}}:
            statuses.append(status)
        case response:
            statuses += [safe_getattr(response, name) for name in ("status_code", "status")]
    return next(filter(None, map(_category_of_status, statuses)), None)


def _category_of_status(status: Any) -> ErrorCategory | None:
    if isinstance(status, str) and len(status) == 3 and status.isdecimal():
        status = int(status)
    return STATUS_NUMBERS.get(status) if isinstance(status, int) else None


def _by_name(error: BaseException) -> ErrorCategory | None:
    # Libraries derive their errors from built-in types, whose names are found last.
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((NAMES[name] for name in names if name in NAMES), None)


def _by_text(error: BaseException) -> ErrorCategory | None:
    # An interrupt or a cancellation is not a failure.
    if not isinstance(error, Exception):
        return None
    text = message_of(error)[:_TEXT_LIMIT_CHARACTERS]
    for match in STATUS_IN_TEXT.finditer(text):
        if category := STATUS_NUMBERS.get(int(match["status"])):
            return category
    for match in NAME_IN_TEXT.finditer(text):
        if category := NAMES.get(match["name"]):
            return category
    return next((category for pattern, category in TEXT_PATTERNS if pattern.search(text)), None)
