"""The exit codes of commands, and how errors are printed.

Scripts may rely on the exit codes. An error is one sentence on stderr that says what to do; with
``-o json`` it is one JSON object.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Sequence
from enum import IntEnum

from longshore import errors


class ExitCode(IntEnum):
    """The exit codes and their meanings."""

    OK = 0, "success"
    FAILED = 1, "the job, check or demo failed"
    USAGE = 2, "invalid command line, setting, file or API key; nothing was changed"
    NOT_FOUND = 3, "no such job, task or data folder"
    REFUSED = 4, "conflict: changed meanwhile, or not allowed by the state or the API key"
    BACKEND = 5, "the store or the server is unreachable or damaged"
    STOP_OVERDUE = 6, "a stop took too long, and the process ended without finishing it"
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


# The first class that matches counts.
_BY_ERROR: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (errors.ConfigurationError, ExitCode.USAGE),
    (errors.NotAllowed, ExitCode.REFUSED),
    (errors.UsageError, ExitCode.USAGE),
    (errors.NotFound, ExitCode.NOT_FOUND),
    (errors.Conflict, ExitCode.REFUSED),
    (errors.BackendError, ExitCode.BACKEND),
    (errors.LongshoreError, ExitCode.FAILED),
    # Other errors of the operating system come from the data folder.
    (OSError, ExitCode.BACKEND),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code for an error; FAILED for an unexpected one."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.FAILED)


class MissingResource(errors.NotFound):
    """A resource does not exist: its kind says so, its name what to do."""

    def __str__(self) -> str:
        return f"{self.kind}; {self.name}"


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the command line requests JSON; needed for errors of the command line itself."""
    own = list(itertools.takewhile(lambda argument: argument != "--", arguments))
    pairs = itertools.pairwise(own)
    return any(option in own for option in ("-ojson", "-o=json", "--output=json")) or any(
        option in ("-o", "--output") and value == "json" for option, value in pairs
    )


def report_error(error: BaseException, *, as_json: bool) -> None:
    """Print an error to stderr."""
    if not as_json:
        print_stderr(f"longshore: {_message_of(error)}")
        return
    document: dict[str, object] = {
        "type": _public_error_name(error),
        "message": _message_of(error),
        "exitCode": int(exit_code_of(error)),
    }
    if isinstance(error, errors.InvalidJob):
        document["problems"] = [
            {"path": problem.path, "message": problem.message} for problem in error.problems
        ]
    elif isinstance(error, errors.ConfigurationError):
        document["problems"] = [{"message": problem} for problem in error.problems]
    print_stderr(json.dumps({"error": document}, ensure_ascii=False))


def _public_error_name(error: BaseException) -> str:
    """The name of the error's first class that is documented in ``longshore.errors``."""
    kinds = type(error).__mro__
    return next((k.__name__ for k in kinds if k.__module__ == errors.__name__), kinds[0].__name__)


def _message_of(error: BaseException) -> str:
    match error:
        case errors.ConfigurationError(problems=[_, _, *_]):
            return "the settings are wrong:\n  " + "\n  ".join(error.problems)
        case errors.AlreadyExists():
            return f"{error}; choose another --request-id"
        case errors.NotFound(kind="definition" | "key"):
            return f"{error}; see `longshore {error.kind}s list`"
        case OSError():
            file = f"{error.filename}: " if error.filename else ""
            return f"{file}{error.strerror or error}"
    return str(error)


def print_stderr(text: str, *, masked: bool = True) -> None:
    """Print a line to stderr, with secrets masked: errors repeat what users have written.

    Python escapes characters that stderr cannot encode. A closed stderr is ignored.

    Args:
        masked: False for a text that looks like a secret and is none, such as a cursor.
    """
    # Most commands print no error and do not need it.
    from longshore.core.text.sanitise import mask_secrets

    with contextlib.suppress(OSError, ValueError):
        print(mask_secrets(text) if masked else text, file=sys.stderr, flush=True)
