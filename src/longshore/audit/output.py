"""Invariants 3 and 8, for output: complete by attempt and sequence, and of attempts that were."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from longshore.audit import vocabulary as v
from longshore.audit.job_snapshot import JobSnapshot
from longshore.audit.store_snapshot import OutputRecord
from longshore.audit.task_history import TaskHistory
from longshore.audit.violation import Violation


def check_output(snapshot: JobSnapshot) -> Iterator[Violation]:
    """All of it, for the tasks of one job."""
    for task_id in snapshot.output_by_task:
        if task_id not in snapshot.histories:
            yield Violation(8, task_id, "it has output and no row")
    for task in snapshot.tasks:
        history = snapshot.histories[task.id]
        ends: dict[int, int] = {}  # by attempt
        entries = snapshot.output_by_task.get(task.id)
        if entries:
            yield from _check_coverage(task.id, history, sorted(entries, key=_POSITION), ends)
        for attempt, outcome in history.outcomes.items():
            if outcome.by_holder and ends.get(attempt) != outcome.last_output:
                text = (
                    f"the output of attempt {attempt} ends at {ends.get(attempt) or 'none'},"
                    f" and its outcome says {outcome.last_output or 'none'}"
                )
                yield Violation(8, task.id, text)


_POSITION = attrgetter("attempt", "sequence")


def _check_coverage(
    task_id: str, history: TaskHistory, entries: list[OutputRecord], ends: dict[int, int]
) -> Iterator[Violation]:
    """Each sequence of an attempt is stored once, or covered by a marker."""
    for entry in entries:
        attempt, first = entry.attempt, entry.sequence
        if attempt not in ends and not 1 <= attempt <= history.attempt:
            yield Violation(3, task_id, f"there is output of attempt {attempt}, which never began")
        reached = ends.get(attempt, 0)
        if first <= reached:
            text = f"sequence {first} of attempt {attempt} is there twice"
            yield Violation(8, task_id, text)
        elif first > reached + 1:
            text = f"sequence {reached + 1} of attempt {attempt} is missing from its output"
            yield Violation(8, task_id, text)
        last = first if entry.last is None else entry.last
        if last < first or (entry.last is not None) != (entry.stream == v.LOST):
            text = f"sequence {first} of attempt {attempt} is no marker and no piece of output"
            yield Violation(8, task_id, text)
        ends[attempt] = max(reached, last)
