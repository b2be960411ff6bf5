"""When a worker sends commands to its task source, and when it claims tasks.

``TurnPlanner`` gets events and returns what to do next. It does nothing itself, so that
every sequence of events can be tested.

A source that carries out commands and a claim in one transaction gets one turn at a time: commands
that arrive meanwhile gather for the next one, and a turn claims for the slots that are free and
those that its commands free. A claim that waits is under way only between turns that leave slots
free. Any other source gains nothing from gathering: a turn is sent as soon as there is a command,
and one slow command delays no other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SendTurn:
    """Send the commands that wait, and claim for this many slots; 0: claim nothing."""

    slots: int


@dataclass(frozen=True, slots=True)
class StartClaim:
    """Begin to wait for tasks for this many slots."""

    slots: int


@dataclass(frozen=True, slots=True)
class StopClaim:
    """Cancel the claim that waits."""


TurnAction = SendTurn | StartClaim | StopClaim


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
        self._busy_elsewhere = 0  # slots that the caller counts itself
        self._commands = 0  # that wait for a turn
        self._ending = 0  # of these: that free a slot
        self._turns = 0  # under way
        self._turn_slots = 0  # that the turn under way claims for
        self._claim_slots = 0  # that the waiting claim is for; 0: none waits
        self._claiming = False  # whether claims are allowed

    @property
    def free(self) -> int:
        """Slots that are neither busy nor promised to a claim under way."""
        return self._free_after(0)

    def _free_after(self, ending: int) -> int:
        """Returns how many slots are free when this many attempts have ended.

        More slots than there are can be in use for a moment: the first attempts that end then free
        none.
        """
        promised = self._turn_slots + self._claim_slots
        return max(self._slots - self._busy - self._busy_elsewhere - promised + ending, 0)

    def command_added(self, *, ends_attempt: bool) -> None:
        """A command waits for the next turn."""
        self._commands += 1
        self._ending += ends_attempt

    def turn_ended(self, *, claimed: int) -> None:
        """A turn was answered or given up; it claimed this many tasks."""
        self._turns -= 1
        self._turn_slots = 0
        self._busy += claimed

    def claim_ended(self, *, claimed: int) -> None:
        """The waiting claim returned with this many tasks, or failed, or was cancelled."""
        self._claim_slots = 0
        self._busy += claimed

    def slot_freed(self) -> None:
        """An attempt has ended."""
        self._busy -= 1

    def allow_claims(self) -> None:
        """The worker has joined: it may claim."""
        self._claiming = True

    def forbid_claims(self) -> None:
        """The worker stops, or its leases were ended: it must not claim."""
        self._claiming = False

    def decide(self, *, busy_elsewhere: int = 0) -> list[TurnAction]:
        """Returns what to do now. The caller does all of it.

        Args:
            busy_elsewhere: Slots in use by tasks that this planner does not count.
        """
        self._busy_elsewhere = busy_elsewhere
        actions: list[TurnAction] = []
        if not self._claiming and self._claim_slots:
            actions.append(StopClaim())
        if self._commands and not (self._joint and self._turns):
            claims = self._joint and self._claiming
            slots = min(self._free_after(self._ending), self._slots) if claims else 0
            self._turns += 1
            self._turn_slots = slots
            self._commands = self._ending = 0
            actions.append(SendTurn(slots))
        waits_for_turn = self._joint and self._turns
        if self._claiming and self.free and not self._claim_slots and not waits_for_turn:
            self._claim_slots = self.free
            actions.append(StartClaim(self._claim_slots))
        return actions
