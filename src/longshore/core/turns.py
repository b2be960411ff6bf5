"""When a worker sends commands to its task source, and when it claims tasks.

``TurnPlanner`` gets events and returns what to do next. It does nothing itself, so that
every sequence of events can be tested.

A source that carries out commands and a claim in one transaction gets one turn at a time: commands
that arrive meanwhile gather for the next one, and a turn claims for the slots that are free. A
claim that waits is under way only between turns that leave slots free. Any other source gains
nothing from gathering: a turn is sent as soon as there is a command, and one slow command delays no
other.
"""

from __future__ import annotations

from typing import NamedTuple


class TurnDecision(NamedTuple):
    """What to do now."""

    turn_slots: int | None = None  # send the commands that wait, and claim for so many slots
    claim_slots: int = 0  # begin to wait for tasks for so many slots
    stop_claim: bool = False  # cancel the claim that waits


class TurnPlanner:
    """Decides from the slots of a worker and the calls that are under way.

    Args:
        slots: How many tasks the worker runs at once.
        claims_with_commands: Whether a turn can claim.
    """

    def __init__(self, *, slots: int, claims_with_commands: bool) -> None:
        self._slots = slots
        self._joint = claims_with_commands
        self._busy = 0  # slots
        self._turns = 0  # under way
        self._turn_slots = 0  # that the turn under way claims for
        self._claim_slots = 0  # that the waiting claim is for; 0: none waits
        self._claiming = False  # whether claims are allowed

    @property
    def free(self) -> int:
        """Slots that are neither busy nor promised to a claim under way.

        More slots than there are can be in use for a moment.
        """
        return max(self._slots - self._busy - self._turn_slots - self._claim_slots, 0)

    def turn_ended(self) -> None:
        """A turn was answered or given up."""
        self._turns -= 1
        self._turn_slots = 0

    def claim_ended(self) -> None:
        """The waiting claim returned, or failed, or was cancelled."""
        self._claim_slots = 0

    def allow_claims(self) -> None:
        """The worker has joined: it may claim."""
        self._claiming = True

    def forbid_claims(self) -> None:
        """The worker stops, or its leases were ended: it must not claim."""
        self._claiming = False

    def decide(self, *, busy: int, commands: bool = False) -> TurnDecision:
        """Returns what to do now. The caller does all of it.

        Args:
            busy: The slots in use.
            commands: Whether any wait for a turn.
        """
        self._busy = busy
        stop_claim = not self._claiming and self._claim_slots > 0
        turn_slots: int | None = None
        if commands and not (self._joint and self._turns):
            turn_slots = self.free if self._joint and self._claiming else 0
            self._turns += 1
            self._turn_slots = turn_slots
        claim_slots = 0
        if self._claiming and not self._claim_slots and not (self._joint and self._turns):
            self._claim_slots = claim_slots = self.free
        return TurnDecision(turn_slots, claim_slots, stop_claim)
