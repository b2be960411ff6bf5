"""Accounting of model calls: one request to the model and its response.

For each request that ``before`` allows, ``after`` is called exactly once: also if no response came,
if it broke off, or if the client disconnected meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from longshore.core.agents.prices import NO_TOKENS, BilledTokens, Prices
from longshore.execution.runners.agent.token_meter import TokenMeter, parse_retry_after

_NAME_LIMIT = 300
_BYTES_A_TOKEN = 4
_TYPICAL_OUTPUT_TOKENS = 1_000  # tokens
_OK = 200
RETRY_LATER_STATUSES: Final = frozenset({429, 503, 529})
"""The response statuses that ask the client to retry later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request to the model, before it is sent."""

    model: str
    max_tokens: int | None  # the limit of the response
    size_bytes: int
    streamed: bool
    session_id: str | None = None
    agent_id: str | None = None  # of a subagent


@dataclass(frozen=True, slots=True)
class RequestDecision:
    """Whether a request may be sent."""

    refusal: str | None = None  # the reason; None: allowed


ALLOW: Final = RequestDecision()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse:
    """The outcome of a request that was allowed."""

    request: ModelRequest
    status: int | None  # for an error in mid-stream its status; None: no response
    tokens: BilledTokens
    cost_usd: float
    has_price: bool  # False: the cost is an estimate
    complete: bool  # whether the whole response arrived
    error_type: str | None  # the API's name of the error
    duration: timedelta
    request_id: str | None  # the API's id of the request
    retry_after: timedelta | None

    @property
    def model(self) -> str:
        """The requested model."""
        return self.request.model


BeforeRequest = Callable[[ModelRequest], Awaitable[RequestDecision]]
AfterResponse = Callable[[ModelResponse], None]


class InvalidModelRequest(ValueError):
    """The cost of the request cannot be estimated, so it is not sent."""


def parse_model_request(body: bytes, headers: Mapping[str, str]) -> ModelRequest:
    """Returns the request in an HTTP body.

    Raises:
        InvalidModelRequest: the body is no JSON object that names its model.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    model = document.get("model") if isinstance(document, Mapping) else None
    if not isinstance(model, str) or not 0 < len(model) <= _NAME_LIMIT:
        message = "expected a JSON object that names its model"
        raise InvalidModelRequest(message)
    max_tokens = document.get("max_tokens")
    return ModelRequest(
        model=model,
        max_tokens=max_tokens if type(max_tokens) is int else None,
        size_bytes=len(body),
        streamed=document.get("stream") is True,
        session_id=headers.get("x-claude-code-session-id"),
        agent_id=headers.get("x-claude-code-agent-id"),
    )


def expected_usage(request: ModelRequest, prices: Prices) -> dict[str, float]:
    """Returns the estimated usage of a request, which is reserved for it."""
    output = min(request.max_tokens or _TYPICAL_OUTPUT_TOKENS, _TYPICAL_OUTPUT_TOKENS)
    tokens = BilledTokens(input=request.size_bytes // _BYTES_A_TOKEN, output=output)
    return {
        "inputTokens": tokens.input,
        "outputTokens": tokens.output,
        "costUsd": prices.cost_usd(request.model, tokens),
    }


class ModelCall:
    """One request in progress; ``settle`` may be called repeatedly."""

    def __init__(self, request: ModelRequest, prices: Prices, after: AfterResponse) -> None:
        self._request, self._prices, self._after = request, prices, after
        self._started_at_s = asyncio.get_running_loop().time()
        self._status: int | None = None
        self._headers: Mapping[str, str] = {}
        self._meter: TokenMeter | None = None
        self._settled = False

    def start_response(self, status: int, headers: Mapping[str, Any], meter: TokenMeter) -> None:
        """Record the start of the response, which ``meter`` reads."""
        self._status, self._headers, self._meter = status, headers, meter

    def settle(self) -> None:
        """Report the outcome to ``after``; only the first call does."""
        if self._settled:
            return
        self._settled = True
        self._after(self._response())

    def _response(self) -> ModelResponse:
        meter, model, status = self._meter, self._request.model, self._status
        tokens = meter.tokens if meter else NO_TOKENS
        if meter and status == _OK:
            status = meter.error_status or status
        duration_s = asyncio.get_running_loop().time() - self._started_at_s
        return ModelResponse(
            request=self._request,
            status=status,
            tokens=tokens,
            cost_usd=self._prices.cost_usd(model, tokens),
            has_price=self._prices.has_price(model),
            complete=meter is not None and meter.complete,
            error_type=meter.error_type if meter else None,
            duration=timedelta(seconds=duration_s),
            request_id=self._headers.get("request-id"),
            retry_after=self._retry_after(status),
        )

    def _retry_after(self, status: int | None) -> timedelta | None:
        if status not in RETRY_LATER_STATUSES:
            return None
        return parse_retry_after(self._headers, now_s=time.time())
