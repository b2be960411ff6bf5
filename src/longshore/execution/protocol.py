"""The protocol between a worker, its fork server and a child.

A private socket carries requests from the worker to its fork server: the settings of a slot as
JSON, with the ends of its files; see ``execution.slot_protocol``. The fork server sends one byte
when everything is loaded. For each reaper it holds an end of a pipe, which it closes when nothing
is left below the reaper; if it cannot fork the reaper, it writes the error there first.

The socket between the worker and a reaper carries fixed-size records: requests down, the start of
the reaper and the end of each child up. When the socket closes, the reaper kills its child.

The child of an attempt gets files of its own: its spec as JSON, and its ends of four pipes (output,
errors, channel, replies). It writes JSON lines to its channel, one message a line; the first says
that it has begun. A shell script can report through the channel too::

    echo '{"type":"result","value":42}' >&$LONGSHORE_ATTEMPT_CHANNEL

Every child imports this module first: its import must stay cheap.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Literal, NamedTuple

TASK_VARIABLE = "LONGSHORE_ATTEMPT_TASK"
ATTEMPT_VARIABLE = "LONGSHORE_ATTEMPT"
SLOT_VARIABLE = "LONGSHORE_ATTEMPT_SLOT"
"""Says to programs that they run inside a task, in a pool too; its value is always 1."""
# Paths of JSON files: the task's input, and the results of its dependencies by key.
INPUT_VARIABLE = "LONGSHORE_ATTEMPT_INPUT"
DEPENDENCIES_VARIABLE = "LONGSHORE_ATTEMPT_DEPENDENCIES"
# Only after `longshore revise`: paths of the feedback, as text, and of the rejected result.
FEEDBACK_VARIABLE = "LONGSHORE_ATTEMPT_FEEDBACK"
PREVIOUS_OUTPUT_VARIABLE = "LONGSHORE_ATTEMPT_PREVIOUS_OUTPUT"

TRACE_VARIABLE = "TRACEPARENT"
"""The W3C trace context of the attempt, unless the environment of the task sets another one."""
CHANNEL_VARIABLE = "LONGSHORE_ATTEMPT_CHANNEL"
# One digit: some shells accept no more after ">&".
CHANNEL_FD = 3
REPLIES_FD = 4

# Below an attempt's folder: an agent's home directory, where its CLI writes transcripts.
AGENT_FOLDER = "agent"

LINE_LIMIT_BYTES = 64 * 1024 * 1024
"""The worker neither reads nor answers a longer line of a child."""

SMALL_LINE_BYTES = 64 * 1024
LARGE_MESSAGES = frozenset({"result", "step", "conversation"})
"""Only these messages may exceed ``SMALL_LINE_BYTES``; then they must begin with their type."""

ChildMessage = Literal[
    "begun",
    "result",
    "error",
    "activity",
    "progress",
    "summary",
    "usage",
    "step",
    "spend",
    "conversation",
    "log",
]
"""The type of a message on the channel; standard output and error are only output."""

FDS_PER_ATTEMPT = 5
FDS_PER_SLOT = 8
MESSAGE_LIMIT_BYTES = 64 * 1024
ERROR_LIMIT_BYTES = 4096
EXIT_CANNOT_LOAD = 78
"""The fork server's exit code when one of its modules cannot be loaded."""


class KillCause(StrEnum):
    """Why the reaper ended an attempt without a request from the worker, if it did."""

    NONE = ""
    MEMORY = "memory"
    PROCESSES = "processes"
    DEADLINE = "deadline"  # it was running when its lease was no longer trusted
    LOST = "lost"  # the reaper has ended: nothing more is known of its last child


KILL_MESSAGES: dict[str, str] = {
    KillCause.DEADLINE: "the worker did not renew its lease in time, and the attempt was ended",
    KillCause.LOST: "the attempt's reaper process was killed, and the attempt with it",
}
"""The failure of an attempt that was killed for a cause."""


REQUEST = struct.Struct("<qq")
"""A request to end a child: its number among those of its reaper, and when to send SIGKILL to all
that it has started (``CLOCK_BOOTTIME``); SIGTERM is sent at once. The number 0: read the page."""

_STATUS = struct.Struct("<?iq16s")
STATUS_BYTES = _STATUS.size


class ChildStatus(NamedTuple):
    """The reaper started, or its child ended and none of its processes is left."""

    ended: bool
    wait_status: int = 0
    peak_bytes: int = 0
    cause: KillCause = KillCause.NONE

    def encode(self) -> bytes:
        """Returns the status as one packet."""
        return _STATUS.pack(*self[:-1], self.cause.encode())


def decode_status(packet: bytes) -> ChildStatus:
    """Returns the status in a packet."""
    *numbers, cause = _STATUS.unpack(packet)
    return ChildStatus(*(*numbers, KillCause(cause.rstrip(b"\0").decode())))
