"""Health: how a task that is running now looks from the outside.

A worker that dies says nothing, so the only signs are the age of the run and
the age of its last event. A run that is too long outranks silence: a task that
beats its heart for ever is stuck too, and more heartbeats must not hide it.
Waiting and reviewed tasks are never asked about: they are not stuck.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class Health(StrEnum):
    """What the scheduled check says about one running task."""

    HEALTHY = "healthy"
    WARNING = "warning"
    CRITICAL = "critical"
    OVERTIME = "overtime"


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
