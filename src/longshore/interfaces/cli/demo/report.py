"""What the recorded events prove about the demo: nothing here trusts the one who told the story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.core.events import types as e
from longshore.core.events.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """What came of the job, counted from its events."""

    total: int
    completed: int
    lost: int  # accepted and not completed
    completed_twice: int  # completed more than once
    gaps: int  # numbers missing or doubled in the history of any entity
    recovery: timedelta | None  # from the kill to the next attempt; None: there was none

    @property
    def good(self) -> bool:
        """Whether everything that was promised was kept."""
        return not (self.lost or self.completed_twice or self.gaps) and self.recovery is not None


def report_of(
    events: Sequence[Event], *, total: int, killed_worker_id: str, killed_at: datetime | None
) -> DemoReport:
    """Count the ends of tasks, and find the attempt that took over after the kill.

    Args:
        killed_worker_id: Id of the worker that was killed.
    """
    ends = Counter(event.entity_id for event in events if isinstance(event.body, e.TaskCompleted))
    return DemoReport(
        total=total,
        completed=len(ends),
        lost=total - len(ends),
        completed_twice=sum(1 for count in ends.values() if count > 1),
        gaps=_gaps(events),
        recovery=None if killed_at is None else _recovery(events, killed_worker_id, killed_at),
    )


def _gaps(events: Sequence[Event]) -> int:
    sequences: dict[str, list[int]] = {}
    for event in events:
        sequences.setdefault(event.entity, []).append(event.sequence)
    return sum(
        1
        for found in sequences.values()
        for wanted, sequence in enumerate(found, start=1)
        if wanted != sequence
    )


def _recovery(
    events: Sequence[Event], killed_worker_id: str, killed_at: datetime
) -> timedelta | None:
    held = {
        event.entity_id
        for event in events
        if isinstance(event.body, e.TaskProcessingStarted)
        and event.body.worker_id == killed_worker_id
    }
    taken_over = [
        event.at
        for event in events
        if isinstance(event.body, e.TaskProcessingStarted)
        and event.body.worker_id != killed_worker_id
        and event.entity_id in held
        and event.at >= killed_at
    ]
    return min(taken_over) - killed_at if taken_over else None
