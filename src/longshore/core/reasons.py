"""The answer to the question why something waits, as values; and what it is told from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from longshore.core.ids import task_id_of
from longshore.core.lease import LeasePolicy
from longshore.core.rows import JobRow, TaskRow
from longshore.core.valuing import value


class Code(StrEnum):
    """What kind of reason it is, for programs."""

    WAITING = "waiting"
    BEHIND_FAILURE = "behind_failure"
    LEFT_OUT = "left_out"
    MOVING_ON = "moving_on"
    BEING_CREATED = "being_created"
    DELAYED = "delayed"
    BACKING_OFF = "backing_off"
    DUE = "due"
    QUEUE_PAUSED = "queue_paused"
    QUEUE_HELD = "queue_held"
    NO_WORKER = "no_worker"
    RUNNING = "running"
    WORKER_SILENT = "worker_silent"
    WORKER_GONE = "worker_gone"
    CANCELLING = "cancelling"
    IN_REVIEW = "in_review"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@value
class Reason:
    """One sentence of the answer."""

    code: Code
    text: str
    since: datetime | None = None
    until: datetime | None = None  # when this will change by itself
    task_id: str | None = None  # None: it is about the job, or about where its tasks are run
    remedy_command: str | None = None


class Paused(Protocol):
    """Who has stopped a queue, and why."""

    @property
    def name(self) -> str: ...
    @property
    def by(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def at(self) -> datetime: ...
    @property
    def until(self) -> datetime | None:
        """When it ends by itself; None: when somebody resumes the queue."""
        ...


@value
class Picture:
    """What was read to explain something with."""

    now: datetime
    job: JobRow
    lease: LeasePolicy
    rows: Mapping[int, TaskRow]  # by number: those that exist of the ones that are needed
    keys: Mapping[int, str]
    present: Mapping[str, Sequence[str]]  # workers on this machine, each with its queues
    gone: Sequence[str] = ()  # those of this machine whose process has ended
    paused: Sequence[Paused]

    def key(self, number: int) -> str:
        """A task's name as it stands in a sentence."""
        return repr(self.keys[number])

    def task_id(self, number: int) -> str:
        """A task's id, whether its row is there or not."""
        return task_id_of(self.job.id, self.keys[number])
