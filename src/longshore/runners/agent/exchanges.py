"""Exchanges: one question to the model and its answer, as the keepers of a budget see them.

Who is asked ``before`` a question and lets it go hears of it ``after``, once and in any case: also
if no answer came, or half of one, or if whoever asked has left meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from longshore.core.agents.prices import NO_TOKENS, Prices, Tokens
from longshore.runners.agent.metering import Meter, retry_after_in

_NAME_LIMIT = 300
_BYTES_A_TOKEN = 4
_USUAL_ANSWER = 1_000  # tokens
_OK = 200
PUT_OFF: Final = frozenset({429, 503, 529})
"""Answers that say: later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A question that is about to be asked."""

    model: str
    max_tokens: int | None  # at most so many will be answered
    size_bytes: int
    streamed: bool
    session_id: str | None = None
    agent_id: str | None = None  # of a subagent


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a question may be asked."""

    stop: str | None = None  # why not; None: go


GO: Final = Verdict()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What became of a question that was let go."""

    request: ModelRequest
    status: int | None  # an error in mid-stream as the status it stands for; None: no answer came
    tokens: Tokens
    cost_usd: float
    price_known: bool  # or it is a guess
    whole: bool  # whether the answer came to its end
    error_type: str | None  # what the API calls what went wrong
    duration: timedelta
    request_id: str | None  # by which the API's own people find it
    retry_after: timedelta | None

    @property
    def model(self) -> str:
        """Which model was asked, and is paid for."""
        return self.request.model


Before = Callable[[ModelRequest], Awaitable[Verdict]]
After = Callable[[Answered], None]


class NotAQuestion(ValueError):
    """What cannot be priced is not asked."""


def question_in(body: bytes, headers: Mapping[str, str]) -> ModelRequest:
    """What is about to be asked.

    Raises:
        NotAQuestion: nobody could tell what it would cost.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    model = document.get("model") if isinstance(document, Mapping) else None
    if not isinstance(model, str) or not 0 < len(model) <= _NAME_LIMIT:
        message = "expected a JSON object that names its model"
        raise NotAQuestion(message)
    most = document.get("max_tokens")
    return ModelRequest(
        model=model,
        max_tokens=most if type(most) is int else None,
        size_bytes=len(body),
        streamed=document.get("stream") is True,
        session_id=headers.get("x-claude-code-session-id"),
        agent_id=headers.get("x-claude-code-agent-id"),
    )


def expected_of(request: ModelRequest, prices: Prices) -> dict[str, float]:
    """What a question will come to, as far as it can be told before: what is reserved for it."""
    output = min(request.max_tokens or _USUAL_ANSWER, _USUAL_ANSWER)
    tokens = Tokens(input=request.size_bytes // _BYTES_A_TOKEN, output=output)
    return {
        "inputTokens": tokens.input,
        "outputTokens": tokens.output,
        "costUsd": prices.cost_usd(request.model, tokens),
    }


class Exchange:
    """One question on its way; ``settle`` may be called as often as one likes."""

    def __init__(self, request: ModelRequest, prices: Prices, after: After) -> None:
        self._request, self._prices, self._after = request, prices, after
        self._begun_at_s = asyncio.get_running_loop().time()
        self._status: int | None = None
        self._headers: Mapping[str, str] = {}
        self._meter: Meter | None = None
        self._settled = False

    def answers(self, status: int, headers: Mapping[str, Any], meter: Meter) -> None:
        """An answer begins; the meter reads it."""
        self._status, self._headers, self._meter = status, headers, meter

    def settle(self) -> None:
        """Tell what it has come to; only the first call does."""
        if self._settled:
            return
        self._settled = True
        self._after(self._outcome())

    def _outcome(self) -> Answered:
        meter, model, status = self._meter, self._request.model, self._status
        tokens = meter.tokens if meter else NO_TOKENS
        if meter and status == _OK:
            status = meter.error_status or status
        lasted_s = asyncio.get_running_loop().time() - self._begun_at_s
        return Answered(
            request=self._request,
            status=status,
            tokens=tokens,
            cost_usd=self._prices.cost_usd(model, tokens),
            price_known=self._prices.is_known(model),
            whole=meter is not None and meter.whole,
            error_type=meter.error_type if meter else None,
            duration=timedelta(seconds=lasted_s),
            request_id=self._headers.get("request-id"),
            retry_after=self._asked_to_wait(status),
        )

    def _asked_to_wait(self, status: int | None) -> timedelta | None:
        if status not in PUT_OFF:
            return None
        return retry_after_in(self._headers, now_s=time.time())
