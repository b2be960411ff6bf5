"""The model's answers in a step, with their tokens and cost.

The gateway's measurements are preferred: the SDK reports a resumed session's usage for the whole
session, and a streaming answer's usage only in part.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Final

from longshore.core.agents.events import AnswerReceived, QueryFinished, TokenCounts, UsageCounted
from longshore.core.agents.trace_entries import TracedTurn
from longshore.core.agents.trace_format import BoundedList
from longshore.core.text.sanitise import safe_excerpt

TEXT_CHARACTERS: Final = 500
MAX_TURNS: Final = 200

# Usage events without a turn yet: they arrive shortly before or after their turn.
_UNCLAIMED = 50


class TurnHistory:
    """All turns of a step."""

    def __init__(self) -> None:
        self.items: BoundedList[TracedTurn] = BoundedList(MAX_TURNS)
        self.total = 0  # without API errors
        self.last_number = 0
        self._by_id: dict[str, TracedTurn] = {}
        self._unclaimed: deque[UsageCounted] = deque(maxlen=_UNCLAIMED)
        self._counted: TokenCounts | None = None
        self._counted_usd = 0.0
        self._reported: TokenCounts | None = None
        self._reported_usd: float | None = None

    def number_of(self, turn_id: str | None, *, by: datetime) -> int:
        """Returns the number of a turn that existed at ``by``; the last number if it is unknown."""
        if (turn := self._by_id.get(turn_id or "")) is None:
            return self.last_number
        # A subagent's tool call may be reported before the answer that requested it.
        turn.at = min(turn.at, by)
        return turn.number

    @property
    def has_counts(self) -> bool:
        """Whether the gateway has measured any usage."""
        return self._counted is not None

    @property
    def tokens(self) -> TokenCounts:
        """The tokens of the step, from the best source available."""
        if (total := self._counted or self._reported) is not None:
            return total
        return sum((turn.tokens or TokenCounts() for turn in self.items), TokenCounts())

    @property
    def cost_usd(self) -> float | None:
        """The measured cost; else the SDK's cost of the whole session."""
        return self._counted_usd if self.has_counts else self._reported_usd

    def add_text(self, event: AnswerReceived) -> bool:
        """Add a part of an answer. Returns whether it contains text."""
        turn = self._by_id.get(event.turn_id) or self._add_turn(event)
        if event.tokens is not None and turn.cost_usd is None:
            turn.tokens = event.tokens
            self._match_usage(turn)
        if not event.text:
            return False
        joined = f"{turn.text}\n{event.text}" if turn.text else event.text
        turn.text = safe_excerpt(joined, limit=TEXT_CHARACTERS)
        return True

    def _add_turn(self, event: AnswerReceived) -> TracedTurn:
        self.last_number += 1
        self.total += event.error is None
        turn = TracedTurn(
            number=self.last_number,
            id=event.turn_id,
            at=event.at,
            model=event.model,
            parent=event.parent,
            error=event.error,
        )
        self._by_id[turn.id] = turn
        if (dropped := self.items.add(turn)) is not None:
            del self._by_id[dropped.id]
        return turn

    def _match_usage(self, turn: TracedTurn) -> None:
        event = next((event for event in self._unclaimed if turn.matches_usage(event)), None)
        if event is not None:
            self._unclaimed.remove(event)
            turn.set_usage(event)

    def add_usage(self, event: UsageCounted) -> bool:
        """Add the usage of an answer, which may arrive before or after the answer itself."""
        self._counted = (self._counted or TokenCounts()) + event.tokens
        self._counted_usd += event.cost_usd
        turn = next((turn for turn in self.items if turn.matches_usage(event)), None)
        if turn is None:
            self._unclaimed.append(event)
        else:
            turn.set_usage(event)
        return True

    def add_query_result(self, event: QueryFinished) -> None:
        """Add the usage that the SDK reports for a query."""
        if event.tokens is not None:
            self._reported = (self._reported or TokenCounts()) + event.tokens
        if event.cost_usd is not None:
            self._reported_usd = event.cost_usd
