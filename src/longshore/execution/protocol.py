"""The protocol between a worker, its fork server and a child.

A private socket carries JSON packets between the worker and its fork server. The worker chooses a
number for every reaper that it requests, and sends ``{"number": 7, "files": 7, "slot": {…}}`` with
the reaper's end of a socket and the files of its slot; see ``execution.slot_protocol``. The fork
server sends ``{"number": 0}`` when everything is loaded, ``{"number": 7}`` when a reaper has ended
and nothing is left below it, and ``{"number": 7, "error": "…"}`` when it cannot fork one.

The socket between the worker and a reaper carries fixed-size records: requests down, the start of
the reaper and the end of each child up. When the socket closes, the reaper kills its child.

The child of an attempt gets files of its own: its spec as JSON, and its ends of four pipes (output,
errors, channel, replies). It writes JSON lines to its channel, one message a line; the first says
that it has begun. A shell script can report through the channel too::

    echo '{"type":"result","value":42}' >&$LONGSHORE_ATTEMPT_CHANNEL

Every child imports this module first: its import must stay cheap.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum
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
FDS_PER_SLOT = 7
MESSAGE_LIMIT_BYTES = 64 * 1024
READY_NUMBER = 0
EXIT_CANNOT_LOAD = 78
"""The fork server's exit code when one of its modules cannot be loaded."""


class KillCause(StrEnum):
    """Why the reaper ended an attempt without a request from the worker, if it did."""

    NONE = ""
    MEMORY = "memory"
    DEADLINE = "deadline"  # it was running when its lease was no longer trusted
    LOST = "lost"  # the reaper has ended: nothing more is known of its last child


KILL_MESSAGES: dict[str, str] = {
    KillCause.DEADLINE: "the worker did not renew its lease in time, and the attempt was ended",
    KillCause.LOST: "the attempt's reaper process was killed, and the attempt with it",
}
"""The failure of an attempt that was killed for a cause."""


def encode_message(number: int, **content: Any) -> bytes:
    """Returns a message of the worker or the fork server as one packet."""
    return json.dumps({"number": number, **content}).encode()


class ReaperRequest(IntEnum):
    """What a worker asks of a reaper."""

    WAKE = 0  # a limit in the page was changed
    TERMINATE = 1
    KILL = 2


_REQUEST = struct.Struct("<Bq")
REQUEST_BYTES = _REQUEST.size


def encode_request(request: ReaperRequest, generation: int) -> bytes:
    """Returns a request about a child as one packet.

    Args:
        generation: The number of the child among those of its reaper.
    """
    return _REQUEST.pack(request, generation)


def decode_request(packet: bytes) -> tuple[ReaperRequest, int]:
    """Returns the request and the generation of the child."""
    request, generation = _REQUEST.unpack(packet)
    return ReaperRequest(request), generation


_STATUS = struct.Struct("<?iiq8s")
STATUS_BYTES = _STATUS.size


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """A child started, or it ended and none of its processes is left."""

    ended: bool
    child_pid: int = 0
    wait_status: int = 0
    peak_bytes: int = 0
    cause: KillCause = KillCause.NONE

    def encode(self) -> bytes:
        """Returns the status as one packet."""
        return _STATUS.pack(
            self.ended,
            self.child_pid,
            self.wait_status,
            self.peak_bytes,
            self.cause.encode(),
        )


def decode_status(packet: bytes) -> ChildStatus:
    """Returns the status in a packet."""
    *numbers, cause = _STATUS.unpack(packet)
    return ChildStatus(*(*numbers, KillCause(cause.rstrip(b"\0").decode())))
