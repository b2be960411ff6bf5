"""The child's first lines: read the order, tie this process to its parent, do the work, report.

The order comes in a file that only its owner can read, never on the command line. Whatever goes
wrong is reported through the channel with its class and category; a child that dies without a word
is told apart from one that failed by exactly that.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
from typing import Any

from longshore.core.child_places import CHANNEL_NUMBER, REPLIES_NUMBER
from longshore.runners import command, context, python
from longshore.runners.channel import Channel

_PR_SET_PDEATHSIG = 1
_FAILED = 1
_OUT_OF_THE_WAY = 10


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; also if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_FAILED)


def main() -> int:
    """Carry out the order in the file named by the first argument."""
    with open(sys.argv[1], encoding="utf-8") as file:
        order = json.load(file)
    die_with_parent(order["parent"])
    channel = Channel(*_moved(order["channel"], order["replies"]))
    try:
        if order["runner"] == "command":
            command.run(order)
        context.enter(context.Context(order, channel))
        channel.say("result", value=_checked(python.run(order)))
    except BaseException as error:  # noqa: BLE001 - the edge of the process: everything is reported
        _report(channel, error, trace=order["runner"] != "command")
        return _FAILED
    return 0


def _moved(channel: int, replies: int) -> tuple[int, int]:
    """The two pipes under the numbers that are promised, whatever stood there before."""
    aside = [fcntl.fcntl(number, fcntl.F_DUPFD, _OUT_OF_THE_WAY) for number in (channel, replies)]
    os.close(channel)
    os.close(replies)
    for number, place in zip(aside, (CHANNEL_NUMBER, REPLIES_NUMBER), strict=True):
        os.dup2(number, place)
        os.close(number)
    return CHANNEL_NUMBER, REPLIES_NUMBER


def _checked(result: Any) -> Any:
    try:
        json.dumps(result, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        message = f"the result cannot be kept as JSON: {error}"
        raise TypeError(message) from error
    return result


def _report(channel: Channel, error: BaseException, *, trace: bool) -> None:
    # Only for those who need it: a child's start is paid by every attempt.
    import traceback

    from longshore.core.failures import failure_of

    if trace and not isinstance(error, SystemExit):
        traceback.print_exc()
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


if __name__ == "__main__":
    # What is still in Python's buffers must reach the pipe before the process ends.
    code = main()
    sys.stdout.flush()
    sys.exit(code)
