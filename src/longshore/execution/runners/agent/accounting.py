"""Accounting of model calls: the tokens and the cost of each request to the model.

For each request that ``before`` allows, ``after`` is called exactly once: also if no response came,
if it broke off, or if the client disconnected meanwhile.

The tokens are metered while the response passes through the gateway. A stream reports its usage
twice: at its start (input tokens) and at its end (output tokens, and again the others). The later
report counts; if the stream broke off before it, the earlier one does, since a started response is
billed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from longshore.core.agents.prices import NO_TOKENS, Prices, TokenCounts, as_mapping, parse_tokens
from longshore.core.tasks.failures import parse_wait

_NAME_LIMIT = 300
_TYPICAL_OUTPUT_TOKENS = 1_000  # tokens
_OK = 200
RETRY_LATER_STATUSES: Final = frozenset({429, 503, 529})
"""The response statuses that ask the client to retry later."""
# Usage is reported in short lines; a longer line is content and may be cut.
LINE_LIMIT_BYTES: Final = 1024 * 1024
DOCUMENT_LIMIT_BYTES: Final = 64 * 1024 * 1024
_USAGE_EVENTS = (b'"message_start"', b'"message_delta"', b'"message_stop"', b'"error"')
# The status that an error would have had before the start of the response.
_ERROR_STATUSES: Final[Mapping[str, int]] = {
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
_UNKNOWN_ERROR_STATUS = 500
_BYTES_A_TOKEN = 4
_DELTA = b"content_block_delta"
_DELTA_OVERHEAD_BYTES = 90  # of such a line without its content


@dataclass(slots=True, kw_only=True, eq=False)
class ModelCall:
    """A request to the model, and what is known of its response."""

    model: str
    max_tokens: int | None  # the limit of the response
    size_bytes: int
    prices: Prices
    agent_id: str | None = None  # of a subagent
    sent_at_s: float = 0.0  # on the clock of the event loop
    grant: int | None = None  # the number of the spend request by which it was allowed
    settled: bool = False  # whether its outcome was reported
    _status: int | None = None
    _headers: Mapping[str, str] = field(default_factory=dict)
    _meter: TokenMeter | None = None

    def start_response(self, status: int, headers: Mapping[str, Any], meter: TokenMeter) -> None:
        """Record the start of the response, which ``meter`` reads."""
        self._status, self._headers, self._meter = status, headers, meter

    @property
    def expected_usage(self) -> dict[str, float]:
        """The estimated usage, which is reserved for the request."""
        output = min(self.max_tokens or _TYPICAL_OUTPUT_TOKENS, _TYPICAL_OUTPUT_TOKENS)
        tokens = TokenCounts(input=self.size_bytes // _BYTES_A_TOKEN, output=output)
        return {
            "inputTokens": tokens.input,
            "outputTokens": tokens.output,
            "costUsd": self.prices.cost_usd(self.model, tokens),
        }

    @property
    def status(self) -> int | None:
        """The status; for an error in mid-stream the status of that; None: no response."""
        if self._meter and self._status == _OK:
            return self._meter.error_status or self._status
        return self._status

    @property
    def message_id(self) -> str | None:
        """The API's id of the answer; None: none has begun."""
        return self._meter.message_id if self._meter else None

    @property
    def tokens(self) -> TokenCounts:
        """The consumed tokens."""
        return self._meter.tokens if self._meter else NO_TOKENS

    @property
    def cost_usd(self) -> float:
        """What the consumed tokens cost."""
        return self.prices.cost_usd(self.model, self.tokens)

    @property
    def complete(self) -> bool:
        """Whether the whole response arrived."""
        return self._meter is not None and self._meter.complete

    @property
    def retry_after(self) -> timedelta | None:
        """The delay for which the API asked, if it is to be tried again later."""
        later = self.status in RETRY_LATER_STATUSES
        return parse_wait(self._headers.get("retry-after")) if later else None


BeforeRequest = Callable[[ModelCall], Awaitable[str | None]]
"""Returns why the request is refused; None: it is allowed."""
AfterResponse = Callable[[ModelCall], None]


def parse_model_call(body: bytes, headers: Mapping[str, str], prices: Prices) -> ModelCall | None:
    """Returns the request in an HTTP body; None if it is no JSON object that names its model."""
    document = _document(body)
    model, max_tokens = document.get("model"), document.get("max_tokens")
    if not isinstance(model, str) or not 0 < len(model) <= _NAME_LIMIT:
        return None
    return ModelCall(
        model=model,
        max_tokens=max_tokens if type(max_tokens) is int else None,
        size_bytes=len(body),
        agent_id=headers.get("x-claude-code-agent-id"),
        prices=prices,
    )


class TokenMeter:
    """Reads one response; ``feed`` takes its bytes in chunks of any size.

    Args:
        is_stream: Whether the response is a stream of events; else it is one document.
    """

    def __init__(self, *, is_stream: bool) -> None:
        self.complete = False
        """Whether the whole response has arrived."""
        self.message_id: str | None = None
        """The API's id of the answer; None: none has begun."""
        self.error_type: str | None = None
        """The API's name of the error, if any."""
        self._is_stream = is_stream
        self._limit = LINE_LIMIT_BYTES if is_stream else DOCUMENT_LIMIT_BYTES
        self._unread = bytearray()  # the current line, or the document
        self._usage: dict[str, Any] = {}
        self._seen_bytes = 0  # of content

    @property
    def tokens(self) -> TokenCounts:
        """The consumed tokens, as far as they were reported.

        The output tokens are reported at the end. For a response that broke off they are estimated
        from its content: otherwise a client that disconnects early would not be charged.
        """
        reported = parse_tokens(self._usage)
        if self.complete:
            return reported
        return replace(reported, output=max(reported.output, self._seen_bytes // _BYTES_A_TOKEN))

    @property
    def error_status(self) -> int | None:
        """The HTTP status of the error; None: there was no error."""
        kind = self.error_type
        return None if kind is None else _ERROR_STATUSES.get(kind, _UNKNOWN_ERROR_STATUS)

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the response."""
        if not self._is_stream:
            self._seen_bytes += len(chunk)
            self._add(chunk)
            return
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._add(line)
            if _DELTA in self._unread:
                self._seen_bytes += max(len(self._unread) - _DELTA_OVERHEAD_BYTES, 0)
            self._read_line()
            self._unread.clear()
        self._add(rest)

    def end(self) -> None:
        """Handle the regular end of the response."""
        if self._is_stream:
            self._read_line()
            return
        message = _document(bytes(self._unread))
        self.complete = message.get("type") == "message"
        self._seen_bytes = 0  # the document reports its own usage
        if message.get("type") == "error":
            self._record_error(message)
        self._record_message(message)

    def _add(self, part: bytes) -> None:
        # A line or document that is too long is cut, and then is not valid JSON.
        self._unread += part[: max(0, self._limit - len(self._unread))]

    def _read_line(self) -> None:
        line = bytes(self._unread)
        # Most lines are content: searching for the event name is cheaper than parsing them.
        if not line.startswith(b"data:") or not any(event in line for event in _USAGE_EVENTS):
            return
        message = _document(line.removeprefix(b"data:"))
        match message.get("type"):
            case "message_start":
                self._record_message(as_mapping(message.get("message")))
            case "message_delta":
                self._record_usage(message.get("usage"))
            case "message_stop":
                self.complete = True
            case "error":
                self._record_error(message)

    def _record_error(self, message: Mapping[str, Any]) -> None:
        kind = as_mapping(message.get("error")).get("type")
        self.error_type = kind if isinstance(kind, str) else "api_error"

    def _record_message(self, message: Mapping[str, Any]) -> None:
        id_ = message.get("id")
        self.message_id = id_ if isinstance(id_, str) else None
        self._record_usage(message.get("usage"))

    def _record_usage(self, usage: Any) -> None:
        """Merge a later usage report; a zero replaces only the output tokens."""
        for name, value in as_mapping(usage).items():
            if value or (name == "output_tokens" and value is not None):
                self._usage[name] = value


def _document(text: bytes) -> Mapping[str, Any]:
    try:
        return as_mapping(json.loads(text))
    except (ValueError, RecursionError):
        return {}
