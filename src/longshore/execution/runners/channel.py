"""The child's end of its channel to the worker; see ``execution.protocol``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from threading import Lock
from typing import Any, BinaryIO

from longshore.execution.protocol import LINE_LIMIT_BYTES, ChildMessage

BURST = 50
PER_SECOND = 10.0

Send = Callable[..., None]
"""Sends a message to the worker: ``Channel.send``."""

# Built once, before the fork: otherwise each child would pay for it.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class MessageTooLong(ValueError):
    """A message that exceeds ``LINE_LIMIT_BYTES``."""


class Channel:
    """The child's end of the channel; thread-safe."""

    def __init__(self, channel: int, replies: int) -> None:
        self._channel = channel
        self._replies_fd = replies
        self._replies: BinaryIO | None = None
        self._write_lock = Lock()
        # Replies arrive in the order of the requests: one request at a time gets its own.
        self._request_lock = Lock()

    def send(self, kind: ChildMessage, **content: Any) -> None:
        """Send one message completely.

        Raises:
            MessageTooLong: it exceeds ``LINE_LIMIT_BYTES``.
        """
        data = memoryview(_ENCODER.encode({"type": kind, **content}).encode() + b"\n")
        if len(data) > LINE_LIMIT_BYTES:
            message = f"a {kind} message of {len(data)} bytes exceeds {LINE_LIMIT_BYTES} bytes"
            raise MessageTooLong(message)
        with self._write_lock:
            while data:
                data = data[os.write(self._channel, data) :]

    def report_step(self, name: str, result: Any) -> None:
        """Report a finished step and wait until its result is stored."""
        if self._request("step", name=name, result=result) != {"stored": name}:
            message = f"the worker did not confirm step {name!r}"
            raise ConnectionError(message)

    def request_spend(self, number: int, **content: Any) -> str | None:
        """Request permission to spend. Returns None if granted, else the reason of the refusal."""
        reply = self._request("spend", number=number, **content)
        if not isinstance(reply, dict) or reply.get("request") != number:
            message = "the worker did not answer the spend request"
            raise ConnectionError(message)
        refusal = reply["refusal"]
        return None if refusal is None else str(refusal)

    def _request(self, kind: ChildMessage, **content: Any) -> Any:
        with self._request_lock:
            self.send(kind, **content)
            # Opened on the first request: most attempts make none.
            self._replies = self._replies or os.fdopen(self._replies_fd, "rb", closefd=False)
            reply = self._replies.readline()
        return json.loads(reply or "null")


class Throttle:
    """Limits the rate of reports with a token bucket; reports over the limit are dropped.

    A task that reports rarely loses nothing, and one that reports in a tight loop does not overload
    the worker.
    """

    def __init__(self) -> None:
        self._available = float(BURST)
        self._updated_at_s = time.monotonic()

    def try_acquire(self) -> bool:
        """Take a token. Returns whether one was available."""
        now = time.monotonic()
        self._available = min(
            self._available + (now - self._updated_at_s) * PER_SECOND, float(BURST)
        )
        self._updated_at_s = now
        if self._available < 1:
            return False
        self._available -= 1
        return True
