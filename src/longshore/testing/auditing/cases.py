"""The evidence, job by job: everything of a job side by side, as the laws want it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from longshore.testing.auditing.evidence import Event, Evidence, Job, Message, Output, Task
from longshore.testing.auditing.story import Story
from longshore.testing.auditing.vocabulary import OTHER_ENTITIES, job_named_in


@dataclass(slots=True)
class Case:
    """One job, and what anything tells of it."""

    id: str
    evidence: Evidence
    jobs: list[Job] = field(default_factory=list)  # one, if all is well
    tasks: list[Task] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)  # of the job itself, in order
    events_of: dict[str, list[Event]] = field(default_factory=dict)  # of its tasks
    output_of: dict[str, list[Output]] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    stories: dict[str, Story] = field(default_factory=dict)  # by task
    by_number: dict[int, Task] = field(default_factory=dict)
    by_key: dict[str, Task] = field(default_factory=dict)

    @property
    def job(self) -> Job | None:
        """Its row; None if there is none."""
        return self.jobs[0] if self.jobs else None

    def story_of(self, key: str) -> Story | None:
        """What the events of the task that is called so add up to."""
        task = self.by_key.get(key)
        return self.stories[task.id] if task else None


def cases_in(evidence: Evidence) -> tuple[list[Case], dict[tuple[str, str], list[Event]]]:
    """Every job that anything tells of; and the events of queues and the system, by entity."""
    cases: dict[str, Case] = {}

    def case_of(job_id: str) -> Case:
        case = cases.get(job_id)
        if case is None:
            case = cases[job_id] = Case(job_id, evidence)
        return case

    for job in evidence.jobs:
        case_of(job.id).jobs.append(job)
    for task in evidence.tasks:
        case_of(job_named_in(task.id)).tasks.append(task)
    others = _share_events(evidence, case_of)
    for entry in evidence.output:
        output = case_of(job_named_in(entry.task_id)).output_of
        output.setdefault(entry.task_id, []).append(entry)
    for message in evidence.messages:
        if message.task_id is not None and (known := cases.get(job_named_in(message.task_id))):
            known.messages.append(message)
    for case in cases.values():
        _read(case)
    return [cases[job_id] for job_id in sorted(cases)], others


def _share_events(
    evidence: Evidence, case_of: Callable[[str], Case]
) -> dict[tuple[str, str], list[Event]]:
    by_entity: dict[str, list[Event]] = {}
    others: dict[tuple[str, str], list[Event]] = {}
    for event in evidence.events:
        found = by_entity.get(event.entity)
        if found is None:
            found = by_entity[event.entity] = []
        found.append(event)
    for entity, events in by_entity.items():
        kind, _, name = entity.partition("#")
        if kind in OTHER_ENTITIES:
            for event in events:
                others.setdefault((event.tenant, entity), []).append(event)
            continue
        events.sort(key=attrgetter("sequence", "position"))
        if kind == "JOB":
            case_of(name).events = events
        else:
            case_of(job_named_in(name)).events_of[name] = events
    return others


def _read(case: Case) -> None:
    case.tasks.sort(key=attrgetter("number", "id"))
    for task in case.tasks:
        case.by_number.setdefault(task.number, task)
        case.by_key.setdefault(task.key, task)
        case.stories[task.id] = Story(task, case.events_of.get(task.id, ()))
