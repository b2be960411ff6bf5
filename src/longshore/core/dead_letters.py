"""Dead letters: what nobody will look at again by itself.

They are of two kinds. A *task* that failed stays in its row until somebody gives it another round.
A *message* that was received too often stays in the queue's own dead-letter store; as a rule it
makes its task fail and goes, and only one that leads to no task stays for a person to look at.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.core.queues import MalformedMessage, parse_message
from longshore.core.tasks import commands as c
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState

DLQ_SOURCE = "dlq"
"""What the events of a task that a dead message made fail say of who ended it."""

_MESSAGE_PREFIX = "msg-"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A message as the queue's dead-letter store has it."""

    id: str
    queue: str
    body: str
    receive_count: int
    sent_at: datetime

    @property
    def task_id(self) -> str | MalformedMessage:
        """The task that it asks to look at, or why it names none."""
        return parse_message(self.body)


@dataclass(frozen=True, slots=True)
class KeepMessage:
    """The message leads nowhere: it is kept until a person has looked at it."""

    reason: str


@dataclass(frozen=True, slots=True)
class DropMessage:
    """Nothing is lost with the message: what its row says is all there is to say."""


Disposition = KeepMessage | DropMessage | tasks.TaskChange


def disposition_of(
    message: DeadMessage, row: TaskRow | None, *, now: datetime, margin: timedelta, change_id: str
) -> Disposition:
    """What becomes of a dead message whose task has this row: for the third, the task's failure.

    A task that is finished or in good hands is left alone. So is one that was rung for after this
    message was sent: another message speaks for it, and perhaps in another round.
    """
    named = message.task_id
    if isinstance(named, MalformedMessage):
        return KeepMessage(named.reason)
    if row is None:
        return KeepMessage(f"there is no task {named!r}")
    if row.enqueued_at is not None and row.enqueued_at > message.sent_at + margin:
        return DropMessage()
    failure = Failure(category=ErrorCategory.CRASH, message=_too_many_receives(message))
    command = c.FailTask(failure=failure, source=DLQ_SOURCE, margin=margin)
    change = tasks.apply(row, command, now=now, change_id=change_id)
    return DropMessage() if isinstance(change, Refusal) else change


def _too_many_receives(message: DeadMessage) -> str:
    return f"its message was received {message.receive_count} times, and nobody said how it ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A task that failed, or a message that leads to nobody."""

    id: str  # the task's global id, or ``msg-`` and the message's own
    at: datetime  # when the task failed, or the message was sent
    queue: str
    reason: str
    category: ErrorCategory | None = None
    row: TaskRow | None = None  # None: the message names no task
    message: DeadMessage | None = None  # None: a task

    @property
    def replayable(self) -> bool:
        """Whether it is a task, which can have another round."""
        return self.message is None

    @property
    def kind(self) -> str:
        """By which it is counted: the category of its failure, or that it is a message."""
        known = self.category.value if self.category else "unknown"
        return known if self.replayable else "message"


def dead_letter_of_task(row: TaskRow) -> DeadLetter | None:
    """The task as a dead letter; None if it is none."""
    if row.state is not TaskState.FAILED:
        return None
    return DeadLetter(
        id=row.id,
        at=row.finished_at or row.updated_at,
        queue=row.spec.queue,
        reason=row.failure.message if row.failure else "failed",
        category=row.failure.category if row.failure else None,
        row=row,
    )


def dead_letter_of_message(
    message: DeadMessage, row: TaskRow | None, *, now: datetime, margin: timedelta
) -> DeadLetter | None:
    """The message as a dead letter; None if it is a mere leftover."""
    fate = disposition_of(message, row, now=now, margin=margin, change_id="")
    match fate:
        case DropMessage():
            return None
        case KeepMessage(reason):
            shown = reason
        case _:
            shown = f"{_too_many_receives(message)}; the next sweep of a worker ends its task"
    return DeadLetter(
        id=f"{_MESSAGE_PREFIX}{message.id}",
        at=message.sent_at,
        queue=message.queue,
        reason=shown,
        row=row,
        message=message,
    )


def message_id_of(letter_id: str) -> str | None:
    """The message that a dead letter's id means; None: it means a task."""
    return (
        letter_id.removeprefix(_MESSAGE_PREFIX) if letter_id.startswith(_MESSAGE_PREFIX) else None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Which dead letters are meant; what is None does not matter."""

    queue: str | None = None
    definition: str | None = None
    category: ErrorCategory | None = None
    job_id: str | None = None
    since: datetime | None = None  # not those from before
    include_orphans: bool = True  # messages that lead to no task too, which are no tenant's

    def matches(self, letter: DeadLetter) -> bool:
        """Whether the letter is meant: one that says nothing of a thing asked for is not."""
        spec = letter.row.spec if letter.row else None
        return (
            (self.include_orphans or spec is not None)
            and self.queue in (None, letter.queue)
            and self.category in (None, letter.category)
            and (self.since is None or letter.at >= self.since)
            and (
                self.definition is None or (spec is not None and spec.definition == self.definition)
            )
            and (self.job_id is None or (spec is not None and spec.job_id == self.job_id))
        )
