"""Changes one place of a history and leaves the rest as it was."""

from dataclasses import replace
from typing import Any

from longshore.testing.auditing.evidence import Event, Evidence, Job, Output, Task
from longshore.testing.auditing.vocabulary import job_id_of
from tests.unit.services.stage import TENANT


class Forger:
    """A history to be forged: each method does one thing and returns the forger."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    def with_(self, **fields: Any) -> "Forger":
        self.evidence = replace(self.evidence, **fields)
        return self

    def job(self, request_id: str) -> Job:
        return next(job for job in self.evidence.jobs if job.id == job_id_of(TENANT, request_id))

    def task(self, place: str) -> Task:
        """By request id and key: ``pipeline/a``."""
        request_id, _, key = place.partition("/")
        id_ = f"{job_id_of(TENANT, request_id)}_{key}"
        return next(task for task in self.evidence.tasks if task.id == id_)

    def entity(self, place: str) -> str:
        return f"TASK#{self.task(place).id}" if "/" in place else f"JOB#{self.job(place).id}"

    def events(self, place: str) -> list[Event]:
        entity = self.entity(place)
        found = [event for event in self.evidence.events if event.entity == entity]
        return sorted(found, key=lambda event: event.sequence)

    def event(self, place: str, number: int) -> Event:
        """The n-th of a task or job; from behind, if it is negative."""
        return self.events(place)[number - 1 if number > 0 else number]

    def change_job(self, request: str, /, **fields: Any) -> "Forger":
        old = self.job(request)
        return self.with_(jobs=_with(self.evidence.jobs, old, old._replace(**fields)))

    def change_task(self, place: str, /, **fields: Any) -> "Forger":
        old = self.task(place)
        return self.with_(tasks=_with(self.evidence.tasks, old, old._replace(**fields)))

    def change_lease(self, place: str, **fields: Any) -> "Forger":
        lease = self.task(place).lease
        assert lease is not None
        return self.change_task(place, lease=lease._replace(**fields))

    def drop_task(self, place: str) -> "Forger":
        return self.with_(tasks=_with(self.evidence.tasks, self.task(place)))

    def change_event(self, place: str, number: int, /, **fields: Any) -> "Forger":
        old = self.event(place, number)
        return self.with_(events=_with(self.evidence.events, old, old._replace(**fields)))

    def say(self, place: str, number: int, /, **said: Any) -> "Forger":
        """Change what an event says."""
        return self.change_event(place, number, says={**self.event(place, number).says, **said})

    def drop_event(self, place: str, number: int) -> "Forger":
        return self.with_(events=_with(self.evidence.events, self.event(place, number)))

    def without_event(self, place: str, number: int) -> "Forger":
        """As if it had never been: those behind it move up, and the row knows."""
        gone = self.event(place, number)
        self.drop_event(place, number)
        for event in self.events(place):
            if event.sequence > gone.sequence:
                moved = event._replace(sequence=event.sequence - 1)
                self.with_(events=_with(self.evidence.events, event, moved))
        change = self.change_task if "/" in place else self.change_job
        last = self.events(place)[-1]
        return change(place, last_sequence=last.sequence, last_event_us=last.at_us)

    def add_event(self, place: str, like: Event, **fields: Any) -> "Forger":
        """One more at the end, like another; the row knows of it."""
        last = self.events(place)[-1]
        newest = max(event.position for event in self.evidence.events)
        added = like._replace(
            entity=self.entity(place),
            sequence=last.sequence + 1,
            at_us=last.at_us + 1_000_000,
            position=newest + 1,
            **fields,
        )
        self.with_(events=(*self.evidence.events, added))
        change = self.change_task if "/" in place else self.change_job
        return change(place, last_sequence=added.sequence, last_event_us=added.at_us)

    def exchange_positions(self, one: tuple[str, int], other: tuple[str, int]) -> "Forger":
        first, second = self.event(*one).position, self.event(*other).position
        return self.change_event(*one, position=second).change_event(*other, position=first)

    def output(self, place: str, attempt: int, sequence: int) -> Output:
        task_id = self.task(place).id
        return next(
            entry
            for entry in self.evidence.output
            if (entry.task_id, entry.attempt, entry.sequence) == (task_id, attempt, sequence)
        )

    def change_output(self, place: str, attempt: int, sequence: int, /, **fields: Any) -> "Forger":
        old = self.output(place, attempt, sequence)
        return self.with_(output=_with(self.evidence.output, old, old._replace(**fields)))

    def drop_output(self, place: str, attempt: int, sequence: int) -> "Forger":
        entry = self.output(place, attempt, sequence)
        return self.with_(output=_with(self.evidence.output, entry))

    def add_output(self, place: str, attempt: int, sequence: int, /, **fields: Any) -> "Forger":
        entry = Output(self.task(place).id, attempt, sequence, "stdout")._replace(**fields)
        return self.with_(output=(*self.evidence.output, entry))

    def change_message(self, place: str, /, **fields: Any) -> "Forger":
        task_id = self.task(place).id
        old = next(one for one in self.evidence.messages if one.task_id == task_id)
        return self.with_(messages=_with(self.evidence.messages, old, old._replace(**fields)))


def _with(records: tuple[Any, ...], old: Any, *new: Any) -> tuple[Any, ...]:
    place = records.index(old)
    return (*records[:place], *new, *records[place + 1 :])
