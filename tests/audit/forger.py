"""Changes one place of a history and leaves the rest as it was."""

from dataclasses import replace
from typing import Any

from longshore.audit.store_snapshot import (
    EventRecord,
    JobRecord,
    MessageRecord,
    OutputRecord,
    StoreSnapshot,
    TaskRecord,
)
from longshore.audit.vocabulary import job_id_of
from tests.unit.services.harness import TENANT


class Forger:
    """A history to be forged: each method does one thing and returns the forger."""

    def __init__(self, snapshot: StoreSnapshot) -> None:
        self.snapshot = snapshot

    def replace_fields(self, **fields: Any) -> "Forger":
        self.snapshot = replace(self.snapshot, **fields)
        return self

    def job(self, request_id: str) -> JobRecord:
        return next(job for job in self.snapshot.jobs if job.id == job_id_of(TENANT, request_id))

    def task(self, path: str) -> TaskRecord:
        """By request id and key: ``pipeline/a``."""
        request_id, _, key = path.partition("/")
        id_ = f"{job_id_of(TENANT, request_id)}_{key}"
        return next(task for task in self.snapshot.tasks if task.id == id_)

    def entity(self, path: str) -> str:
        return f"TASK#{self.task(path).id}" if "/" in path else f"JOB#{self.job(path).id}"

    def events(self, path: str) -> list[EventRecord]:
        entity = self.entity(path)
        events = [event for event in self.snapshot.events if event.entity == entity]
        return sorted(events, key=lambda event: event.sequence)

    def event(self, path: str, number: int) -> EventRecord:
        """The n-th of a task or job; from behind, if it is negative."""
        return self.events(path)[number - 1 if number > 0 else number]

    def change_job(self, request: str, /, **fields: Any) -> "Forger":
        old = self.job(request)
        return self.replace_fields(jobs=_with(self.snapshot.jobs, old, old._replace(**fields)))

    def change_task(self, path: str, /, **fields: Any) -> "Forger":
        old = self.task(path)
        return self.replace_fields(tasks=_with(self.snapshot.tasks, old, old._replace(**fields)))

    def change_lease(self, path: str, **fields: Any) -> "Forger":
        lease = self.task(path).lease
        assert lease is not None
        return self.change_task(path, lease=lease._replace(**fields))

    def drop_task(self, path: str) -> "Forger":
        return self.replace_fields(tasks=_with(self.snapshot.tasks, self.task(path)))

    def change_event(self, path: str, number: int, /, **fields: Any) -> "Forger":
        old = self.event(path, number)
        return self.replace_fields(events=_with(self.snapshot.events, old, old._replace(**fields)))

    def change_properties(self, path: str, number: int, /, **properties: Any) -> "Forger":
        """Change what an event says."""
        return self.change_event(
            path, number, properties={**self.event(path, number).properties, **properties}
        )

    def drop_event(self, path: str, number: int) -> "Forger":
        return self.replace_fields(events=_with(self.snapshot.events, self.event(path, number)))

    def remove_event(self, path: str, number: int) -> "Forger":
        """As if it had never been: those behind it move up, and the row knows."""
        gone = self.event(path, number)
        self.drop_event(path, number)
        for event in self.events(path):
            if event.sequence > gone.sequence:
                moved = event._replace(sequence=event.sequence - 1)
                self.replace_fields(events=_with(self.snapshot.events, event, moved))
        change = self.change_task if "/" in path else self.change_job
        last = self.events(path)[-1]
        return change(path, last_sequence=last.sequence, last_event_us=last.at_us)

    def add_event(self, path: str, like: EventRecord, **fields: Any) -> "Forger":
        """One more at the end, like another; the row knows of it."""
        last = self.events(path)[-1]
        newest = max(event.position for event in self.snapshot.events)
        added = like._replace(
            entity=self.entity(path),
            sequence=last.sequence + 1,
            at_us=last.at_us + 1_000_000,
            position=newest + 1,
            **fields,
        )
        self.replace_fields(events=(*self.snapshot.events, added))
        change = self.change_task if "/" in path else self.change_job
        return change(path, last_sequence=added.sequence, last_event_us=added.at_us)

    def swap_positions(self, left: tuple[str, int], right: tuple[str, int]) -> "Forger":
        first, second = self.event(*left).position, self.event(*right).position
        return self.change_event(*left, position=second).change_event(*right, position=first)

    def output(self, path: str, attempt: int, sequence: int) -> OutputRecord:
        task_id = self.task(path).id
        return next(
            entry
            for entry in self.snapshot.output
            if (entry.task_id, entry.attempt, entry.sequence) == (task_id, attempt, sequence)
        )

    def change_output(self, path: str, attempt: int, sequence: int, /, **fields: Any) -> "Forger":
        old = self.output(path, attempt, sequence)
        return self.replace_fields(output=_with(self.snapshot.output, old, old._replace(**fields)))

    def drop_output(self, path: str, attempt: int, sequence: int) -> "Forger":
        entry = self.output(path, attempt, sequence)
        return self.replace_fields(output=_with(self.snapshot.output, entry))

    def add_output(self, path: str, attempt: int, sequence: int, /, **fields: Any) -> "Forger":
        entry = OutputRecord(self.task(path).id, attempt, sequence, "stdout")._replace(**fields)
        return self.replace_fields(output=(*self.snapshot.output, entry))

    def change_message(self, path: str, /, **fields: Any) -> "Forger":
        """A message of the task, as a backend with a queue has it, but for these fields."""
        task = self.task(path)
        message = MessageRecord(task.queue, task.id, task.id)._replace(**fields)
        others = [other for other in self.snapshot.messages if other.task_id != task.id]
        return self.replace_fields(messages=(*others, message))


def _with(records: tuple[Any, ...], old: Any, *new: Any) -> tuple[Any, ...]:
    index = records.index(old)
    return (*records[:index], *new, *records[index + 1 :])
