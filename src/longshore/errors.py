"""Every error Longshore raises, in one tree.

::

    LongshoreError
    ├── ConfigurationError         settings are missing, malformed or contradictory
    ├── UsageError                 the caller broke a documented rule; never retried
    │   ├── StepNameTaken          two steps with one name run at once
    │   ├── NotAllowed             the API key does not allow it
    │   ├── CursorLost             a restore has undone the events at this cursor
    │   ├── InvalidJob             a cycle, an unknown dependency, a duplicate id …
    │   └── InvalidInput           the arguments do not fit the task function
    ├── NotFound                   no such job, task, definition, key or blob
    ├── Conflict                   another process changed it first
    │   ├── VersionConflict        the row is not the one that was read
    │   ├── CommandRefused         the row's state does not allow the command
    │   │   ├── LeaseHeld          another worker's lease is still live
    │   │   └── LeaseLost          this lease ran out or was taken over
    │   ├── AlreadyExists          same id, different content
    │   │   └── JobRemoved         the job of this request id was removed
    │   ├── ReceiptExpired         the message was delivered again since
    │   └── WorkerGone             another process has ended this worker's leases
    ├── TaskFailedError            a task whose result was requested ended without one
    │   └── TaskCancelledError     because it was cancelled
    └── BackendError               a store, queue or bus failed; see ``__cause__``
        ├── BackendUnavailable     a retry may succeed: throttled, timed out, locked
        │   └── OutcomeUnknown     the write may or may not have happened
        ├── BackendRejected        a retry does not help: denied, malformed
        │   ├── StoreCorrupt       the file is damaged
        │   ├── StoreTooNew        the file was written by a newer Longshore
        │   ├── StoreInUse         the file must be upgraded while no other process has it open
        │   └── NotDeployed        a queue that does not exist on AWS
        └── AlertFailed            an alert could not be delivered

    Retry, Fail                    raised by a task to decide its own outcome

Errors expose their details as attributes. Do not parse the message: its text may change. Errors can
be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from datetime import datetime


class LongshoreError(Exception):
    """The base of all errors that Longshore raises."""


class ConfigurationError(LongshoreError):
    """Settings are missing, malformed or contradict each other."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "; ".join(self.problems)


class UsageError(LongshoreError):
    """The caller broke a documented rule; a retry does not help."""


@dataclass(eq=False)
class StepNameTaken(UsageError):
    """Two steps with the same name run at once, so that their order would be a matter of chance."""

    name: str

    def __str__(self) -> str:
        return (
            f"two steps called {self.name!r} are running at once; give each a name of its own,"
            f" such as f'{self.name}-{{page}}'"
        )


class NotAllowed(UsageError):
    """The caller's API key does not allow it."""


@dataclass(eq=False)
class CursorLost(UsageError):
    """A cursor names an event that a restore, or a power loss, has undone.

    ``read_from`` is the cursor of the last event that is left; None: the beginning.
    """

    read_from: str | None = None

    def __str__(self) -> str:
        where = f"the cursor {self.read_from}" if self.read_from else "the beginning"
        return (
            "the events at this cursor do not exist any more: the store was restored from a backup,"
            f" or lost its last events in a power loss; read again from {where}"
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a document, and its path, such as ``tasks[3].dependsOn[1]``."""

    path: str
    message: str


class InvalidJob(UsageError):
    """A submitted job is not valid; every problem is listed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        lines = [
            f"{problem.path}: {problem.message}" if problem.path else problem.message
            for problem in self.problems
        ]
        return "the request is not valid, and nothing was stored:\n  " + "\n  ".join(lines)


class InvalidInput(UsageError):
    """The arguments do not fit the task function; every problem is listed."""

    def __init__(self, task: str, problems: Sequence[str]) -> None:
        self.task = task
        self.problems = tuple(problems)
        super().__init__(task, self.problems)

    def __str__(self) -> str:
        return f"the input does not fit {self.task!r}: " + "; ".join(self.problems)


@dataclass(eq=False)
class NotFound(LongshoreError):
    """The requested object does not exist."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"no {self.kind} {self.name!r}"


class Conflict(LongshoreError):
    """Another process changed the object first, or its state does not allow the change."""


@dataclass(eq=False)
class VersionConflict(Conflict):
    """The row is no longer at the version that was read: read and decide again.

    ``maybe_committed`` is True if the answer of an earlier try of the same commit was lost: the
    commit may have changed the row.
    """

    row_id: str
    expected: int
    maybe_committed = False

    def __str__(self) -> str:
        return f"{self.row_id!r} is no longer at version {self.expected}"


@dataclass(eq=False)
class CommandRefused(Conflict):
    """The state of a task or job does not allow the command."""

    row_id: str
    reason: str
    until: datetime | None = None

    def __str__(self) -> str:
        return f"{self.row_id!r}: {self.reason}"


class LeaseHeld(CommandRefused):
    """Another worker's lease is still live."""


class LeaseLost(CommandRefused):
    """The lease ran out or was taken over; nothing may be reported under it."""


@dataclass(eq=False)
class AlreadyExists(Conflict):
    """An object with the same id and different content exists."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} exists already with different content"


class JobRemoved(AlreadyExists):
    """The job of this request id has ended and was removed; it does not run again."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} has ended and was removed; it does not run again"


@dataclass(eq=False)
class ReceiptExpired(Conflict):
    """The message was delivered again or deleted since it was received."""

    receipt: str

    def __str__(self) -> str:
        return "the message has been delivered again or removed since it was received"


@dataclass(eq=False)
class WorkerGone(Conflict):
    """Another process has ended the leases of this worker, which must join again."""

    worker_id: str

    def __str__(self) -> str:
        return f"the leases of worker {self.worker_id!r} were ended by another process"


@dataclass(eq=False)
class TaskFailedError(LongshoreError):
    """A task whose result was requested ended without one.

    ``task_id`` is the task that failed first; it may be a dependency of the requested task.
    ``inspect_command`` shows the details.
    """

    task_id: str
    category: str
    message: str
    inspect_command: str

    def __str__(self) -> str:
        return (
            f"task {self.task_id!r} failed ({self.category}): {self.message};"
            f" see `{self.inspect_command}`"
        )


class TaskCancelledError(TaskFailedError):
    """A task whose result was requested was cancelled; the category is ``cancelled``."""

    def __str__(self) -> str:
        return f"task {self.task_id!r} was {self.message}; see `{self.inspect_command}`"


class BackendError(LongshoreError):
    """A store, a queue or a bus failed; the cause is chained."""


class BackendUnavailable(BackendError):
    """A retry may succeed: throttled, timed out, locked, unreachable."""


class OutcomeUnknown(BackendUnavailable):
    """The write may or may not have happened: repeat it with the same change id, or read again."""


class BackendRejected(BackendError):
    """A retry does not help: denied, malformed, impossible."""


@dataclass(eq=False)
class StoreCorrupt(BackendRejected):
    """A file of the store is damaged. It is never recreated silently."""

    path: str
    detail: str

    def __str__(self) -> str:
        return (
            f"{self.path} is damaged ({self.detail}); nothing was changed. "
            f"Move the data folder aside and restore a backup with `longshore restore` "
            f"(docs/howto/back-up-and-restore.md), or recover what can be read with "
            f'`sqlite3 {self.path} ".recover"`.'
        )


@dataclass(eq=False)
class StoreTooNew(BackendRejected):
    """The file was written by a newer version of Longshore."""

    path: str
    schema: int
    supported: int
    copy: str | None = None  # from before the upgrade

    def __str__(self) -> str:
        copy = f" A copy from before it was upgraded is {self.copy}." if self.copy else ""
        return (
            f"{self.path} has schema {self.schema}, and this version of Longshore supports up to "
            f"{self.supported}; nothing was changed. Upgrade Longshore, or use another data folder."
            f"{copy}"
        )


@dataclass(eq=False)
class StoreInUse(BackendRejected):
    """The file must be upgraded, and other processes have it open."""

    path: str
    schema: int
    supported: int
    processes: Sequence[str]  # process ids, with the names of the programs

    def __str__(self) -> str:
        return (
            f"{self.path} must be upgraded from schema {self.schema} to {self.supported}, and "
            f"other processes have it open: {', '.join(self.processes)}; nothing was changed. "
            f"Stop them, and run this command again."
        )


@dataclass(eq=False)
class NotDeployed(BackendRejected):
    """The queue does not exist on AWS: it is not deployed in this stage."""

    name: str

    def __str__(self) -> str:
        return (
            f"there is no SQS queue {self.name!r}: this queue is not deployed in this stage. "
            f"Deploy it with `longshore aws deploy`, or correct its name; `longshore doctor` shows "
            f"the deployed queues."
        )


@dataclass(eq=False)
class AlertFailed(BackendError):
    """An alert was not accepted; ``retry_after`` is the delay that the channel requested.

    The reason never contains an address or a response: either may contain a secret.
    """

    channel: str
    reason: str
    retry_after: timedelta | None = None

    def __str__(self) -> str:
        return f"{self.channel} did not accept the alert: {self.reason}"


class Retry(Exception):
    """Raised by a task: the attempt failed; retry, after ``after`` at the earliest."""

    longshore_decision: ClassVar[Literal["retry"]] = "retry"

    def __init__(self, message: str = "", after: timedelta | float | None = None) -> None:
        self.message = message
        self.after = timedelta(seconds=after) if isinstance(after, int | float) else after
        super().__init__(message, after)

    def __str__(self) -> str:
        return self.message or "the task requested a retry"


@dataclass(eq=False)
class Fail(Exception):
    """Raised by a task: the task failed; do not retry."""

    longshore_decision: ClassVar[Literal["fail"]] = "fail"

    message: str = ""
    category: str | None = None

    def __str__(self) -> str:
        return self.message or "the task requested no retry"
