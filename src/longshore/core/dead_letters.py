"""Dead letters: failed tasks, and messages that were received too often.

A failed *task* stays in its row until an operator resumes it. A *message* that was received too
often is moved to the queue's dead-letter store. It usually makes its task fail and is deleted; a
message that leads to no task stays for an operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.core.queues import MalformedMessage, QueueMessage
from longshore.core.tasks import commands as c
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState

DLQ_SOURCE = "dlq"
"""The ``source`` of a Task Failed event that a dead message caused."""

_MESSAGE_PREFIX = "msg-"


@dataclass(frozen=True, slots=True)
class KeepMessage:
    """Keep the message for an operator: it leads to no task."""

    reason: str


Disposition = KeepMessage | tasks.TaskChange | None
"""What to do with a dead message: keep it, fail its task, or drop it if None."""


def disposition_of(
    message: QueueMessage, row: TaskRow | None, *, now: datetime, margin: timedelta, change_id: str
) -> Disposition:
    """Returns what to do with a dead message; it is dropped if the row of its task says everything.

    A task that has ended or is being processed does not change. Nor does a task that was enqueued
    after this message was sent: it has another message, perhaps in another round.
    """
    task_id = message.task_id
    if isinstance(task_id, MalformedMessage):
        return KeepMessage(task_id.reason)
    if row is None:
        return KeepMessage(f"there is no task {task_id!r}")
    if row.enqueued_at is not None and row.enqueued_at > message.sent_at + margin:
        return None
    failure = Failure(category=ErrorCategory.CRASH, message=_too_many_receives(message))
    command = c.FailTask(failure=failure, source=DLQ_SOURCE, margin=margin)
    change = tasks.apply(row, command, now=now, change_id=change_id)
    return None if isinstance(change, Refusal) else change


def _too_many_receives(message: QueueMessage) -> str:
    return f"its message was received {message.receive_count} times without an outcome"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A failed task, or a message that leads to no task."""

    id: str  # the task's global id, or ``msg-`` and the message's id
    at: datetime  # when the task failed, or the message was sent
    queue: str
    reason: str
    category: ErrorCategory | None = None
    row: TaskRow | None = None  # None: the message names no task
    message: QueueMessage | None = None  # None: a task

    @property
    def replayable(self) -> bool:
        """Whether it is a task, which can be resumed."""
        return self.message is None

    @property
    def kind(self) -> str:
        """The kind by which dead letters are counted: the failure's category, or ``message``."""
        category = self.category.value if self.category else "unknown"
        return category if self.replayable else "message"


def dead_letter_of_task(row: TaskRow) -> DeadLetter | None:
    """Returns the task as a dead letter; None if it has not failed."""
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
    message: QueueMessage, row: TaskRow | None, *, now: datetime, margin: timedelta
) -> DeadLetter | None:
    """Returns the message as a dead letter; None if it is to be deleted."""
    match disposition_of(message, row, now=now, margin=margin, change_id=""):
        case None:
            return None
        case KeepMessage(reason):
            pass
        case _:
            reason = f"{_too_many_receives(message)}; the sweeper will fail its task shortly"
    return DeadLetter(
        id=f"{_MESSAGE_PREFIX}{message.id}",
        at=message.sent_at,
        queue=message.queue,
        reason=reason,
        row=row,
        message=message,
    )


def message_id_of(letter_id: str) -> str | None:
    """Returns the message id of a dead letter's id; None if the dead letter is a task."""
    return (
        letter_id.removeprefix(_MESSAGE_PREFIX) if letter_id.startswith(_MESSAGE_PREFIX) else None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Selects dead letters; None matches everything."""

    queue: str | None = None
    definition: str | None = None
    category: ErrorCategory | None = None
    job_id: str | None = None
    since: datetime | None = None
    include_orphans: bool = True  # include messages without a task, which belong to no tenant

    def matches(self, letter: DeadLetter) -> bool:
        """Whether the letter matches; a message without a task matches no job or definition."""
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
