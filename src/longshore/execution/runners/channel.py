"""The child's end of its channel to the worker; see ``execution.protocol``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, BinaryIO

from longshore.execution.protocol import (
    LARGE_MESSAGES,
    LINE_LIMIT_BYTES,
    SMALL_LINE_BYTES,
    ChildMessage,
)

BURST = 50
PER_SECOND = 10.0

Send = Callable[..., None]
"""Sends a message to the worker: ``Channel.send``."""

# Built once, before the fork: otherwise each child would pay for it.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class MessageTooLong(ValueError):
    """A message that exceeds the limit of its type."""


def encode_json(value: Any) -> str:
    """Returns the value as JSON text.

    Raises:
        TypeError: it cannot be stored as JSON.
        ValueError: it cannot be stored as JSON.
    """
    return _ENCODER.encode(value)


def encode_message(kind: ChildMessage, content: Mapping[str, Any]) -> bytes:
    """Returns a message to the worker.

    Raises:
        MessageTooLong: it exceeds the limit of its type.
    """
    data = encode_json({"type": kind, **content}).encode()
    check_length(kind, len(data))
    return data


def check_length(kind: ChildMessage, size: int) -> None:
    """Refuse a message that the worker would not read.

    Raises:
        MessageTooLong: it exceeds the limit of its type.
    """
    limit = LINE_LIMIT_BYTES if kind in LARGE_MESSAGES else SMALL_LINE_BYTES
    if size >= limit:
        raise MessageTooLong(f"a {kind} message of {size} bytes exceeds {limit} bytes")


def write_all(file: int, data: bytes) -> None:
    """Write everything to a pipe, waiting for its reader."""
    written = os.write(file, data)
    if written < len(data):
        view = memoryview(data)[written:]
        while view:
            view = view[os.write(file, view) :]


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
            MessageTooLong: it exceeds the limit of its type.
        """
        data = encode_message(kind, content) + b"\n"
        with self._write_lock:
            write_all(self._channel, data)

    def report_step(self, name: str, result: Any) -> None:
        """Report a finished step and wait until its result is stored."""
        require_confirmation(name, self._request("step", name=name, result=result))

    def request_spend(self, number: int, **content: Any) -> str | None:
        """Request permission to spend. Returns None if granted, else the reason of the refusal."""
        reply = self._request("spend", number=number, **content)
        if not isinstance(reply, dict) or reply.get("request") != number:
            raise ConnectionError("the worker did not answer the spend request")
        refusal = reply["refusal"]
        return None if refusal is None else str(refusal)

    def _request(self, kind: ChildMessage, **content: Any) -> Any:
        with self._request_lock:
            self.send(kind, **content)
            # Opened on the first request: most attempts make none.
            self._replies = self._replies or os.fdopen(self._replies_fd, "rb", closefd=False)
            reply = self._replies.readline()
        return json.loads(reply or "null")


def require_confirmation(step: str, reply: Any) -> None:
    """Check the reply to the report of a step.

    Raises:
        ConnectionError: the worker did not confirm that the step's result is stored.
    """
    if reply != {"stored": step}:
        raise ConnectionError(f"the worker did not confirm step {step!r}")


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
