"""The evidence, job by job: everything of a job side by side, as the laws want it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from longshore.audit.store_snapshot import (
    EventRecord,
    JobRecord,
    MessageRecord,
    OutputRecord,
    StoreSnapshot,
    TaskRecord,
)
from longshore.audit.task_history import TaskHistory
from longshore.audit.vocabulary import OTHER_ENTITIES, job_id_in


@dataclass(slots=True)
class JobSnapshot:
    """One job with all its data."""

    id: str
    store: StoreSnapshot
    jobs: list[JobRecord] = field(default_factory=list)  # one, if all is well
    tasks: list[TaskRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)  # of the job itself, in order
    events_by_task: dict[str, list[EventRecord]] = field(default_factory=dict)  # of its tasks
    output_by_task: dict[str, list[OutputRecord]] = field(default_factory=dict)
    messages: list[MessageRecord] = field(default_factory=list)
    histories: dict[str, TaskHistory] = field(default_factory=dict)  # by task
    by_number: dict[int, TaskRecord] = field(default_factory=dict)
    by_key: dict[str, TaskRecord] = field(default_factory=dict)

    @property
    def job(self) -> JobRecord | None:
        """Its row; None if there is none."""
        return self.jobs[0] if self.jobs else None

    def history_of(self, key: str) -> TaskHistory | None:
        """What the events of the task that is called so add up to."""
        task = self.by_key.get(key)
        return self.histories[task.id] if task else None


def job_snapshots_in(
    store: StoreSnapshot,
) -> tuple[list[JobSnapshot], dict[tuple[str, str], list[EventRecord]]]:
    """Every job with data; and the events of queues and the system, by entity."""
    cases: dict[str, JobSnapshot] = {}

    def case_of(job_id: str) -> JobSnapshot:
        case = cases.get(job_id)
        if case is None:
            case = cases[job_id] = JobSnapshot(job_id, store)
        return case

    for job in store.jobs:
        case_of(job.id).jobs.append(job)
    for task in store.tasks:
        case_of(job_id_in(task.id)).tasks.append(task)
    others = _group_events(store, case_of)
    for entry in store.output:
        output = case_of(job_id_in(entry.task_id)).output_by_task
        output.setdefault(entry.task_id, []).append(entry)
    for message in store.messages:
        if message.task_id is not None and (case := cases.get(job_id_in(message.task_id))):
            case.messages.append(message)
    for case in cases.values():
        _index(case)
    return [cases[job_id] for job_id in sorted(cases)], others


def _group_events(
    store: StoreSnapshot, snapshot_of: Callable[[str], JobSnapshot]
) -> dict[tuple[str, str], list[EventRecord]]:
    by_entity: dict[str, list[EventRecord]] = {}
    others: dict[tuple[str, str], list[EventRecord]] = {}
    for event in store.events:
        entity_events = by_entity.get(event.entity)
        if entity_events is None:
            entity_events = by_entity[event.entity] = []
        entity_events.append(event)
    for entity, events in by_entity.items():
        kind, _, name = entity.partition("#")
        if kind in OTHER_ENTITIES:
            for event in events:
                others.setdefault((event.tenant, entity), []).append(event)
            continue
        events.sort(key=attrgetter("sequence", "position"))
        if kind == "JOB":
            snapshot_of(name).events = events
        else:
            snapshot_of(job_id_in(name)).events_by_task[name] = events
    return others


def _index(job: JobSnapshot) -> None:
    job.tasks.sort(key=attrgetter("number", "id"))
    for task in job.tasks:
        job.by_number.setdefault(task.number, task)
        job.by_key.setdefault(task.key, task)
        job.histories[task.id] = TaskHistory(task, job.events_by_task.get(task.id, ()))
