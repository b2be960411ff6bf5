"""Health: how a task that is running now looks from the outside.

A worker that dies says nothing, so the only signs are the age of the run and
the age of its last event. A run that is too long outranks silence: a task that
beats its heart for ever is stuck too, and more heartbeats must not hide it.
Waiting and reviewed tasks are never asked about: they are not stuck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from longshore.core.events.types import (
    HealthSummary,
    TaskHealth,
    TaskHealthCheck,
    TaskHeartbeat,
    TaskProcessingStarted,
)
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState

_NOTHING = timedelta(0)


class Health(StrEnum):
    """What the scheduled check says about one running task."""

    HEALTHY = "healthy"
    WARNING = "warning"
    CRITICAL = "critical"
    OVERTIME = "overtime"

    @property
    def urgent(self) -> bool:
        """Whether a person should look now."""
        return self in (Health.CRITICAL, Health.OVERTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """How long a run, and a silence within it, may last."""

    longest_run: timedelta = timedelta(hours=1)
    healthy_within: timedelta = timedelta(minutes=5)
    warning_within: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        for name in ("longest_run", "healthy_within"):
            if (value := getattr(self, name)) <= timedelta(0):
                message = f"{name} must be longer than zero, not {value!r}"
                raise ValueError(message)
        if self.warning_within < self.healthy_within:
            message = (
                f"warning_within must be no shorter than healthy_within "
                f"({self.healthy_within!r}), not {self.warning_within!r}"
            )
            raise ValueError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """What a definition says of its own tasks; None: as it is for all others."""

    longest_run: timedelta | None = None
    healthy_within: timedelta | None = None
    warning_within: timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("longest_run", "healthy_within", "warning_within"):
            if (value := getattr(self, name)) is not None and value <= _NOTHING:
                message = f"{name} must be longer than zero, not {value!r}"
                raise ValueError(message)
        if (
            self.healthy_within is not None
            and self.warning_within is not None
            and self.warning_within < self.healthy_within
        ):
            message = "warning_within must be no shorter than healthy_within"
            raise ValueError(message)

    def within(self, usual: HealthPolicy) -> HealthPolicy:
        """The policy for tasks of this definition."""
        if self.warning_within is None:
            # More patience at first must not be cut short by what holds for others.
            healthy = self.healthy_within or usual.healthy_within
            warning = max(healthy, usual.warning_within)
        else:
            warning = self.warning_within
            healthy = self.healthy_within or min(warning, usual.healthy_within)
        return HealthPolicy(
            longest_run=self.longest_run or usual.longest_run,
            healthy_within=healthy,
            warning_within=warning,
        )


def health_of(
    started_at: datetime, last_seen: datetime, *, now: datetime, policy: HealthPolicy
) -> Health:
    """The task's health at ``now``. A run that is too long outranks silence."""
    if now - started_at > policy.longest_run:
        return Health.OVERTIME
    # Another machine's clock may be ahead of ours: a negative silence is no silence.
    silence = now - last_seen
    if silence <= policy.healthy_within:
        return Health.HEALTHY
    return Health.WARNING if silence <= policy.warning_within else Health.CRITICAL


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTask:
    """One running task as a check found it."""

    task_id: str
    attempt: int
    health: Health
    elapsed: timedelta  # of the latest attempt
    silence: timedelta  # since the task's last event
    last_event_type: str
    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """Everything that a tenant has running at one moment, each task once, the worst first."""

    tenant: str
    at: datetime
    tasks: tuple[CheckedTask, ...]

    @property
    def summary(self) -> HealthSummary:
        """How many tasks are in which health."""
        counts = Counter(task.health for task in self.tasks)
        return HealthSummary(
            total_processing=len(self.tasks),
            healthy=counts[Health.HEALTHY],
            warning=counts[Health.WARNING],
            critical=counts[Health.CRITICAL],
            overtime=counts[Health.OVERTIME],
        )

    def event(self) -> TaskHealthCheck:
        """The report as history keeps it."""
        tasks = tuple(
            TaskHealth(
                task_id=task.task_id,
                health=task.health.value,
                elapsed=task.elapsed,
                time_since_last_event=task.silence,
                last_event_type=task.last_event_type,
                worker_id=task.worker_id,
            )
            for task in self.tasks
        )
        return TaskHealthCheck(summary=self.summary, tasks=tasks)


def checked(row: TaskRow, *, now: datetime, policy: HealthPolicy) -> CheckedTask | None:
    """How the task looks at ``now``; None if it is not processing."""
    if row.state is not TaskState.PROCESSING or row.lease is None or row.started_at is None:
        return None
    last_seen = row.last_event_at or row.started_at
    return CheckedTask(
        task_id=row.id,
        attempt=row.attempt,
        health=health_of(row.started_at, last_seen, now=now, policy=policy),
        elapsed=max(now - row.started_at, _NOTHING),
        silence=max(now - last_seen, _NOTHING),
        # A task that is processing tells of nothing else, so nobody has to read its history.
        last_event_type=(TaskHeartbeat if row.lease.heartbeats else TaskProcessingStarted).TYPE,
        worker_id=row.lease.worker_id,
    )


def report_of(
    tenant: str,
    rows: Iterable[TaskRow],
    *,
    now: datetime,
    policy_of: Callable[[TaskRow], HealthPolicy],
) -> HealthReport:
    """What is running of these rows; those of other tenants, and a row's second copy, are not."""
    mine = {row.id: row for row in rows if row.spec.tenant == tenant}
    found = [checked(row, now=now, policy=policy_of(row)) for row in mine.values()]
    tasks = sorted((task for task in found if task is not None), key=_worst_first)
    return HealthReport(tenant=tenant, at=now, tasks=tuple(tasks))


_ORDER = (Health.OVERTIME, Health.CRITICAL, Health.WARNING, Health.HEALTHY)


def _worst_first(task: CheckedTask) -> tuple[int, timedelta, str]:
    return _ORDER.index(task.health), -task.elapsed, task.task_id
