"""Invariants 2 and 11, as far as a row shows them: one lease and its fence; limits.

The history of both is in ``task_history``.
"""

from __future__ import annotations

from collections.abc import Iterator

from longshore.audit import vocabulary as v
from longshore.audit.job_snapshot import JobSnapshot
from longshore.audit.violation import Violation


def check_leases(snapshot: JobSnapshot) -> Iterator[Violation]:
    """A lease is held while a task is processing and only then, under the highest fence."""
    epoch = snapshot.store.epoch
    for task in snapshot.tasks:
        if task.lease is not None and task.state != v.PROCESSING:
            text = f"{task.lease.worker_id!r} holds its lease, and it is {task.state}"
            yield Violation(2, task.id, text)
        if task.lease is not None and task.lease.fence != task.fence:
            text = f"its lease has fence {task.lease.fence}, and {task.fence} was given out"
            yield Violation(2, task.id, text)
        if epoch is not None and task.fence >> v.EPOCH_BITS > epoch:
            text = f"fence {task.fence} is of an epoch that the store has not seen ({epoch})"
            yield Violation(2, task.id, text)


def check_limits(snapshot: JobSnapshot) -> Iterator[Violation]:
    """Attempts, revisions, tasks of a job."""
    for task in snapshot.tasks:
        if task.attempts_used > task.max_attempts:
            text = f"{task.attempts_used} attempts are used, and {task.max_attempts} are allowed"
            yield Violation(11, task.id, text)
        if task.revision > v.REVISION_LIMIT:
            yield Violation(11, task.id, f"it was revised {task.revision} times")
    limit, job = snapshot.store.task_limit, snapshot.job
    if limit is not None and job is not None and job.total > limit:
        yield Violation(11, job.id, f"it has {job.total} tasks, and {limit} are allowed")
