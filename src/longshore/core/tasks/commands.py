"""The commands of the task aggregate.

A command is a value: a request or an observation of a caller, from which ``task.apply`` decides
the change.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from longshore.core.budgets import Allowance, Budget, BudgetScope, BudgetUnit
from longshore.core.documents import Document
from longshore.core.events.types import NO_USAGE, Activity, Usage
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.records import value
from longshore.core.tasks.failures import Failure


@value
class Command:
    """Base of the commands."""


@value
class FencedCommand(Command):
    """A command about a lease; it is refused if its fence is not the current one."""

    fence: int


@value
class AttemptCommand(FencedCommand):
    """A command of the lease holder that ends its attempt."""

    usage: Usage = NO_USAGE
    last_output: int | None = None  # sequence of the attempt's last output


@value
class ParentsCompleted(Command):
    """These parents completed."""

    numbers: NumberSet


@value
class Claim(Command):
    """A worker claims the task."""

    worker_id: str
    process_id: int
    lease_duration: timedelta
    epoch: int = 0
    local: bool = True


@value
class Renew(FencedCommand):
    """The lease holder renews its lease."""

    lease_duration: timedelta
    process_id: int = 0
    rss_bytes: int = 0
    activity: Activity | None = None
    usage: Usage = NO_USAGE  # so far in this attempt


@value
class SaveCheckpoint(FencedCommand):
    """The lease holder finished a named step; its result is stored under ``key``."""

    key: str


@value
class Release(AttemptCommand):
    """The lease holder releases the task unfinished.

    A task that had not begun keeps its place in the queue, which is ``due_at``.
    """

    reason: str
    due_at: datetime | None = None  # None: the task had begun


@value
class Park(AttemptCommand):
    """The lease holder gives the task back because a budget is used up."""

    scope: BudgetScope
    unit: BudgetUnit
    reason: str
    duration: timedelta
    until: datetime | None = None  # when the budget starts anew; None: only when it is raised
    allowance: Allowance | None = None  # of the task, as the lease holder knew it


@value
class Unpark(Command):
    """A task that is parked because of this budget may run again."""

    scope: BudgetScope
    by: str
    due: bool = False  # only if its due time has come


@value
class AddBudget(Command):
    """An operator raises the budget of the task; ``core.jobs.job`` applies it to a job."""

    amount: Budget
    by: str
    request_id: str  # only the first command with an id counts


@value
class AttemptFailed(AttemptCommand):
    """The attempt ended without a result."""

    failure: Failure
    jitter: float  # in [0, 1)
    duration: timedelta


@value
class Complete(AttemptCommand):
    """The attempt ended with a result."""

    result: Document | None
    duration: timedelta
    exit_code: int = 0


@value
class TimeOut(AttemptCommand):
    """The lease holder stopped the attempt because it timed out."""

    timeout: timedelta
    elapsed: timedelta
    signal: str
    jitter: float


@value
class LeaseEnded(FencedCommand):
    """The lease has expired, or the holder's process has ended."""

    margin: timedelta
    holder_dead: bool = False
    begun: bool = True  # False: the attempt had not begun, and is not used up


@value
class FailTask(Command):
    """Fail a task that no worker runs."""

    failure: Failure
    source: str  # "dlq" or "sweeper"
    margin: timedelta


@value
class RequestCancel(Command):
    """A user cancels the task."""

    by: str
    reason: str | None = None
    round: int | None = None  # of the job when it was cancelled; later rounds are not affected


@value
class ConfirmCancel(AttemptCommand):
    """The lease holder has stopped the attempt of a cancelled task."""


@value
class RequestRevision(Command):
    """A reviewer requests a revision."""

    feedback: str
    by: str
    attempt: int | None = None  # whose result the reviewer saw; a later result is not affected


@value
class Approve(Command):
    """A reviewer approves the result."""

    by: str
    attempt: int | None = None  # whose result the reviewer saw; a later result is not approved


@value
class Resume(Command):
    """An operator resumes the task in another round.

    ``completed`` are the completed tasks of the job: a task that was cancelled while it waited was
    not notified of its parents since, and waits again for those that have not completed.
    """

    round: int
    by: str
    completed: NumberSet = NO_NUMBERS


@value
class EnqueueAgain(Command):
    """The task is due and was not claimed: enqueue it again."""
