"""Invariant 5: state and history agree.

A history is whole and in order, a row says what its history adds up to, what is kept twice is kept
alike; and what has events or output has a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longshore.testing.auditing.cases import Case
from longshore.testing.auditing.evidence import Event, Evidence, Job, Task
from longshore.testing.auditing.story import Moment, Story
from longshore.testing.auditing.violation import Violation


def agreement(case: Case) -> Iterator[Violation]:
    """All of it, for one job and its tasks."""
    if case.job is None:
        if case.tasks or case.events:
            yield Violation(5, case.id, "there is no row of this job, and it has tasks or events")
    else:
        yield from _whole(case.job, case.events)
    for task in case.tasks:
        yield from _whole(task, case.events_of.get(task.id, ()))
        yield from _as_told(task, case.stories[task.id])
    for task_id in case.events_of:
        if task_id not in case.stories:
            yield Violation(5, task_id, "it has events and no row")


def kept_alike(evidence: Evidence) -> Iterator[Violation]:
    """What the backend itself keeps in two places."""
    for subject, text in evidence.unlike:
        yield Violation(5, subject, text)


def in_order(subject: str, events: Sequence[Event]) -> Iterator[Violation]:
    """Sequences from 1 without gap or double, and times and commits that go the same way."""
    sequence, position, at_us = 0, -1, None
    for event in events:
        if event.sequence == sequence:
            yield Violation(5, subject, f"there are two events {sequence}")
        elif event.sequence != sequence + 1:
            missing = _between(sequence + 1, event.sequence - 1)
            yield Violation(5, subject, f"{missing} missing from its history")
        if event.position <= position:
            text = f"event {event.sequence} was committed before event {sequence}"
            yield Violation(5, subject, text)
        if at_us is not None and event.at_us <= at_us:
            text = f"event {event.sequence} is not later than event {sequence}"
            yield Violation(5, subject, text)
        sequence, position, at_us = event.sequence, event.position, event.at_us


def _between(first: int, last: int) -> str:
    return f"event {first} is" if first >= last else f"events {first} to {last} are"


def _whole(row: Task | Job, events: Sequence[Event]) -> Iterator[Violation]:
    yield from in_order(row.id, events)
    last = events[-1] if events else None
    told = last.sequence if last else 0
    if told < row.last_sequence:
        missing = _between(told + 1, row.last_sequence)
        yield Violation(5, row.id, f"{missing} missing from the end of its history")
    elif told > row.last_sequence:
        text = f"there is an event {told}, and its row ends at {row.last_sequence}"
        yield Violation(5, row.id, text)
    elif (last.at_us if last else None) != row.last_event_us:
        yield Violation(5, row.id, "its row has another time for its last event")


def _as_told(task: Task, story: Story) -> Iterator[Violation]:
    lease = story.lease
    for name, told, kept in (
        ("state", story.state, task.state),
        ("round", story.round, task.round),
        ("attempt", story.attempt, task.attempt),
        ("used attempts", story.attempts_used, task.attempts_used),
        ("fence", story.fence, task.fence),
        ("lease", lease, task.lease),
        ("revision", story.revision, task.revision),
        ("start", story.started_us, task.started_us),
        ("last output", story.last_output, task.last_output),
        ("result", story.result, task.result),
        ("failure", story.failure, task.failure),
    ):
        if told != kept:
            text = f"its events add up to {name} {_shown(told)}, its row says {_shown(kept)}"
            yield Violation(5, task.id, text)
    for name, moment, kept_us in (
        ("end", story.finished, task.finished_us),
        ("due time", story.due, task.due_us),
    ):
        if not _same_moment(moment, kept_us):
            yield Violation(5, task.id, f"its row has another {name} than its events")
    if task.version < task.last_sequence - story.approvals:
        text = f"version {task.version} is too low for {task.last_sequence} events"
        yield Violation(5, task.id, text)


def _same_moment(told: Moment | int | None, kept_us: int | None) -> bool:
    return told.fits(kept_us) if isinstance(told, Moment) else told == kept_us


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"of {value[0]!r} until {value[3]} with fence {value[1]}"
    return "none" if value is None else repr(value)
