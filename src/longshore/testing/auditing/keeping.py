"""Invariant 1: nothing accepted is lost.

While work goes on it is enough that nothing is forgotten: for each task there is somebody who will
come back to it, because its row says when and to whom. At rest nothing may be left over: a task has
ended, or it rests in a wait that has a name. And no row points at nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from longshore.testing.auditing import vocabulary as v
from longshore.testing.auditing.cases import Case
from longshore.testing.auditing.evidence import Job, Task
from longshore.testing.auditing.violation import Violation


def nothing_lost(case: Case) -> Iterator[Violation]:
    """All of it, for one job and its tasks."""
    yield from _documents_are_there(case)
    for task in case.tasks:
        yield from _not_forgotten(task)
    job = case.job
    if job is None:
        return
    creating = any(intent.kind == "create" for intent in job.intents)
    if case.evidence.settled or not creating:
        for number in range(job.total):
            if number not in case.by_number:
                yield Violation(1, job.id, f"task {_called(job, number)} was accepted and is gone")
    if case.evidence.settled:
        yield from _job_at_rest(job)
        for task in case.tasks:
            yield from _at_rest(case, job, task)


def _called(job: Job, number: int) -> str:
    keys = job.keys or ()
    return repr(keys[number]) if number < len(keys) else str(number)


def _documents_are_there(case: Case) -> Iterator[Violation]:
    rows: list[Job | Task] = [*case.jobs, *case.tasks]
    for row in rows:
        yield from _missing(case, row.id, "its row", row.blobs)
    for subject, events in ((case.id, case.events), *case.events_of.items()):
        for event in events:
            if event.blobs:
                yield from _missing(case, subject, f"event {event.sequence}", event.blobs)


def _missing(case: Case, subject: str, who: str, keys: tuple[str, ...]) -> Iterator[Violation]:
    for key in keys:
        if key not in case.evidence.blobs:
            yield Violation(1, subject, f"{who} names {key!r}, and that is not there")


def _not_forgotten(task: Task) -> Iterator[Violation]:
    """Whoever sweeps finds each open task by one field of its row."""
    if task.state == v.PENDING and task.due_us is None:
        yield Violation(1, task.id, "it is pending and never due: nobody will ring for it")
    if task.state == v.PROCESSING and task.lease is None:
        yield Violation(1, task.id, "it is processing and nobody holds it: no lease will run out")
    if task.state == v.WAITING and not task.awaits:
        yield Violation(1, task.id, "it waits for nobody: nobody will send it on")
    if task.state in v.TERMINAL and task.finished_us is None:
        yield Violation(1, task.id, "it has ended and not when: its job will not hear of it")


def _job_at_rest(job: Job) -> Iterator[Violation]:
    for intent in job.intents:
        yield Violation(1, job.id, f"at rest, its {intent.kind} has not been carried out")
    if v.untold(job):
        yield Violation(1, job.id, f"at rest, it is {v.job_state(job)} and has not told so")


def _at_rest(case: Case, job: Job, task: Task) -> Iterator[Violation]:
    recorded = job.completed | job.failed | job.cancelled
    if task.state in v.TERMINAL:
        if not recorded >> task.number & 1:
            yield Violation(1, task.id, f"at rest, its job has not heard that it is {task.state}")
    elif job.cancel_us is not None:
        yield Violation(1, task.id, f"at rest, its job was cancelled and it is {task.state}")
    elif task.state == v.PROCESSING:
        yield Violation(1, task.id, "at rest, it is still processing")
    elif task.state == v.PENDING:
        if task.due_us is not None and task.due_us <= case.evidence.taken_at_us:
            yield Violation(1, task.id, "at rest, it is due and nobody has taken it")
    elif task.state == v.WAITING and not _waits_for_somebody(case, task):
        yield Violation(1, task.id, "at rest, it waits although all of its parents completed")


def _waits_for_somebody(case: Case, task: Task) -> bool:
    parents = [case.by_number.get(number) for number in v.bits(task.awaits)]
    return not parents or any(parent and parent.state != v.COMPLETED for parent in parents)
