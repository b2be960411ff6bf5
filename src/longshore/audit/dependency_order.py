"""Invariant 6: a task begins only after all its parents completed.

By the order of commits, not by times: clocks differ, and the order in which things were stored is
what everybody acted on. A store without such an order gives times, and how far clocks may differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from longshore.audit import vocabulary as v
from longshore.audit.job_snapshot import JobSnapshot
from longshore.audit.store_snapshot import TaskRecord
from longshore.audit.violation import Violation


def check_order(snapshot: JobSnapshot) -> Iterator[Violation]:
    """All of it, for the tasks of one job."""
    job = snapshot.job
    for task in snapshot.tasks:
        if job is not None and job.keys is not None and task.number < len(job.keys):
            drawn = {job.keys[parent] for parent in job.parents[task.number]}
            if drawn != set(task.parents):
                yield Violation(6, task.id, "its row and its job's graph name different parents")
        yield from _check_starts(snapshot, task)
        yield from _check_awaits(snapshot, task)


def _check_starts(snapshot: JobSnapshot, task: TaskRecord) -> Iterator[Violation]:
    slack = snapshot.store.time_slack
    for key in task.parents:
        parent = snapshot.history_of(key)
        completed_at = parent.completed_at if parent else None
        for begun in snapshot.histories[task.id].starts:
            if completed_at is None or completed_at >= begun.position + slack:
                text = f"{begun.type} (event {begun.sequence}) came before {key!r} had completed"
                yield Violation(6, task.id, text)
                break


def _check_awaits(snapshot: JobSnapshot, task: TaskRecord) -> Iterator[Violation]:
    if task.awaits and task.state not in (v.WAITING, v.CANCELLED):
        yield Violation(6, task.id, f"it is {task.state} and still awaits parents")
    awaited = 0
    for key in task.parents:
        parent = snapshot.by_key.get(key)
        if parent is None:
            continue  # reported as a missing task
        awaited |= 1 << parent.number
        completed = snapshot.histories[parent.id].completed_at is not None
        # One that was cancelled while it waited may be resumed.
        waits = task.state in (v.WAITING, v.CANCELLED)
        if waits and not (completed or task.awaits >> parent.number & 1):
            yield Violation(6, task.id, f"it waits no more for {key!r}, which has not completed")
    if task.awaits & ~awaited:
        yield Violation(6, task.id, "it awaits tasks that are not its parents")
