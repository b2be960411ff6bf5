"""The kinds of fault, how likely each is in a run, and how often it occurred.

Each run draws for each kind of fault whether it occurs at all and how likely it is. So some runs
have no faults, some have one kind, and some have many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from random import Random


class Fault(StrEnum):
    """A kind of fault; the value describes it."""

    THROTTLE = "a call is refused before it is carried out"
    UNKNOWN = "a call is carried out and its answer is lost"
    LATE_WRITE = "a call times out and is carried out later"
    SLOW = "a call takes seconds"
    OUTAGE = "a process cannot reach the backend for a while"
    STALE_INDEX = "a listing is stale"
    MESSAGE_DUPLICATED = "a message is on the queue twice"
    MESSAGE_DELAYED = "a message becomes visible much too late"
    MESSAGE_DROPPED = "a message is lost"
    MESSAGE_EXHAUSTED = "a message was received too often and becomes a dead letter"
    POISON = "a message is malformed or names a task that does not exist"
    EVENT_DUPLICATED = "old events are delivered again"
    EVENT_LATE = "an event is delivered long after later events"
    CRASH_BEFORE = "a process crashes just before a call"
    CRASH_AFTER = "a process crashes just after a call"
    CRASH = "a process crashes at a random time"
    DRAIN = "a process is stopped"
    STOP_AT_ONCE = "a process is stopped twice, without a drain"
    PAUSE = "a machine is paused"
    SKEW = "a machine's clock is wrong, within the skew margin"
    CLOCK_SET = "a machine's clock is set while it runs"
    START_FAILS = "a child cannot be started"
    CHILD_DIES = "a child exits without a result"
    CHILD_IGNORES_STOP = "a child ignores a stop"
    COMMIT_OVERTAKEN = "a commit is delayed until another process has changed its row"
    EVENT_EARLY = "an event is delivered before its row can be read"
    ALERT_FAILS = "an alert is refused"
    ALERT_SLOW = "an alert takes seconds"
    ALERT_HANGS = "an alert is never answered"
    ALERT_ANSWER_LOST = "an alert is accepted and the answer is lost"
    # On AWS only. At the end, so that the random numbers for the faults above stay the same.
    EVENT_REFUSED = "the bus accepts only some of the events"
    FUNCTION_RETRIED = "a function gets the same batch again"
    CLIENT_RETRY = "the client library retries a call after another process has changed the row"
    PARTIAL_BATCH = "only some messages of a batch are processed"
    DELIVERED_TWICE = "a message is delivered to two receivers"
    INDEX_DUPLICATED = "a listing has duplicates and is out of order"
    HOT_PARTITION = "no row can be written for a while"
    # Added later, and at the end for the same reason.
    SLOT_LOST = "the reaper of a child slot is killed"
    ENDS_WITH_SLOTS = "a process crashes or is stopped just after a task has begun in a slot"
    FREEZE = "a process is stopped for a while, but its children and its machine are not"
    REMOVAL_CUT = "a process dies between the removals of a job's row and of its tasks"


class FaultProfile(StrEnum):
    """The simulated backend of a run, which has its own faults."""

    DEFAULT = "default"
    AWS = "aws"


AWS_ONLY = frozenset(
    {
        *(Fault.EVENT_REFUSED, Fault.FUNCTION_RETRIED, Fault.CLIENT_RETRY, Fault.PARTIAL_BATCH),
        *(Fault.DELIVERED_TWICE, Fault.INDEX_DUPLICATED, Fault.HOT_PARTITION),
        Fault.REMOVAL_CUT,
    }
)
# Faults that nearly every run of the AWS profile has.
_USUAL_ON_AWS = AWS_ONLY | {
    *(Fault.THROTTLE, Fault.UNKNOWN, Fault.STALE_INDEX, Fault.EVENT_DUPLICATED, Fault.EVENT_LATE),
    *(Fault.MESSAGE_DUPLICATED, Fault.MESSAGE_DELAYED, Fault.CRASH_BEFORE, Fault.CRASH_AFTER),
}


def faults_of(profile: FaultProfile) -> list[Fault]:
    """The faults of a profile."""
    return [fault for fault in Fault if profile is FaultProfile.AWS or fault not in AWS_ONLY]


# The largest probability of each fault per call, message, event or start; or the largest number per
# run, for faults at random times.
_MAX_CHANCE: Mapping[Fault, float] = {
    Fault.THROTTLE: 0.15,
    Fault.UNKNOWN: 0.15,
    Fault.LATE_WRITE: 0.05,
    Fault.SLOW: 0.1,
    Fault.STALE_INDEX: 0.5,
    Fault.MESSAGE_DUPLICATED: 0.5,
    Fault.MESSAGE_DELAYED: 0.5,
    Fault.MESSAGE_DROPPED: 0.3,
    Fault.EVENT_DUPLICATED: 0.5,
    Fault.EVENT_LATE: 0.5,
    Fault.CRASH_BEFORE: 0.03,
    Fault.CRASH_AFTER: 0.03,
    Fault.SKEW: 1.0,
    Fault.START_FAILS: 0.3,
    Fault.CHILD_DIES: 0.4,
    Fault.CHILD_IGNORES_STOP: 0.5,
    Fault.COMMIT_OVERTAKEN: 0.3,
    Fault.EVENT_EARLY: 0.5,
    Fault.ALERT_FAILS: 0.9,
    Fault.ALERT_SLOW: 0.9,
    Fault.ALERT_HANGS: 0.5,
    Fault.ALERT_ANSWER_LOST: 0.5,
    Fault.EVENT_REFUSED: 0.3,
    Fault.CLIENT_RETRY: 0.2,
    Fault.PARTIAL_BATCH: 0.3,
    Fault.DELIVERED_TWICE: 0.3,
    Fault.INDEX_DUPLICATED: 0.3,
    Fault.ENDS_WITH_SLOTS: 0.1,
    Fault.REMOVAL_CUT: 1.0,
}
_MAX_TIMES: Mapping[Fault, int] = {
    Fault.OUTAGE: 3,
    Fault.MESSAGE_EXHAUSTED: 3,
    Fault.POISON: 4,
    Fault.CRASH: 6,
    Fault.DRAIN: 4,
    Fault.STOP_AT_ONCE: 3,
    Fault.PAUSE: 3,
    Fault.CLOCK_SET: 3,
    Fault.FUNCTION_RETRIED: 0,  # follows from other faults
    Fault.HOT_PARTITION: 2,
    Fault.SLOT_LOST: 4,
    Fault.FREEZE: 3,
}
_CALM_CHANCE = 0.05
_OMIT_CHANCE = 0.4
_OMIT_USUAL_CHANCE = 0.1
_DECADES = 2.0


class Faults:
    """The faults of a run: drawn at its start, counted as they occur, ended before its end."""

    def __init__(
        self,
        rng: Random,
        without: Collection[Fault] = (),
        profile: FaultProfile = FaultProfile.DEFAULT,
    ) -> None:
        self.counts: Counter[Fault] = Counter()
        self._active = True
        self._chance: dict[Fault, float] = {}
        self._times: dict[Fault, int] = {}
        calm = rng.random() < _CALM_CHANCE
        aws = profile is FaultProfile.AWS
        for fault in faults_of(profile):
            # Always drawn, so that leaving out a fault does not change the others.
            usual = aws and fault in _USUAL_ON_AWS
            absent = rng.random() < (_OMIT_USUAL_CHANCE if usual else _OMIT_CHANCE)
            strength, times = rng.random(), rng.random()
            if calm or absent or fault in without:
                continue
            if fault in _MAX_CHANCE:
                self._chance[fault] = _MAX_CHANCE[fault] * 10 ** (-_DECADES * strength)
            else:
                self._times[fault] = 1 + int(times * _MAX_TIMES[fault])

    def occurs(self, fault: Fault, rng: Random, *, factor: float = 1.0) -> bool:
        """Draw whether a fault occurs now, and count it if so.

        Args:
            factor: How much more likely it is here than usual.
        """
        chance = self._chance.get(fault)
        if chance is None or not self._active or rng.random() >= chance * factor:
            return False
        self.counts[fault] += 1
        return True

    def times(self, fault: Fault) -> int:
        """How often a fault with random times is to occur."""
        return self._times.get(fault, 0)

    def count(self, fault: Fault) -> None:
        """Count a fault with a random time."""
        self.counts[fault] += 1

    def end(self) -> None:
        """From now on no fault occurs."""
        self._active = False

    @property
    def ended(self) -> bool:
        """Whether the faults have ended."""
        return not self._active
