"""Invariants 9 and 13: same request, same job; and everything belongs to one job of one tenant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longshore.testing.auditing import vocabulary as v
from longshore.testing.auditing.cases import Case
from longshore.testing.auditing.evidence import Event, Job, Task
from longshore.testing.auditing.violation import Violation

# Places in the blob store whose next part names a job or one of its tasks.
_OWNED = ("jobs/", "task/logs/", "events/")


def identity(case: Case) -> Iterator[Violation]:
    """A job's id follows from its request, a task's from its job and its name there."""
    for job in case.jobs:
        if job.id != v.job_id_of(job.tenant, job.request_id):
            text = f"it is not the job of request {job.request_id!r} of tenant {job.tenant!r}"
            yield Violation(9, job.id, text)
        created = case.events[0] if case.events else None
        if created and created.says.get("request_id", job.request_id) != job.request_id:
            yield Violation(9, job.id, "it was created by another request than its row says")
    if len(case.jobs) > 1:
        yield Violation(9, case.id, f"there are {len(case.jobs)} jobs of this id")
    seen: set[str | int] = set()
    for task in case.tasks:
        if task.id != f"{task.job_id}_{task.key}" or task.job_id != case.id:
            text = f"it is not task {task.key!r} of job {task.job_id!r}"
            yield Violation(9, task.id, text)
        for name in (task.id, task.number):
            if name in seen:
                yield Violation(9, task.id, f"there are two tasks {name!r} in its job")
            seen.add(name)
        yield from _place_in_its_job(case.job, task)


def _place_in_its_job(job: Job | None, task: Task) -> Iterator[Violation]:
    if job is None:
        return
    if task.number >= job.total:
        text = f"it has number {task.number}, and its job has {job.total} tasks"
        yield Violation(9, task.id, text)
    elif job.keys is not None and job.keys[task.number : task.number + 1] != (task.key,):
        yield Violation(9, task.id, f"number {task.number} of its job is another task")


def tenancy(case: Case) -> Iterator[Violation]:
    """Nothing of a job belongs to another tenant or to another job."""
    job = case.job
    tenant = job.tenant if job else None
    if job:
        yield from _events_of(case, job.id, tenant, case.events)
        yield from _own_blobs(case, job)
    for task in case.tasks:
        if tenant is not None and task.tenant != tenant:
            yield Violation(13, task.id, f"it is {task.tenant!r}'s, and its job is {tenant!r}'s")
        yield from _events_of(case, task.id, task.tenant, case.events_of.get(task.id, ()))
        yield from _own_blobs(case, task)
    queues = {task.id: task.queue for task in case.tasks}
    for message in case.messages:
        named = str(message.task_id)
        if message.key not in (None, named):
            yield Violation(13, named, f"a message under the key {message.key!r} speaks for it")
        if message.queue != queues.get(named, message.queue):
            text = f"a message for it is on queue {message.queue!r}, and it is not"
            yield Violation(13, named, text)


def _events_of(
    case: Case, subject: str, tenant: str | None, events: Sequence[Event]
) -> Iterator[Violation]:
    for event in events:
        says = event.says
        if event.tenant != tenant:
            text = f"event {event.sequence} is {event.tenant!r}'s, and its row is {tenant!r}'s"
            yield Violation(13, subject, text)
        if says["job_id"] != case.id or says.get("task_id", subject) != subject:
            yield Violation(13, subject, f"event {event.sequence} tells of somebody else")


def _own_blobs(case: Case, row: Job | Task) -> Iterator[Violation]:
    for key in row.blobs:
        for place in _OWNED:
            if key.startswith(place):
                owner = v.job_named_in(key.removeprefix(place).partition("/")[0])
                if owner != case.id:
                    yield Violation(13, row.id, f"its row names {key!r}, which is another job's")
