"""What a client sees of jobs, tasks and output: plain values that outlive the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.services.documents import OutputChunkDocument, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """A task as it was when somebody looked."""

    id: str
    key: str
    state: TaskState
    attempt: int  # 0: none yet
    max_attempts: int
    error: str | None  # of the latest attempt that failed
    category: str | None

    @classmethod
    def from_row(cls, row: TaskRow) -> TaskStatus:
        """What a row says."""
        return cls(
            id=row.id,
            key=row.spec.key,
            state=row.state,
            attempt=row.attempt,
            max_attempts=row.spec.retry.max_attempts,
            error=row.failure.message if row.failure else None,
            category=row.failure.category.value if row.failure else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job as it was when somebody looked, with each of its tasks by key."""

    id: str
    name: str | None
    state: JobState
    round: int
    total: int
    completed: int
    failed: int
    cancelled: int
    blocked: int  # behind a task that failed or was cancelled
    created_at: datetime
    finished_at: datetime | None
    tasks: Mapping[str, TaskStatus]

    @classmethod
    def from_rows(cls, row: JobRow, tasks: list[TaskRow]) -> JobStatus:
        """What the rows say."""
        return cls(
            id=row.id,
            name=row.spec.name,
            state=row.state,
            round=row.round,
            total=row.total,
            completed=len(row.completed),
            failed=len(row.failed),
            cancelled=len(row.cancelled),
            blocked=len(row.blocked),
            created_at=row.spec.created_at,
            finished_at=row.finished_at,
            tasks={task.spec.key: TaskStatus.from_row(task) for task in tasks},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutputChunk:
    """A piece of what a task printed, as it came: it may end in the middle of a line."""

    key: str
    attempt: int
    stream: Stream
    data: bytes
    at: datetime

    @classmethod
    def from_document(cls, document: OutputChunkDocument) -> JobOutputChunk:
        """The chunk of a document."""
        return cls(
            key=document.task_id,
            attempt=document.attempt,
            stream=document.stream,
            data=document.data,
            at=datetime.fromisoformat(document.at),
        )

    @property
    def text(self) -> str:
        """The piece as text; what is no text is marked."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """What a task has come to; ``value`` is its result as JSON, once it has completed."""

    status: TaskStatus
    cancelled_by: str | None = None
    value: Any = None
