"""The private pipe between a child and its worker: JSON lines, one message a line.

The child says ``result``, ``error``, ``activity``, ``progress``, ``summary``, ``usage``, ``step``,
``ask``, ``session`` and ``log``; its standard output and error are only output. The file
descriptor's number comes in the environment, so a shell script can report too:
``echo '{"type":"result","value":42}' >&$LONGSHORE_ATTEMPT_CHANNEL``.
"""

from __future__ import annotations

import json
import os
from threading import Lock
from typing import Any, BinaryIO

LINE_LIMIT_BYTES = 64 * 1024 * 1024
"""The worker reads no longer line, and would not answer one."""

# Made once: a child would pay for it each time.
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class TooLong(ValueError):
    """A message that nobody would read."""


class Channel:
    """The child's end. Any thread of the child may use it."""

    def __init__(self, channel: int, replies: int) -> None:
        self._channel = channel
        self._replies_number = replies
        self._replies: BinaryIO | None = None
        self._writing = Lock()
        # Replies come in the order of what was asked: one after another, each gets its own.
        self._stepping = Lock()

    def say(self, kind: str, **content: Any) -> None:
        """Send one message; whole, however long.

        Raises:
            TooLong: it is longer than anybody would read.
        """
        data = memoryview(_JSON.encode({"type": kind, **content}).encode() + b"\n")
        if len(data) > LINE_LIMIT_BYTES:
            message = f"a {kind} of {len(data)} bytes, and at most {LINE_LIMIT_BYTES} can be sent"
            raise TooLong(message)
        with self._writing:
            while data:
                data = data[os.write(self._channel, data) :]

    def step(self, name: str, result: Any) -> None:
        """Report a finished step and wait until its result is kept."""
        if self._ask("step", name=name, result=result) != {"kept": name}:
            message = f"the worker did not keep step {name!r}"
            raise ConnectionError(message)

    def may_spend(self, number: int, **content: Any) -> str | None:
        """Ask whether something may be spent: None, or why not."""
        reply = self._ask("ask", number=number, **content)
        if not isinstance(reply, dict) or reply.get("asked") != number:
            message = "the worker did not say whether this may be spent"
            raise ConnectionError(message)
        stop = reply["stop"]
        return None if stop is None else str(stop)

    def _ask(self, kind: str, **content: Any) -> Any:
        with self._stepping:
            self.say(kind, **content)
            # Opened for the first of them: most attempts take no step.
            self._replies = self._replies or os.fdopen(self._replies_number, "rb", closefd=False)
            reply = self._replies.readline()
        return json.loads(reply or "null")
