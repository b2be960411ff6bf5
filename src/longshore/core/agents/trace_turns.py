"""The answers of a step, and what they took and cost.

Figures come from whoever passed the API's answers on, where that is known: what the library says of
a session that was resumed holds for the whole session, and of an answer that streams only half.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Final

from longshore.core.agents.happenings import Counted, Resulted, Said, Tokens
from longshore.core.agents.trace_entries import Turn
from longshore.core.agents.trace_forms import Ends
from longshore.core.sanitise import safe_excerpt

TEXT_CHARACTERS: Final = 500
TURNS_KEPT: Final = 200

# Answers that no turn has claimed yet: they come a little before or after what they belong to.
_UNCLAIMED = 50


class Turns:
    """All answers of a step."""

    def __init__(self) -> None:
        self.kept: Ends[Turn] = Ends(TURNS_KEPT)
        self.total = 0  # those that are answers, and no errors of the API
        self.last_number = 0
        self._by_id: dict[str, Turn] = {}
        self._unclaimed: deque[Counted] = deque(maxlen=_UNCLAIMED)
        self._counted: Tokens | None = None
        self._counted_usd = 0.0
        self._resulted: Tokens | None = None
        self._resulted_usd: float | None = None

    def number_of(self, turn_id: str | None, *, by: datetime) -> int:
        """The number of an answer that was there by a moment; if it is not known, the last's."""
        if (turn := self._by_id.get(turn_id or "")) is None:
            return self.last_number
        # A subagent's tool may be seen to begin before the answer that wanted it.
        turn.at = min(turn.at, by)
        return turn.number

    @property
    def counted(self) -> bool:
        """Whether somebody counts."""
        return self._counted is not None

    @property
    def tokens(self) -> Tokens:
        """All that the step took, by the best account there is."""
        if (known := self._counted or self._resulted) is not None:
            return known
        return sum((turn.tokens or Tokens() for turn in self.kept), Tokens())

    @property
    def cost_usd(self) -> float | None:
        """What it cost: as counted, else as the library has it for the whole session."""
        return self._counted_usd if self.counted else self._resulted_usd

    def say(self, told: Said) -> bool:
        """Take in a piece of an answer; whether it says something."""
        turn = self._by_id.get(told.turn_id) or self._new(told)
        if told.tokens is not None and turn.cost_usd is None:
            turn.tokens = told.tokens
            self._claim(turn)
        if not told.text:
            return False
        joined = f"{turn.text}\n{told.text}" if turn.text else told.text
        turn.text = safe_excerpt(joined, limit=TEXT_CHARACTERS)
        return True

    def _new(self, told: Said) -> Turn:
        self.last_number += 1
        self.total += told.error is None
        turn = Turn(
            number=self.last_number,
            id=told.turn_id,
            at=told.at,
            model=told.model,
            parent=told.parent,
            error=told.error,
        )
        self._by_id[turn.id] = turn
        if (dropped := self.kept.add(turn)) is not None:
            del self._by_id[dropped.id]
        return turn

    def _claim(self, turn: Turn) -> None:
        told = next((told for told in self._unclaimed if turn.is_counted_by(told)), None)
        if told is not None:
            self._unclaimed.remove(told)
            turn.count(told)

    def count(self, told: Counted) -> bool:
        """Take in what an answer took; it may come before or after the answer itself."""
        self._counted = (self._counted or Tokens()) + told.tokens
        self._counted_usd += told.cost_usd
        turn = next((turn for turn in self.kept if turn.is_counted_by(told)), None)
        if turn is None:
            self._unclaimed.append(told)
        else:
            turn.count(told)
        return True

    def account(self, told: Resulted) -> None:
        """Take in what the library says that a query took."""
        if told.tokens is not None:
            self._resulted = (self._resulted or Tokens()) + told.tokens
        if told.cost_usd is not None:
            self._resulted_usd = told.cost_usd
