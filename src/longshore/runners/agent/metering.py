"""Metering: what an answer of the Messages API says that it consumed, read as it passes.

A stream tells its figures twice: at its beginning (what was read) and at its end (what was
written, and once more all the rest). The later word counts, and where there is none because the
stream broke off, the earlier one: what was begun is paid for.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

from longshore.core.agents.prices import Tokens

# The figures stand in short lines; a longer one is somebody's text, and nothing is lost with it.
LINE_LIMIT_BYTES: Final = 1024 * 1024
DOCUMENT_LIMIT_BYTES: Final = 64 * 1024 * 1024
_TELLING = (b'"message_start"', b'"message_delta"', b'"message_stop"', b'"error"')
# The status that an error would have had, if the answer had not begun before it.
_STATUSES: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_OTHER_ERROR = 500
_BYTES_A_TOKEN = 4
_DELTA = b"content_block_delta"
_AROUND_DELTA_BYTES = 90  # of such a line: what is not the answer
_LONGEST_WAIT_S = timedelta(days=30).total_seconds()


class Meter(ABC):
    """Reads one answer; feed it all that comes, in whatever pieces."""

    def __init__(self) -> None:
        self.whole = False
        """Whether the answer has come to its end."""
        self.error_type: str | None = None
        """What the API calls what went wrong."""
        self._usage: dict[str, Any] = {}
        self._seen_bytes = 0  # of the answer itself

    @property
    def tokens(self) -> Tokens:
        """What has been consumed, as far as it was told.

        How long an answer is, is told at its end. Of one that broke off, what was seen counts: or
        whoever leaves before the end would have had it for nothing.
        """
        told = tokens_in(self._usage)
        if self.whole:
            return told
        return replace(told, output=max(told.output, self._seen_bytes // _BYTES_A_TOKEN))

    @property
    def error_status(self) -> int | None:
        """The status that the error stands for. None: there was none."""
        return None if self.error_type is None else _STATUSES.get(self.error_type, _OTHER_ERROR)

    @abstractmethod
    def feed(self, piece: bytes) -> None:
        """The next bytes of the answer."""

    @abstractmethod
    def end(self) -> None:
        """No more will come, and nothing was cut off."""

    def _failed(self, said: Mapping[str, Any]) -> None:
        kind = _mapping(said.get("error")).get("type")
        self.error_type = kind if isinstance(kind, str) else "api_error"

    def _told(self, usage: Any) -> None:
        """Take over what a later word says; of what was read, a zero says nothing."""
        for name, value in _mapping(usage).items():
            if value or (name == "output_tokens" and value is not None):
                self._usage[name] = value


class StreamMeter(Meter):
    """An answer as a stream of events."""

    def __init__(self) -> None:
        super().__init__()
        self._line = bytearray()

    def feed(self, piece: bytes) -> None:
        *lines, rest = piece.split(b"\n")
        for line in lines:
            self._add(line)
            if _DELTA in self._line:
                self._seen_bytes += max(len(self._line) - _AROUND_DELTA_BYTES, 0)
            self._read(bytes(self._line))
            self._line.clear()
        self._add(rest)

    def end(self) -> None:
        self._read(bytes(self._line))

    def _add(self, part: bytes) -> None:
        # One that is too long is cut, and then makes no sense.
        self._line += part[: max(0, LINE_LIMIT_BYTES - len(self._line))]

    def _read(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        # Most lines are the answer's text: to look for the word costs less than to read them.
        if not any(word in line for word in _TELLING):
            return
        said = _document(line.removeprefix(b"data:"))
        match said.get("type"):
            case "message_start":
                self._told(_mapping(said.get("message")).get("usage"))
            case "message_delta":
                self._told(said.get("usage"))
            case "message_stop":
                self.whole = True
            case "error":
                self._failed(said)


class DocumentMeter(Meter):
    """An answer as one document."""

    def __init__(self) -> None:
        super().__init__()
        self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        self._seen_bytes += len(piece)
        if len(self._body) <= DOCUMENT_LIMIT_BYTES:
            self._body += piece

    def end(self) -> None:
        said = _document(bytes(self._body))
        self.whole = said.get("type") == "message"
        self._seen_bytes = 0  # it has come to its end, and says itself what it was
        if said.get("type") == "error":
            self._failed(said)
        self._told(said.get("usage"))


def tokens_in(usage: Mapping[str, Any]) -> Tokens:
    """The figures of an answer's ``usage``; what is missing or makes no sense is zero."""
    split = _mapping(usage.get("cache_creation"))
    for_an_hour = _amount(split.get("ephemeral_1h_input_tokens"))
    written = _amount(usage.get("cache_creation_input_tokens"))
    if not written:
        written = for_an_hour + _amount(split.get("ephemeral_5m_input_tokens"))
    for_an_hour = min(for_an_hour, written)
    return Tokens(
        input=_amount(usage.get("input_tokens")),
        output=_amount(usage.get("output_tokens")),
        cache_read=_amount(usage.get("cache_read_input_tokens")),
        cache_write=written - for_an_hour,
        cache_write_1h=for_an_hour,
        web_searches=_amount(_mapping(usage.get("server_tool_use")).get("web_search_requests")),
        fast=usage.get("speed") == "fast",
        in_the_us=usage.get("inference_geo") == "us",
    )


def _amount(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _document(text: bytes) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def retry_after_in(headers: Mapping[str, str], *, now_s: float) -> timedelta | None:
    """For how long an answer asks to be left alone.

    Args:
        now_s: In seconds since 1970, for an answer that names a moment and has no date of its own.
    """
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        at_s = _moment_s(value)
        if at_s is None:
            return None
        sent_s = _moment_s(headers.get("date", ""))
        seconds = at_s - (now_s if sent_s is None else sent_s)
    if not math.isfinite(seconds):
        return None
    return timedelta(seconds=min(max(seconds, 0.0), _LONGEST_WAIT_S))


def _moment_s(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
