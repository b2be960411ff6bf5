"""Invariant 5: state and history agree.

A history is whole and in order, a row says what its history adds up to, what is kept twice is kept
alike; and what has events or output has a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longshore.audit.job_snapshot import JobSnapshot
from longshore.audit.store_snapshot import EventRecord, JobRecord, StoreSnapshot, TaskRecord
from longshore.audit.task_history import EventTime, TaskHistory
from longshore.audit.violation import Violation


def check_consistency(snapshot: JobSnapshot) -> Iterator[Violation]:
    """All of it, for one job and its tasks."""
    if snapshot.job is None:
        if snapshot.tasks or snapshot.events:
            yield Violation(
                5, snapshot.id, "there is no row of this job, and it has tasks or events"
            )
    else:
        yield from _check_complete(snapshot.job, snapshot.events)
    for task in snapshot.tasks:
        yield from _check_complete(task, snapshot.events_by_task.get(task.id, ()))
        yield from _check_row(task, snapshot.histories[task.id])
    for task_id in snapshot.events_by_task:
        if task_id not in snapshot.histories:
            yield Violation(5, task_id, "it has events and no row")


def check_mismatches(store: StoreSnapshot) -> Iterator[Violation]:
    """What the backend itself keeps in two places."""
    for subject, text in store.mismatches:
        yield Violation(5, subject, text)


def check_sequences(
    subject: str, events: Sequence[EventRecord], *, after: int = 0
) -> Iterator[Violation]:
    """Sequences without gap or double, and times and commits that go the same way.

    Args:
        after: The sequence before the first one.
    """
    sequence, position, at_us = after, -1, None
    for event in events:
        if event.sequence == sequence:
            yield Violation(5, subject, f"there are two events {sequence}")
        elif event.sequence != sequence + 1:
            missing = _missing_text(sequence + 1, event.sequence - 1)
            yield Violation(5, subject, f"{missing} missing from its history")
        if event.position <= position:
            text = f"event {event.sequence} was committed before event {sequence}"
            yield Violation(5, subject, text)
        if at_us is not None and event.at_us <= at_us:
            text = f"event {event.sequence} is not later than event {sequence}"
            yield Violation(5, subject, text)
        sequence, position, at_us = event.sequence, event.position, event.at_us


def _missing_text(first: int, last: int) -> str:
    return f"event {first} is" if first >= last else f"events {first} to {last} are"


def _check_complete(
    row: TaskRecord | JobRecord, events: Sequence[EventRecord]
) -> Iterator[Violation]:
    yield from check_sequences(row.id, events)
    last = events[-1] if events else None
    folded = last.sequence if last else 0
    if folded < row.last_sequence:
        missing = _missing_text(folded + 1, row.last_sequence)
        yield Violation(5, row.id, f"{missing} missing from the end of its history")
    elif folded > row.last_sequence:
        text = f"there is an event {folded}, and its row ends at {row.last_sequence}"
        yield Violation(5, row.id, text)
    elif (last.at_us if last else None) != row.last_event_us:
        yield Violation(5, row.id, "its row has another time for its last event")


def _check_row(task: TaskRecord, history: TaskHistory) -> Iterator[Violation]:
    lease = history.lease
    for name, folded, stored in (
        ("state", history.state, task.state),
        ("round", history.round, task.round),
        ("attempt", history.attempt, task.attempt),
        ("used attempts", history.attempts_used, task.attempts_used),
        ("fence", history.fence, task.fence),
        ("lease", lease, task.lease),
        ("revision", history.revision, task.revision),
        ("start", history.started_us, task.started_us),
        ("last output", history.last_output, task.last_output),
        ("result", history.result, task.result),
        ("failure", history.failure, task.failure),
    ):
        if folded != stored:
            text = f"its events add up to {name} {_shown(folded)}, its row says {_shown(stored)}"
            yield Violation(5, task.id, text)
    for name, moment, kept_us in (
        ("end", history.finished, task.finished_us),
        ("due time", history.due, task.due_us),
    ):
        if not _same_moment(moment, kept_us):
            yield Violation(5, task.id, f"its row has another {name} than its events")
    if task.version < task.last_sequence - history.approvals:
        text = f"version {task.version} is too low for {task.last_sequence} events"
        yield Violation(5, task.id, text)


def _same_moment(moment: EventTime | int | None, stored_us: int | None) -> bool:
    return moment.matches(stored_us) if isinstance(moment, EventTime) else moment == stored_us


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"of {value[0]!r} until {value[3]} with fence {value[1]}"
    return "none" if value is None else repr(value)
