"""Health of what runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from longshore.interfaces.rest.schemas.base import Moment, Shape, TaskStatus

Health = Literal["healthy", "warning", "critical", "overtime"]


class TaskHealthDocument(Shape):
    """How a task looks now; what only a running one has is null."""

    request_id: str
    status: TaskStatus
    health: Health | None
    elapsed_ms: int | None = Field(description="Since the attempt began.")
    silent_ms: int | None = Field(description="Since its last event.")
    last_event_type: str | None
    worker_id: str | None


class HealthCounts(Shape):
    """How many running tasks are in which health."""

    total_processing: int
    healthy: int
    warning: int
    critical: int
    overtime: int


class CheckedTaskDocument(Shape):
    """A running task as a check found it."""

    request_id: str
    health: Health
    elapsed: int = Field(description="Milliseconds since the attempt began.")
    time_since_last_event: int = Field(description="Milliseconds.")
    last_event_type: str
    worker_id: str


class HealthCheckDocument(Shape):
    """What a check found: each running task once, the worst first."""

    checked_at: Moment
    summary: HealthCounts
    tasks: list[CheckedTaskDocument]
