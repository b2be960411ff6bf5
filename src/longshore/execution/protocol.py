"""The protocol between a worker, its fork server and a child.

A private socket carries JSON packets between the worker and its fork server. The worker chooses a
number for every attempt; it sends ``{"number": 7, "memory": null}`` to start a child, with the
child's ends of four pipes (output, errors, channel, replies), and ``{"number": 7, "kill": false}``
to stop it. A message with ``slot`` instead opens a slot; see ``execution.slot_protocol``. The fork
server sends ``{"number": 0}`` when everything is loaded, and ``{"number": 7, "error": "…"}`` when
it cannot start a child. Its messages to a reaper are alike. A pipe that the fork server shares with
its reapers carries fixed-size records: the start and the end of each attempt, written by the
process that learns of it first.

A child reads its spec, one JSON line, from its replies, and writes JSON lines to its channel, one
message a line. A shell script can report through the channel too::

    echo '{"type":"result","value":42}' >&$LONGSHORE_ATTEMPT_CHANNEL

Every child imports this module first: its import must stay cheap.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

TASK_VARIABLE = "LONGSHORE_ATTEMPT_TASK"
ATTEMPT_VARIABLE = "LONGSHORE_ATTEMPT"
# Paths of JSON files: the task's input, and the results of its dependencies by key.
INPUT_VARIABLE = "LONGSHORE_ATTEMPT_INPUT"
DEPENDENCIES_VARIABLE = "LONGSHORE_ATTEMPT_DEPENDENCIES"

CHANNEL_VARIABLE = "LONGSHORE_ATTEMPT_CHANNEL"
# One digit: some shells accept no more after ">&".
CHANNEL_FD = 3
REPLIES_FD = 4

# Below an attempt's folder: an agent's home directory, where its CLI writes transcripts.
AGENT_FOLDER = "agent"

LINE_LIMIT_BYTES = 64 * 1024 * 1024
"""The worker neither reads nor answers a longer line of a child."""

ChildMessage = Literal[
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

FDS_PER_START = 4
FDS_PER_SLOT = 7
MESSAGE_LIMIT_BYTES = 64 * 1024
EXIT_CANNOT_LOAD = 78
"""The fork server's exit code when one of its modules cannot be loaded."""


class KillCause(StrEnum):
    """Why the reaper ended an attempt without a request from the worker, if it did."""

    NONE = ""
    MEMORY = "memory"
    DEADLINE = "deadline"  # a task was running when its lease was no longer trusted
    LOST = "lost"  # the reaper was killed: how the child ended is unknown


def encode_message(number: int, **content: Any) -> bytes:
    """Returns a message of the worker, the fork server or a reaper as one packet."""
    return json.dumps({"number": number, **content}).encode()


# Far smaller than PIPE_BUF: each write is atomic, so records of several writers do not interleave.
_STATUS = struct.Struct("<q?iiq8s")
STATUS_READ_BYTES = 64 * _STATUS.size
"""The size of one read from the pipe: a multiple of the record size."""


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """The child of an attempt started, or the attempt ended and none of its processes is left."""

    number: int
    ended: bool
    child_pid: int = 0
    wait_status: int = 0
    peak_bytes: int = 0
    cause: KillCause = KillCause.NONE

    def encode(self) -> bytes:
        """Returns the record, to be written to the pipe in one write."""
        return _STATUS.pack(
            self.number,
            self.ended,
            self.child_pid,
            self.wait_status,
            self.peak_bytes,
            self.cause.encode(),
        )


def decode_statuses(records: bytes) -> list[ChildStatus]:
    """Returns the statuses in ``records``."""
    return [
        ChildStatus(*(*numbers, KillCause(cause.rstrip(b"\0").decode())))
        for *numbers, cause in _STATUS.iter_unpack(records)
    ]
