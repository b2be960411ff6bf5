"""Invariants 4 and 7, for jobs: a job ends once a round, and its sets say what became of its tasks.

A job's row records its tasks later than they end, and drops those that are resumed before
they begin anew: so a bit that is set is always true, and one that is not set may be still to come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from longshore.audit import vocabulary as v
from longshore.audit.job_snapshot import JobSnapshot
from longshore.audit.store_snapshot import EventRecord, JobRecord
from longshore.audit.violation import Violation


def check_job(snapshot: JobSnapshot) -> Iterator[Violation]:
    """All of it, for one job."""
    job = snapshot.job
    if job is None:
        return
    history = _JobHistory(snapshot, job)
    yield from history.violations
    for name, folded, stored in (
        ("round", history.round, job.round),
        ("number of tasks", history.total, job.total),
        ("round of its last failure", history.failure_round, job.failure_emitted_round),
        ("round of its last end", history.end_round, job.end_emitted_round),
    ):
        if folded != stored:
            text = f"its events add up to {name} {folded}, its row says {stored}"
            yield Violation(5, job.id, text)
    if job.keys is None:
        yield Violation(5, job.id, "its graph cannot be read")
    elif len(job.keys) != job.total:
        yield Violation(5, job.id, f"it has {job.total} tasks, and its graph {len(job.keys)}")
    yield from _check_sets(snapshot, job)
    yield from _check_task_rounds(snapshot, job, history)
    over = v.job_state(job) != v.RUNNING
    if over != (job.finished_us is not None):
        text = f"it is {v.job_state(job)} and has {'no' if over else 'a'} time of its end"
        yield Violation(7, job.id, text)
    failed_since = any(
        position > history.resumed_at + snapshot.store.time_slack
        for task in snapshot.tasks
        if job.failed >> task.number & 1
        for position in snapshot.histories[task.id].failed_at[-1:]
    )
    if failed_since and job.failure_emitted_round != job.round:
        yield Violation(
            7, job.id, f"a task failed in round {job.round}, and it has not reported it"
        )


class _JobHistory:
    """What the events of the job itself say."""

    def __init__(self, snapshot: JobSnapshot, job: JobRecord) -> None:
        self._snapshot = snapshot
        self._job = job
        self.violations: list[Violation] = []
        self.round = 1
        self.total = 0
        self.failure_round = 0
        self.end_round = 0
        self.resumed: dict[int, EventRecord] = {}  # by round
        self.resumed_at = -1  # position
        self._ended_by: str | None = None  # how the job has ended in this round
        for event in snapshot.events:
            self._apply(event, event.properties)

    def _report(self, invariant: int, text: str) -> None:
        self.violations.append(Violation(invariant, self._job.id, text))

    def _apply(self, event: EventRecord, properties: dict[str, Any]) -> None:
        if (event.sequence == 1) != (event.type == v.JOB_CREATED):
            self._report(5, f"event {event.sequence} is {event.type}")
        if (
            "round" in properties
            and event.type != v.JOB_RESUMED
            and properties["round"] != self.round
        ):
            text = f"{event.type} of round {properties['round']} comes in round {self.round}"
            self._report(7, text)
        self._check_after_end(event)
        match event.type:
            case v.JOB_CREATED:
                self.total = properties["total_tasks"]
            case v.JOB_ADDED:
                if properties["previous_total_tasks"] != self.total:
                    self._report(5, f"event {event.sequence} adds tasks to another number of them")
                self.total = properties["total_tasks_now"]
            case v.JOB_RESUMED:
                self._resumed(event, properties)
            case v.JOB_FAILURE:
                self._failure(event, properties)
            case v.JOB_COMPLETED:
                self._completed(event, properties)
            case v.JOB_CANCELLED:
                self._ended_by, self.end_round = event.type, self.round

    def _check_after_end(self, event: EventRecord) -> None:
        if self._ended_by is None:
            return
        if event.type in (v.JOB_COMPLETED, v.JOB_CANCELLED):
            self._report(7, f"{event.type} after {self._ended_by} in round {self.round}")
        elif event.type != v.JOB_RESUMED or self._ended_by == v.JOB_COMPLETED:
            self._report(4, f"{event.type} (event {event.sequence}) comes after {self._ended_by}")

    def _resumed(self, event: EventRecord, properties: dict[str, Any]) -> None:
        if properties["round"] != self.round + 1:
            self._report(4, f"round {properties['round']} begins after round {self.round}")
        self.round, self.resumed_at, self._ended_by = properties["round"], event.position, None
        self.resumed[self.round] = event

    def _failure(self, event: EventRecord, properties: dict[str, Any]) -> None:
        if self.failure_round >= self.round:
            self._report(7, f"{event.type} is emitted twice in round {self.round}")
        self.failure_round = self.round
        task_history = self._snapshot.history_of(properties["failed_key"])
        late = event.position + self._snapshot.store.time_slack
        if task_history is None or not any(position < late for position in task_history.failed_at):
            text = f"{event.type} names {properties['failed_key']!r}, which had not failed"
            self._report(7, text)

    def _completed(self, event: EventRecord, properties: dict[str, Any]) -> None:
        self._ended_by, self.end_round = event.type, self.round
        if properties["total_tasks"] != self.total:
            self._report(
                7, f"{event.type} counts {properties['total_tasks']} tasks of {self.total}"
            )
        late = event.position + self._snapshot.store.time_slack
        for task in self._snapshot.tasks:
            completed_at = self._snapshot.histories[task.id].completed_at
            if completed_at is None or completed_at > late:
                self._report(7, f"{event.type} came before {task.key!r} had completed")


def _check_sets(snapshot: JobSnapshot, job: JobRecord) -> Iterator[Violation]:
    history = {v.COMPLETED: job.completed, v.FAILED: job.failed, v.CANCELLED: job.cancelled}
    ended = job.completed | job.failed | job.cancelled
    if ended.bit_count() != sum(numbers.bit_count() for numbers in history.values()):
        yield Violation(7, job.id, "it has one task among those that ended in different ways")
    if (ended | job.blocked) >> job.total:
        yield Violation(7, job.id, "it has more tasks as ended or blocked than it has tasks")
    for task in snapshot.tasks:
        for state, numbers in history.items():
            if numbers >> task.number & 1 and task.state != state:
                text = f"it has {task.key!r} as {state}, and that is {task.state}"
                yield Violation(7, job.id, text)
    if job.keys is not None:
        behind = _dependents_of(job, job.failed | job.cancelled) & ~ended
        if behind != job.blocked:
            wrong = sorted(v.bits(behind ^ job.blocked))
            text = f"what is behind a failure and what it has as blocked differ in {wrong[:10]}"
            yield Violation(7, job.id, text)


def _dependents_of(job: JobRecord, numbers: int) -> int:
    """Every task that directly or indirectly depends on one of these."""
    if not numbers:
        return 0
    children: dict[int, list[int]] = {}
    for child, parents in enumerate(job.parents):
        for parent in parents:
            children.setdefault(parent, []).append(child)
    dependents: set[int] = set()
    left = list(v.bits(numbers))
    while left:
        for child in children.get(left.pop(), ()):
            if child not in dependents:
                dependents.add(child)
                left.append(child)
    return sum(1 << number for number in dependents)


def _resumed_keys(resumed: EventRecord) -> tuple[str, ...] | None:
    """The tasks that a resume was for; None: there are too many of them to stand there."""
    names = resumed.properties["tasks"]
    return names if isinstance(names, tuple) else None


def _check_task_rounds(
    snapshot: JobSnapshot, job: JobRecord, history: _JobHistory
) -> Iterator[Violation]:
    """A resume of the job names the task and comes first; then the round of the task begins."""
    slack = snapshot.store.time_slack
    for task in snapshot.tasks:
        for number, position in snapshot.histories[task.id].rounds.items():
            resumed = history.resumed.get(number)
            names = _resumed_keys(resumed) if resumed else ()
            begun = resumed is not None and resumed.position < position + slack
            if not begun or (names is not None and task.key not in names):
                text = f"round {number} begins, and no resume of its job has begun it"
                yield Violation(4, task.id, text)
    under_way = {intent.round for intent in job.intents if intent.kind == "resume"}
    for number, resumed in history.resumed.items():
        for key in () if number in under_way else _resumed_keys(resumed) or ():
            task_history = snapshot.history_of(key)
            if task_history is None or number not in task_history.rounds:
                text = f"round {number} was accepted for {key!r} and has not begun"
                yield Violation(1, job.id, text)
