"""The states of tasks and jobs, and the three priorities."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class TaskState(StrEnum):
    """The state of a task."""

    WAITING = "waiting"
    PENDING = "pending"
    PROCESSING = "processing"
    IN_REVIEW = "in_review"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether the task has ended; only an operator can resume it."""
        return self in _TERMINAL


_TERMINAL = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED})


class JobState(StrEnum):
    """The state of a job."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether no task of the job runs or will run by itself."""
        return self is not JobState.RUNNING


class Priority(IntEnum):
    """The lane of a task in its queue; lower numbers come first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2
    __hash__ = int.__hash__  # an enum's own takes many times as long
