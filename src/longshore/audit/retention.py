"""Invariant 15: retention removes whole jobs."""

from __future__ import annotations

from collections.abc import Iterator

from longshore.audit.job_snapshot import JobSnapshot
from longshore.audit.violation import Violation


def check_removed(snapshot: JobSnapshot) -> Iterator[Violation]:
    """Nothing is left of a removed job, and no job is without its row."""
    parts = {
        "its row": snapshot.jobs,
        "rows of its tasks": snapshot.tasks,
        "events": snapshot.events or snapshot.events_by_task,
        "output": snapshot.output_by_task,
    }
    left = ", ".join(name for name, records in parts.items() if records)
    if snapshot.id in snapshot.store.removed and left:
        yield Violation(15, snapshot.id, f"it was removed, but there are still {left}")
    elif snapshot.tasks and not snapshot.jobs:
        yield Violation(15, snapshot.id, f"its row is gone, but there are still {left}")
