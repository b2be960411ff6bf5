"""What can go wrong, how often it does in one run, and how often it did.

Each run draws for each kind of fault whether it happens at all and how likely it is, so that some
runs are calm, some have one trouble, and some are hell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from random import Random


class Fault(StrEnum):
    """A kind of trouble; the value says what it is."""

    THROTTLE = "a call is turned away before it is carried out"
    UNKNOWN = "a call is carried out and its answer is lost"
    LATE_WRITE = "a call is given up and carried out later all the same"
    SLOW = "a call takes seconds"
    OUTAGE = "a process cannot reach anything for a while"
    STALE_INDEX = "a listing shows what was true earlier"
    MESSAGE_DUPLICATED = "a message is on the queue twice"
    MESSAGE_DELAYED = "a message is seen much later than it should be"
    MESSAGE_DROPPED = "a message is lost"
    MESSAGE_EXHAUSTED = "a message was received too often and is a dead letter"
    POISON = "a message makes no sense, or names a task that does not exist"
    EVENT_DUPLICATED = "old events are brought again"
    EVENT_LATE = "an event is brought long after those that followed it"
    CRASH_BEFORE = "a process dies just before a call"
    CRASH_AFTER = "a process dies just after a call"
    CRASH = "a process dies at any moment"
    DRAIN = "a process is asked to stop"
    STOP_AT_ONCE = "a process is asked to stop twice"
    PAUSE = "a machine stands still"
    SKEW = "a machine's clock is wrong, as far as that is allowed"
    CLOCK_SET = "a machine's clock is set while it runs"
    START_FAILS = "no process can be had for an attempt"
    CHILD_DIES = "an attempt dies without a word"
    CHILD_IGNORES_STOP = "an attempt does not end when it is asked to"
    COMMIT_OVERTAKEN = "a commit waits until somebody else has changed its row"
    EVENT_EARLY = "an event is brought before its row can be read"
    ALERT_FAILS = "an alert is not taken"
    ALERT_SLOW = "an alert takes seconds"
    ALERT_HANGS = "an alert is never answered"
    ALERT_ANSWER_LOST = "an alert is taken and the answer is lost"
    # On AWS alone. At the end, so that what was drawn for those above stays as it was.
    EVENT_REFUSED = "the bus takes only some of the events"
    FUNCTION_RETRIED = "a function is handed the same batch again"
    CLIENT_RETRY = "a call is made again by the client library, and others were faster"
    PARTIAL_BATCH = "of a batch of messages only some are dealt with"
    DELIVERED_TWICE = "a message is handed out while somebody has it"
    INDEX_DUPLICATED = "a listing shows something twice and out of order"
    HOT_PARTITION = "nobody can write rows for a while"


class FaultProfile(StrEnum):
    """What a run stands on; the value says what can go wrong there."""

    DEFAULT = "default"
    AWS = "aws"


AWS_ONLY = frozenset(
    {
        *(Fault.EVENT_REFUSED, Fault.FUNCTION_RETRIED, Fault.CLIENT_RETRY, Fault.PARTIAL_BATCH),
        *(Fault.DELIVERED_TWICE, Fault.INDEX_DUPLICATED, Fault.HOT_PARTITION),
    }
)
# Which are nearly always there, on AWS.
_USUAL_ON_AWS = AWS_ONLY | {
    *(Fault.THROTTLE, Fault.UNKNOWN, Fault.STALE_INDEX, Fault.EVENT_DUPLICATED, Fault.EVENT_LATE),
    *(Fault.MESSAGE_DUPLICATED, Fault.MESSAGE_DELAYED, Fault.CRASH_BEFORE, Fault.CRASH_AFTER),
}


def faults_of(profile: FaultProfile) -> list[Fault]:
    """All that can go wrong there."""
    return [fault for fault in Fault if profile is FaultProfile.AWS or fault not in AWS_ONLY]


# How likely each is, at most: of a call, of a message or event, of a start; or how many there are
# in a run, for those that come by the clock.
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
    Fault.FUNCTION_RETRIED: 0,  # follows from others
    Fault.HOT_PARTITION: 2,
}
_CALM_CHANCE = 0.05
_OMIT_CHANCE = 0.4
_OMIT_USUAL_CHANCE = 0.1
_DECADES = 2.0


class Faults:
    """The faults of one run: drawn at its start, counted as they happen, ended before its end."""

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
            # Drawn whether it counts or not: leaving one out must not change the others.
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
        """Whether it happens now; counted if it does.

        Args:
            likelier: By how much more it is here than usual.
        """
        chance = self._chance.get(fault)
        if chance is None or not self._active or rng.random() >= chance * factor:
            return False
        self.counts[fault] += 1
        return True

    def times(self, fault: Fault) -> int:
        """How often it is to happen, of those that come by the clock."""
        return self._times.get(fault, 0)

    def count(self, fault: Fault) -> None:
        """One that comes by the clock has happened."""
        self.counts[fault] += 1

    def end(self) -> None:
        """From now on nothing goes wrong."""
        self._active = False

    @property
    def ended(self) -> bool:
        """Whether the time of faults has ended."""
        return not self._active
