"""The private pipe between a child and its worker: JSON lines, one message a line.

The child says ``result``, ``error``, ``activity``, ``usage``, ``step`` and ``log``; its standard
output and error are only output. The file descriptor's number comes in the environment, so a shell
script can report too: ``echo '{"type":"result","value":42}' >&$LONGSHORE_ATTEMPT_CHANNEL``.
"""

from __future__ import annotations

import json
import os
from typing import Any


class Channel:
    """The child's end."""

    def __init__(self, channel: int, replies: int) -> None:
        self._channel = channel
        self._replies = os.fdopen(replies, "rb", closefd=False)

    def say(self, kind: str, **content: Any) -> None:
        """Send one message; whole, however long."""
        line = json.dumps({"type": kind, **content}, separators=(",", ":"), allow_nan=False)
        data = memoryview(line.encode() + b"\n")
        while data:
            data = data[os.write(self._channel, data) :]

    def step(self, name: str, result: Any) -> None:
        """Report a finished step and wait until its result is kept."""
        self.say("step", name=name, result=result)
        reply = self._replies.readline()
        if json.loads(reply or "null") != {"kept": name}:
            message = f"the worker did not keep step {name!r}"
            raise ConnectionError(message)
