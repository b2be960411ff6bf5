"""What a worker and its keeper say to each other.

On a private socket, JSON lines: the worker says ``start`` (with the child's ends of four pipes:
output, errors, channel, replies) and ``signal``; the keeper says ``ready`` once, and ``refused``
when it cannot start. Every attempt has a number that the worker chose.

On a pipe that the keeper shares with its guards, records: how attempts begin and end, told by
whoever knows it first.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FILES_PER_START = 4
CANNOT_LOAD = 78
"""The keeper's exit code when a module that it was told to load cannot be."""


class Word(StrEnum):
    """The first field of every line."""

    START = "start"
    SIGNAL = "signal"
    READY = "ready"  # everything is loaded; number 0
    REFUSED = "refused"


class Cause(StrEnum):
    """Why the guard ended an attempt by itself, if it did."""

    NONE = ""
    MEMORY = "memory"
    LOST = "lost"  # the guard was killed, and nobody knows how the child ended


def line_of(word: Word, number: int, **content: Any) -> bytes:
    """One message."""
    return json.dumps({"word": word, "number": number, **content}).encode() + b"\n"


class Lines:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in whole]


# Far below what a pipe takes in one piece: records of several writers do not mix.
_TOLD = struct.Struct("<q?iiq8s")
TOLD_AT_ONCE_BYTES = 64 * _TOLD.size
"""How much to read of a pipe at once: whole records only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The leader of an attempt began, or the attempt is over and nothing of it is left."""

    number: int
    over: bool
    leader: int = 0
    status: int = 0
    peak_bytes: int = 0
    cause: Cause = Cause.NONE

    def record(self) -> bytes:
        """For the pipe, in one write."""
        return _TOLD.pack(
            self.number, self.over, self.leader, self.status, self.peak_bytes, self.cause.encode()
        )


def told_in(records: bytes) -> list[Told]:
    """What has been told."""
    return [
        Told(
            number=number,
            over=over,
            leader=leader,
            status=status,
            peak_bytes=peak,
            cause=Cause(cause.rstrip(b"\0").decode()),
        )
        for number, over, leader, status, peak, cause in _TOLD.iter_unpack(records)
    ]
