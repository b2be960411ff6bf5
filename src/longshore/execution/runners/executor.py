"""Executes a spec inside the child and reports the result.

Every error is reported through the channel with its class and category; this distinguishes a child
that failed from one that crashed.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from longshore.core.tasks.failures import ErrorCategory, Failure, FailureRaised, failure_of
from longshore.core.text.sanitise import mask_secrets
from longshore.execution.runners import command, context, python
from longshore.execution.runners.channel import (
    Channel,
    MessageTooLong,
    check_length,
    encode_json,
)

EncodedT = TypeVar("EncodedT")

EXIT_FAILED = 1
EXIT_OK = 0


def execute_attempt(spec: Mapping[str, Any], channel: Channel) -> int:
    """Run the command, function or agent. Returns the exit code for the process."""
    if spec["runner"] == "command":
        # Returns only by an exception: the process becomes the command.
        return run_and_report(channel, lambda: command.run(spec))
    if spec["runner"] == "agent":
        return run_and_report(channel, lambda: _run_agent(spec, channel))

    def call() -> None:
        _send_result(channel, call_function(spec, context.Context(spec, channel)))

    return run_and_report(channel, call, print_traceback=True)


def call_function(spec: Mapping[str, Any], task_context: context.Context) -> Any:
    """Call the function of a python task in its context. Returns its result."""
    context.set_current(task_context)
    try:
        return python.run(spec["settings"], spec["dependency_outputs"])
    finally:
        # The next task of a pool child must find the process as this one did.
        task_context.close()


def _run_agent(spec: Mapping[str, Any], channel: Channel) -> None:
    try:
        # Imported only for agents, and only where the extra is installed.
        from longshore.execution.runners.agent.runner import run
    except ImportError as error:
        message = f"agents need the extra 'agent': pip install 'longshore[agent]' ({error})"
        raise FailureRaised(Failure(category=ErrorCategory.NOT_FOUND, message=message)) from error
    _send_result(channel, run(spec, channel))


def run_and_report(
    channel: Channel, work: Callable[[], None], *, print_traceback: bool = False
) -> int:
    """Run ``work`` and report what it raises. Returns the exit code."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the edge of the process: everything is reported
        _report_error(channel, error, print_traceback=print_traceback)
        return EXIT_FAILED
    return EXIT_OK


def _send_result(channel: Channel, result: Any) -> None:
    _encode(lambda: channel.send("result", value=result))


def encode_result(result: Any) -> str:
    """Returns a result as JSON text.

    Raises:
        TypeError: it cannot be stored as JSON.
        MessageTooLong: the worker would not read it.
    """
    text = _encode(lambda: encode_json(result))
    check_length("result", len(text))  # the encoder escapes all but ASCII
    return text


def _encode(encode: Callable[[], EncodedT]) -> EncodedT:
    try:
        return encode()
    except MessageTooLong:
        raise
    except (TypeError, ValueError) as error:
        raise TypeError(f"the result cannot be stored as JSON: {error}") from error


def _report_error(channel: Channel, error: BaseException, *, print_traceback: bool) -> None:
    if print_traceback:
        write_traceback(error)
    channel.send("error", **describe_error(error))


def write_traceback(error: BaseException) -> None:
    """Write the traceback to standard error, unless the task only asked to exit."""
    if not isinstance(error, SystemExit):
        # Longshore prints this, not the task: secrets in the error must not reach the log.
        sys.stderr.write(mask_secrets("".join(traceback.format_exception(error))))


def describe_error(error: BaseException) -> dict[str, Any]:
    """Returns the content of the message about what a task has raised."""
    failure = failure_of(error)
    return {
        "category": failure.category.value,
        "message": failure.message,
        "errorType": failure.error_type,
        "exitCode": failure.exit_code,
        "retry": failure.retry,
        "retryAfter": failure.retry_after.total_seconds() if failure.retry_after else None,
    }
