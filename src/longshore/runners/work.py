"""Doing what an order says, inside the child, and reporting what came of it.

Whatever goes wrong is reported through the channel with its class and category; a child that dies
without a word is told apart from one that failed by exactly that.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from longshore.core.failures import ErrorCategory, Failed, Failure, failure_of
from longshore.core.sanitise import mask_secrets
from longshore.runners import command, context, python
from longshore.runners.channel import Channel, TooLong

FAILED = 1
DONE = 0


def carry_out(order: Mapping[str, Any], channel: Channel) -> int:
    """Run the command or call the function; the exit code that the process should have."""
    if order["runner"] == "command":
        # Returns only by an exception: the process becomes the command.
        return reporting(channel, lambda: command.run(order), trace=False)
    if order["runner"] == "agent":
        return reporting(channel, lambda: _run_agent(order, channel), trace=False)

    def call() -> None:
        entered = context.Context(order, channel)
        context.enter(entered)
        try:
            _say_result(channel, python.run(order))
        finally:
            # The next task of a pool's member must find the process as this one did.
            entered.close()

    return reporting(channel, call)


def _run_agent(order: Mapping[str, Any], channel: Channel) -> None:
    try:
        # Only for those who need it, and only where it is installed.
        from longshore.runners.agent.run import run
    except ImportError as error:
        message = f"agents need the extra 'agent': pip install 'longshore[agent]' ({error})"
        raise Failed(Failure(category=ErrorCategory.NOT_FOUND, message=message)) from error
    _say_result(channel, run(order, channel))


def reporting(channel: Channel, work: Callable[[], None], *, trace: bool = True) -> int:
    """Do a piece of work; what it raises is reported and not raised."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the edge of the process: everything is reported
        _report(channel, error, trace=trace)
        return FAILED
    return DONE


def _say_result(channel: Channel, result: Any) -> None:
    try:
        channel.say("result", value=result)
    except TooLong:
        raise
    except (TypeError, ValueError) as error:
        message = f"the result cannot be kept as JSON: {error}"
        raise TypeError(message) from error


def _report(channel: Channel, error: BaseException, *, trace: bool) -> None:
    if trace and not isinstance(error, SystemExit):
        # Our print, not the task's: what its error carries must not get into the log by us.
        sys.stderr.write(mask_secrets("".join(traceback.format_exception(error))))
    failure = failure_of(error)
    channel.say(
        "error",
        category=failure.category.value,
        message=failure.message,
        errorType=failure.error_type,
        exitCode=failure.exit_code,
        retry=failure.retry,
        retryAfter=failure.retry_after.total_seconds() if failure.retry_after else None,
    )
