"""How a command ends: one table of exit codes, and how errors are told.

A script may rely on these numbers. An error is one sentence on stderr that says what to do; with
``-o json`` it is one JSON object there, so that a program need not read sentences.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import IntEnum

from longshore import errors
from longshore.errors import (
    AlreadyExists,
    BackendError,
    ConfigurationError,
    Conflict,
    InvalidJob,
    LongshoreError,
    NotFound,
    UsageError,
)


class ExitCode(IntEnum):
    """What a command's exit code means."""

    OK = 0, "success"
    FAILED = 1, "the job, check or demo failed"
    USAGE = 2, "invalid command line, setting or file; nothing was changed"
    NOT_FOUND = 3, "no such job, task or data folder"
    REFUSED = 4, "conflict: changed by someone else, or not allowed in this state"
    BACKEND = 5, "the store or the server is unreachable or damaged"
    TIMED_OUT = 124, "run: the command timed out"
    NOT_EXECUTABLE = 126, "run: the command cannot be executed"
    COMMAND_NOT_FOUND = 127, "run: the command was not found"
    INTERRUPTED = 130, "interrupted by Ctrl-C"
    BROKEN_PIPE = 141, "output pipe closed (SIGPIPE)"

    meaning: str

    def __new__(cls, number: int, meaning: str) -> ExitCode:
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code


# The first row that fits wins.
_BY_ERROR: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (ConfigurationError, ExitCode.USAGE),
    (UsageError, ExitCode.USAGE),
    (NotFound, ExitCode.NOT_FOUND),
    (Conflict, ExitCode.REFUSED),
    (BackendError, ExitCode.BACKEND),
    (LongshoreError, ExitCode.FAILED),
    # What is left of the operating system's errors came from the data folder.
    (OSError, ExitCode.BACKEND),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code for an error; one that nobody expected counts as a failure."""
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED


class MissingResource(NotFound):
    """Something was asked for that is not there, with a word on what to do."""

    def __init__(self, subject: str, advice: str) -> None:
        super().__init__(subject, advice)

    def __str__(self) -> str:
        return f"{self.kind}; {self.name}"


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the command line asks for JSON, as far as can be told before it is parsed."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for index, argument in enumerate(own):
        if argument in ("-ojson", "-o=json", "--output=json"):
            return True
        if argument in ("-o", "--output") and list(own[index + 1 : index + 2]) == ["json"]:
            return True
    return False


def report_error(error: BaseException, code: int, *, as_json: bool) -> None:
    """Say on stderr what went wrong."""
    if as_json:
        document: dict[str, object] = {
            "type": _public_error_name(error),
            "message": message_of(error),
            "exitCode": int(code),
        }
        if isinstance(error, InvalidJob):
            document["problems"] = [
                {"path": problem.path, "message": problem.message} for problem in error.problems
            ]
        elif isinstance(error, ConfigurationError):
            document["problems"] = [{"message": problem} for problem in error.problems]
        print_stderr(json.dumps({"error": document}, ensure_ascii=False))
    else:
        print_stderr(f"longshore: {message_of(error)}")


def _public_error_name(error: BaseException) -> str:
    """The error's class as others can know it: the first that ``longshore.errors`` has."""
    kinds = type(error).__mro__
    return next((k.__name__ for k in kinds if k.__module__ == errors.__name__), kinds[0].__name__)


def message_of(error: BaseException) -> str:
    """What is told of an error."""
    if isinstance(error, ConfigurationError) and len(error.problems) > 1:
        return "the settings are wrong:\n  " + "\n  ".join(error.problems)
    if isinstance(error, AlreadyExists):
        return f"{error}; choose another --request-id"
    if isinstance(error, LongshoreError):
        return str(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}"
    return str(error)


def print_stderr(text: str) -> None:
    """A line on stderr, whatever its encoding; a closed stderr is nobody's loss.

    Errors repeat what they were given: what looks like a secret is masked.
    """
    # Only for those who need it: every start of the command line would pay for it.
    from longshore.core.text.sanitise import mask_secrets

    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    shown = mask_secrets(text).encode(encoding, errors="backslashreplace").decode(encoding)
    try:
        print(shown, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return
