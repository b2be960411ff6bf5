"""Invariants 1 and 15: nothing accepted is lost, and jobs are removed as a whole.

During work it is enough that nothing is forgotten: for each task there is a process that will
come back to it, because its row says when and to whom. At rest nothing may be left over: a task has
ended, or it rests in a wait that has a name. And no row points at nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from longshore.audit import vocabulary as v
from longshore.audit.job_snapshot import JobSnapshot
from longshore.audit.store_snapshot import JobRecord, TaskRecord
from longshore.audit.violation import Violation


def check_nothing_lost(snapshot: JobSnapshot) -> Iterator[Violation]:
    """All of it, for one job and its tasks."""
    yield from _check_documents(snapshot)
    for task in snapshot.tasks:
        yield from _check_sweepable(task)
    job = snapshot.job
    if job is None:
        return
    creating = any(intent.kind == "create" for intent in job.intents)
    if snapshot.store.settled or not creating:
        for number in range(job.total):
            if number not in snapshot.by_number:
                yield Violation(
                    1, job.id, f"task {_task_name(job, number)} was accepted and is gone"
                )
    if snapshot.store.settled:
        yield from _check_settled_job(job)
        for task in snapshot.tasks:
            yield from _check_settled_task(snapshot, job, task)


def _task_name(job: JobRecord, number: int) -> str:
    keys = job.keys or ()
    return repr(keys[number]) if number < len(keys) else str(number)


def _check_documents(snapshot: JobSnapshot) -> Iterator[Violation]:
    rows: list[JobRecord | TaskRecord] = [*snapshot.jobs, *snapshot.tasks]
    for row in rows:
        yield from _missing_blobs(snapshot, row.id, "its row", row.blobs)
    for subject, events in ((snapshot.id, snapshot.events), *snapshot.events_by_task.items()):
        for event in events:
            if event.blobs:
                yield from _missing_blobs(snapshot, subject, f"event {event.sequence}", event.blobs)


def _missing_blobs(
    snapshot: JobSnapshot, subject: str, referrer: str, keys: tuple[str, ...]
) -> Iterator[Violation]:
    for key in keys:
        if key not in snapshot.store.blobs:
            yield Violation(1, subject, f"{referrer} names {key!r}, and that is not there")


def _check_sweepable(task: TaskRecord) -> Iterator[Violation]:
    """The sweeper finds each open task by one field of its row."""
    if task.state == v.PENDING and task.due_us is None:
        yield Violation(1, task.id, "it is pending and never due: no message will be sent")
    if task.state == v.PROCESSING and task.lease is None:
        yield Violation(1, task.id, "it is processing without a lease: no worker will take it over")
    if task.state == v.WAITING and not task.awaits:
        yield Violation(1, task.id, "it waits for no parent: it will never be dispatched")
    if task.state in v.TERMINAL and task.finished_us is None:
        yield Violation(1, task.id, "it has ended without a time: its job will not record it")


def _check_settled_job(job: JobRecord) -> Iterator[Violation]:
    for intent in job.intents:
        yield Violation(1, job.id, f"at rest, its {intent.kind} has not been carried out")
    if v.end_event_missing(job):
        yield Violation(1, job.id, f"at rest, it is {v.job_state(job)} and has not reported it")


def _check_settled_task(
    snapshot: JobSnapshot, job: JobRecord, task: TaskRecord
) -> Iterator[Violation]:
    recorded = job.completed | job.failed | job.cancelled
    if task.state in v.TERMINAL:
        if not recorded >> task.number & 1:
            yield Violation(
                1, task.id, f"at rest, its job has not recorded that it is {task.state}"
            )
    elif job.cancel_us is not None:
        yield Violation(1, task.id, f"at rest, its job was cancelled and it is {task.state}")
    elif task.state == v.PROCESSING:
        yield Violation(1, task.id, "at rest, it is still processing")
    elif task.state == v.PENDING:
        if task.due_us is not None and task.due_us <= snapshot.store.taken_at_us:
            yield Violation(1, task.id, "at rest, it is due and no worker has taken it")
    elif task.state == v.WAITING and not _has_open_parent(snapshot, task):
        yield Violation(1, task.id, "at rest, it waits although all of its parents completed")


def _has_open_parent(snapshot: JobSnapshot, task: TaskRecord) -> bool:
    parents = [snapshot.by_number.get(number) for number in v.bits(task.awaits)]
    return not parents or any(parent and parent.state != v.COMPLETED for parent in parents)


def check_removed(snapshot: JobSnapshot) -> Iterator[Violation]:
    """Invariant 15: nothing is left of a removed job, and no job is without its row."""
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
