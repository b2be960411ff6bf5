"""Invariants 9 and 13: same request, same job; and everything belongs to one job of one tenant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longshore.audit import vocabulary as v
from longshore.audit.job_snapshot import JobSnapshot
from longshore.audit.store_snapshot import EventRecord, JobRecord, TaskRecord
from longshore.audit.violation import Violation

# Places in the blob store whose next part names a job or one of its tasks.
_OWNED_PREFIXES = ("jobs/", "task/logs/", "events/")


def check_identity(snapshot: JobSnapshot) -> Iterator[Violation]:
    """A job's id follows from its request, a task's from its job and its name there."""
    for job in snapshot.jobs:
        if job.id != v.job_id_of(job.tenant, job.request_id):
            text = f"it is not the job of request {job.request_id!r} of tenant {job.tenant!r}"
            yield Violation(9, job.id, text)
        created = snapshot.events[0] if snapshot.events else None
        if created and created.properties.get("request_id", job.request_id) != job.request_id:
            yield Violation(9, job.id, "it was created by another request than its row says")
    if len(snapshot.jobs) > 1:
        yield Violation(9, snapshot.id, f"there are {len(snapshot.jobs)} jobs of this id")
    seen: set[str | int] = set()
    for task in snapshot.tasks:
        if task.id != f"{task.job_id}_{task.key}" or task.job_id != snapshot.id:
            text = f"it is not task {task.key!r} of job {task.job_id!r}"
            yield Violation(9, task.id, text)
        for name in (task.id, task.number):
            if name in seen:
                yield Violation(9, task.id, f"there are two tasks {name!r} in its job")
            seen.add(name)
        yield from _check_number(snapshot.job, task)


def _check_number(job: JobRecord | None, task: TaskRecord) -> Iterator[Violation]:
    if job is None:
        return
    if task.number >= job.total:
        text = f"it has number {task.number}, and its job has {job.total} tasks"
        yield Violation(9, task.id, text)
    elif job.keys is not None and job.keys[task.number : task.number + 1] != (task.key,):
        yield Violation(9, task.id, f"number {task.number} of its job is another task")


def check_tenancy(snapshot: JobSnapshot) -> Iterator[Violation]:
    """Nothing of a job belongs to another tenant or to another job."""
    job = snapshot.job
    tenant = job.tenant if job else None
    if job:
        yield from _check_events(snapshot, job.id, tenant, snapshot.events)
        yield from _check_blobs(snapshot, job)
    for task in snapshot.tasks:
        if tenant is not None and task.tenant != tenant:
            yield Violation(13, task.id, f"it is {task.tenant!r}'s, and its job is {tenant!r}'s")
        yield from _check_events(
            snapshot, task.id, task.tenant, snapshot.events_by_task.get(task.id, ())
        )
        yield from _check_blobs(snapshot, task)
    queues = {task.id: task.queue for task in snapshot.tasks}
    for message in snapshot.messages:
        named = str(message.task_id)
        if message.key not in (None, named):
            yield Violation(13, named, f"a message under the key {message.key!r} speaks for it")
        if message.queue != queues.get(named, message.queue):
            text = f"a message for it is on queue {message.queue!r}, and it is not"
            yield Violation(13, named, text)


def _check_events(
    snapshot: JobSnapshot, subject: str, tenant: str | None, events: Sequence[EventRecord]
) -> Iterator[Violation]:
    for event in events:
        says = event.properties
        if event.tenant != tenant:
            text = f"event {event.sequence} is {event.tenant!r}'s, and its row is {tenant!r}'s"
            yield Violation(13, subject, text)
        if says["job_id"] != snapshot.id or says.get("task_id", subject) != subject:
            yield Violation(13, subject, f"event {event.sequence} belongs to another tenant")


def _check_blobs(snapshot: JobSnapshot, row: JobRecord | TaskRecord) -> Iterator[Violation]:
    for key in row.blobs:
        for prefix in _OWNED_PREFIXES:
            if key.startswith(prefix):
                owner = v.job_id_in(key.removeprefix(prefix).partition("/")[0])
                if owner != snapshot.id:
                    yield Violation(13, row.id, f"its row names {key!r}, which is another job's")
