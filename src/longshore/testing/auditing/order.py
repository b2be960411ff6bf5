"""Invariant 6: a task begins only after all its parents completed.

By the order of commits, not by times: clocks differ, and the order in which things were stored is
what everybody acted on. A store without such an order gives times, and how far clocks may differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from longshore.testing.auditing import vocabulary as v
from longshore.testing.auditing.cases import Case
from longshore.testing.auditing.evidence import Task
from longshore.testing.auditing.violation import Violation


def order(case: Case) -> Iterator[Violation]:
    """All of it, for the tasks of one job."""
    job = case.job
    for task in case.tasks:
        if job is not None and job.keys is not None and task.number < len(job.keys):
            drawn = {job.keys[parent] for parent in job.parents[task.number]}
            if drawn != set(task.parents):
                yield Violation(6, task.id, "its row and its job's graph name different parents")
        yield from _after_its_parents(case, task)
        yield from _awaits_the_right_ones(case, task)


def _after_its_parents(case: Case, task: Task) -> Iterator[Violation]:
    slack = case.evidence.unordered_within
    for key in task.parents:
        parent = case.story_of(key)
        completed_at = parent.completed_at if parent else None
        for begun in case.stories[task.id].beginnings:
            if completed_at is None or completed_at >= begun.position + slack:
                text = f"{begun.type} (event {begun.sequence}) came before {key!r} had completed"
                yield Violation(6, task.id, text)
                break


def _awaits_the_right_ones(case: Case, task: Task) -> Iterator[Violation]:
    if task.awaits and task.state not in (v.WAITING, v.CANCELLED):
        yield Violation(6, task.id, f"it is {task.state} and still awaits parents")
    awaited = 0
    for key in task.parents:
        parent = case.by_key.get(key)
        if parent is None:
            continue  # told of as a task that is gone
        awaited |= 1 << parent.number
        completed = case.stories[parent.id].completed_at is not None
        # One that was cancelled while it waited may be resumed.
        waits = task.state in (v.WAITING, v.CANCELLED)
        if waits and not (completed or task.awaits >> parent.number & 1):
            yield Violation(6, task.id, f"it waits no more for {key!r}, which has not completed")
    if task.awaits & ~awaited:
        yield Violation(6, task.id, "it awaits tasks that are not its parents")
