"""What can be asked of a task.

Plain values: a command says what somebody wants or saw happen, ``task.apply`` decides what comes of
it. Whatever a worker reports carries the ``fence`` of its lease.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime, timedelta

from longshore.core.budgets import Allowance, Budget, Scope
from longshore.core.events.types import Activity, Usage
from longshore.core.failures import Failure
from longshore.core.numbers import NO_NUMBERS, NumberSet
from longshore.core.values import Document
from longshore.core.valuing import value


@value
class ParentsDone:
    """These parents completed."""

    numbers: NumberSet


@value
class Claim:
    """A worker wants the lease."""

    worker_id: str
    process_id: int
    lasts: timedelta
    epoch: int = 0
    local: bool = True


@value
class Renew:
    """The holder is alive."""

    fence: int
    lasts: timedelta
    process_id: int = 0
    rss_bytes: int = 0
    activity: Activity | None = None
    usage: Usage = field(default_factory=Usage)  # so far in this attempt


@value
class SaveCheckpoint:
    """The holder finished a named step; its result is stored under ``key``."""

    fence: int
    key: str


@value
class Release:
    """The holder gives the task back unfinished."""

    fence: int
    reason: str
    usage: Usage = field(default_factory=Usage)
    last_output: int | None = None


@value
class Park:
    """The holder gives the task back because a budget is used up."""

    fence: int
    scope: Scope
    reason: str
    duration: timedelta
    until: datetime | None = None  # when there is a new one; None: not before more is allowed
    allowance: Allowance | None = None  # of the task, as the holder knew it
    usage: Usage = field(default_factory=Usage)
    last_output: int | None = None


@value
class Unpark:
    """A task that rests for want of this budget may go on."""

    scope: Scope
    by: str
    due: bool = False  # only if its time to go on by itself has come


@value
class AddBudget:
    """An operator allows more to be spent on the task."""

    more: Budget
    by: str
    request_id: str  # of those with the same id the first counts


@value
class AttemptFailed:
    """The attempt ended without a result."""

    fence: int
    failure: Failure
    roll: float  # in [0, 1): the chance in the backoff
    duration: timedelta
    usage: Usage = field(default_factory=Usage)
    last_output: int | None = None


@value
class Complete:
    """The attempt ended with a result."""

    fence: int
    result: Document | None
    duration: timedelta
    exit_code: int = 0
    usage: Usage = field(default_factory=Usage)
    last_output: int | None = None


@value
class TimeOut:
    """The holder ended the attempt because its time was up."""

    fence: int
    timeout: timedelta
    elapsed: timedelta
    signal: str
    roll: float
    usage: Usage = field(default_factory=Usage)
    last_output: int | None = None


@value
class LeaseEnded:
    """The holder is silent: its lease is over, or its process is known to be gone."""

    fence: int
    margin: timedelta
    holder_gone: bool = False


@value
class FailTask:
    """End a task that nobody runs."""

    failure: Failure
    source: str  # "dlq" or "sweeper"
    margin: timedelta


@value
class RequestCancel:
    """A user wants the task ended."""

    by: str
    reason: str | None = None
    round: int | None = None  # the job's, when the job was cancelled: later rounds are spared


@value
class ConfirmCancel:
    """The holder has killed the attempt, as was asked."""

    fence: int
    usage: Usage = field(default_factory=Usage)
    last_output: int | None = None


@value
class RequestRevision:
    """A reviewer wants the work done again."""

    feedback: str
    by: str
    attempt: int | None = None  # whose result the reviewer saw: that of a later one is spared


@value
class Approve:
    """A reviewer accepts the work."""

    by: str
    attempt: int | None = None  # whose result the reviewer saw: a later one is not accepted unseen


@value
class Resume:
    """An operator gives the task another round.

    ``completed`` are the tasks of the job that completed, because a task that was cancelled while
    it waited has not heard of its parents since; for the others it waits again.
    """

    round: int
    by: str
    completed: NumberSet = NO_NUMBERS


@value
class RingAgain:
    """The task is due and nobody came: ring its doorbell once more."""


Command = (
    ParentsDone
    | Claim
    | Renew
    | SaveCheckpoint
    | Release
    | Park
    | AttemptFailed
    | Complete
    | TimeOut
    | LeaseEnded
    | FailTask
    | RequestCancel
    | ConfirmCancel
    | RequestRevision
    | Approve
    | Resume
    | Unpark
    | AddBudget
    | RingAgain
)
