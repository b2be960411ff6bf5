"""The states of tasks and jobs, and the three priorities."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class TaskState(StrEnum):
    """What a task's row says now."""

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
        """Whether only an operator can move the task on from here."""
        return self in _TERMINAL


_TERMINAL = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED})


class JobState(StrEnum):
    """What a job's row adds up to."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether nothing of the job runs or will run by itself."""
        return self is not JobState.RUNNING


class Priority(IntEnum):
    """Which of a queue's three lanes a task travels in; the lower number goes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2
