"""What a worker and its keeper say to each other: JSON lines on a private socket.

The worker says ``start`` (with the child's ends of four pipes: output, errors, channel, replies)
and ``signal``; the keeper says ``ready`` once, and answers with ``started``, ``refused`` and
``ended``. Every attempt has a number that the worker chose.
"""

from __future__ import annotations

import json
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
    STARTED = "started"
    REFUSED = "refused"
    ENDED = "ended"


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
