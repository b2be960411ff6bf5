"""Helpers that apply a command to a job and return the decision."""

from collections.abc import Iterable
from datetime import datetime

from longshore.core.events import types as e
from longshore.core.jobs import job
from longshore.core.jobs.job import EndedTask, JobChange, TasksEnded
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.rows import JobRow
from longshore.core.tasks.states import TaskState
from tests.factories import NOON, SECOND, changed, refused

LATER = NOON + 10 * SECOND
STATUSES: dict[str, str | None] = {"t0": "completed", "t1": None}
COMPLETED, FAILED, CANCELLED = TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED


def change_of(row: JobRow, command: job.JobCommand, *, now: datetime = LATER) -> JobChange:
    return changed(job.apply(row, command, now=now, change_id="new"))


def refusal_of(row: JobRow, command: job.JobCommand) -> Refusal:
    return refused(job.apply(row, command, now=LATER, change_id="new"))


def an_end(
    number: int, state: TaskState = COMPLETED, *, round: int = 1, blocks: Iterable[int] = ()
) -> EndedTask:
    return EndedTask(
        number=number, key=f"t{number}", round=round, state=state, blocks=NumberSet(blocks)
    )


def ends(*ended: EndedTask) -> TasksEnded:
    return TasksEnded(tasks=ended, statuses=STATUSES)


def bodies(change: JobChange) -> list[e.EventBody]:
    return [event.body for event in change.events]
