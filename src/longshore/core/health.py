"""Health of running tasks, derived from their rows.

A worker that dies reports nothing, so the only signs are the age of the attempt and the age of its
last event. An attempt that is too long outranks silence: a task that sends heartbeats for ever is
stuck too. Tasks that wait or are in review have no health: they are not stuck.
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
from longshore.core.records import value
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.core.text.durations import format_duration

_ZERO = timedelta(0)


class Health(StrEnum):
    """The health of one running task."""

    HEALTHY = "healthy"
    WARNING = "warning"
    CRITICAL = "critical"
    OVERTIME = "overtime"

    @property
    def urgent(self) -> bool:
        """Whether an operator should look now."""
        return self in (Health.CRITICAL, Health.OVERTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """How long an attempt, and a silence within it, may last."""

    longest_run: timedelta = timedelta(hours=1)
    healthy_within: timedelta = timedelta(minutes=5)
    warning_within: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        _check_times(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthThresholds:
    """A definition's own thresholds; None: the default applies."""

    longest_run: timedelta | None = None
    healthy_within: timedelta | None = None
    warning_within: timedelta | None = None

    def __post_init__(self) -> None:
        _check_times(self)

    def applied_to(self, default: HealthPolicy) -> HealthPolicy:
        """Returns the policy for tasks of this definition."""
        if self.warning_within is None:
            # A longer first threshold must not exceed the default of the second.
            healthy = self.healthy_within or default.healthy_within
            warning = max(healthy, default.warning_within)
        else:
            warning = self.warning_within
            healthy = self.healthy_within or min(warning, default.healthy_within)
        return HealthPolicy(
            longest_run=self.longest_run or default.longest_run,
            healthy_within=healthy,
            warning_within=warning,
        )


def _check_times(times: HealthPolicy | HealthThresholds) -> None:
    for name in ("longest_run", "healthy_within", "warning_within"):
        if (value := getattr(times, name)) is not None and value <= _ZERO:
            raise ValueError(f"{name} must be longer than zero, not {value!r}")
    healthy, warning = times.healthy_within, times.warning_within
    if healthy is not None and warning is not None and warning < healthy:
        raise ValueError(
            f"warning_within must be no shorter than healthy_within ({format_duration(healthy)}),"
            f" not {format_duration(warning)}"
        )


def health_of(
    started_at: datetime, last_seen: datetime, *, now: datetime, policy: HealthPolicy
) -> Health:
    """Returns the task's health at ``now``. An attempt that is too long outranks silence."""
    if now - started_at > policy.longest_run:
        return Health.OVERTIME
    # Another machine's clock may be ahead: a negative silence counts as none.
    silence = now - last_seen
    if silence <= policy.healthy_within:
        return Health.HEALTHY
    return Health.WARNING if silence <= policy.warning_within else Health.CRITICAL


@value
class CheckedTask(TaskHealth):
    """One running task in a check."""

    health: Health
    attempt: int


_EVENT_TASKS = 500  # a task has at most about 400 bytes, and an event 200 kB


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """All running tasks of a tenant at one moment, the worst first."""

    tenant: str
    at: datetime
    tasks: tuple[CheckedTask, ...]

    @property
    def summary(self) -> HealthSummary:
        """Returns the number of tasks by health."""
        counts = Counter(task.health for task in self.tasks)
        by_health = {health.value: counts[health] for health in Health}
        return HealthSummary(total_processing=len(self.tasks), **by_health)

    def event(self) -> TaskHealthCheck:
        """Returns the report as an event."""
        return TaskHealthCheck(summary=self.summary, tasks=self.tasks)

    def events(self) -> list[TaskHealthCheck]:
        """Returns the report as events, each small enough for every store and bus."""
        starts = range(0, len(self.tasks), _EVENT_TASKS)
        if len(starts) <= 1:
            return [self.event()]
        return [
            TaskHealthCheck(
                summary=self.summary,
                tasks=self.tasks[start : start + _EVENT_TASKS],
                part=number,
                parts=len(starts),
            )
            for number, start in enumerate(starts, start=1)
        ]


def check_task(row: TaskRow, *, now: datetime, policy: HealthPolicy) -> CheckedTask | None:
    """Returns the task's health at ``now``; None if it is not processing."""
    if row.state is not TaskState.PROCESSING or row.lease is None or row.started_at is None:
        return None
    last_seen = row.last_event_at or row.started_at
    return CheckedTask(
        task_id=row.id,
        attempt=row.attempt,
        health=health_of(row.started_at, last_seen, now=now, policy=policy),
        elapsed=max(now - row.started_at, _ZERO),
        time_since_last_event=max(now - last_seen, _ZERO),
        # A processing task emits only these events, so its history need not be read.
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
    """Returns the report of a tenant; rows of other tenants and duplicates are ignored."""
    mine = {row.id: row for row in rows if row.spec.tenant == tenant}
    checks = [check_task(row, now=now, policy=policy_of(row)) for row in mine.values()]
    tasks = sorted((task for task in checks if task is not None), key=_worst_first)
    return HealthReport(tenant=tenant, at=now, tasks=tuple(tasks))


_ORDER = (Health.OVERTIME, Health.CRITICAL, Health.WARNING, Health.HEALTHY)


def _worst_first(task: CheckedTask) -> tuple[int, timedelta, str]:
    return _ORDER.index(task.health), -task.elapsed, task.task_id
